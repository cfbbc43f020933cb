module;
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kernels/reduce_ranks.h"
module tessera.communication;

import tessera.base;
import tessera.calls;
import tessera.ranks;
import :communicator;
import :group_view;
import :operation;
import :puller;
import :state;

namespace tessera::collective {
namespace {

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from && bytes != 0) {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace

const std::byte* Puller::source_of(int member, std::size_t array, const Operation& op) const {
  if (member == group_.rank()) {
    return static_cast<const std::byte*>(op.arrays()[array].source);
  }
  const std::uint64_t offset = op.form->list     ? group_.table_of(member, op)[array]
                               : op.form->counts ? group_.table_of(member, op)[group_.rank()]
                                                 : group_.publication(member, op.sequence).source;
  return group_.region().at(offset);
}

void Puller::reduce_sources(void* destination, std::int64_t count, const Operation& op) {
  const int terms = op.options.terms.count > 0 ? op.options.terms.count : group_.size();
  kernels::reduce_ranks({destination, sources_.data() + op.options.terms.first, terms, count,
                         op.call.dtype, static_cast<kernels::RankReduce>(op.call.reduce),
                         op.options.destination_f32, op.options.accumulate});
}

void Puller::pull(const Operation& op) {
  if (op.form->counts) {
    check_counts(op);
  }
  if (op.read == nullptr) {
    return;
  }
  op.form->combine == Combine::reduce ? reduce_reads(op) : copy_reads(op);
}

void Puller::check_counts(const Operation& op) const {
  const auto ranks = static_cast<std::size_t>(group_.size());
  const auto own = static_cast<std::size_t>(group_.rank());
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto sent = r == own
                          ? static_cast<std::uint64_t>(op.send_begins[r + 1] - op.send_begins[r])
                          : group_.table_of(static_cast<int>(r), op)[ranks + own];
    const std::int64_t expected = op.receive_begins[r + 1] - op.receive_begins[r];
    if (sent != static_cast<std::uint64_t>(expected)) {
      group_.state().fail_published(fmt::format(
          "{}: rank {} sends {} elements to rank {}, which expects {} (call {} of group {})",
          op.form->name, group_.ranks()[r], sent, group_.ranks()[own], expected, op.sequence,
          describe_group(group_.group())));
    }
  }
}

void Puller::copy_reads(const Operation& op) const {
  const std::size_t element = size_of(op.call.dtype);
  const std::span<const Segment> arrays = op.arrays();
  // Each rank begins with its neighbour, so that not all read the same rank at once.
  for (int i = 0; i < group_.size(); ++i) {
    const int member = (group_.rank() + i) % group_.size();
    for (std::size_t a = 0; a < arrays.size(); ++a) {
      const Read read = op.read(group_.reads_of(op, arrays[a], member));
      if (read.count != 0) {
        copy_bytes(static_cast<std::byte*>(arrays[a].destination) +
                       static_cast<std::size_t>(read.to) * element,
                   source_of(member, a, op) + static_cast<std::size_t>(read.from) * element,
                   static_cast<std::size_t>(read.count) * element);
      }
    }
  }
}

void Puller::gather_results(const Operation& op) {
  const std::size_t element = size_of(op.call.dtype);
  const std::span<const Segment> arrays = op.arrays();
  for (int i = 1; i < group_.size(); ++i) {
    const int member = (group_.rank() + i) % group_.size();
    for (std::size_t a = 0; a < arrays.size(); ++a) {
      const Read read = op.form->gather(group_.reads_of(op, arrays[a], member));
      if (read.count != 0) {
        copy_bytes(static_cast<std::byte*>(arrays[a].destination) +
                       static_cast<std::size_t>(read.to) * element,
                   group_.result_of(member, a, op) + static_cast<std::size_t>(read.from) * element,
                   static_cast<std::size_t>(read.count) * element);
      }
    }
  }
}

void Puller::reduce_reads(const Operation& op) {
  const std::size_t element = size_of(op.call.dtype);
  const std::size_t written = op.options.destination_f32 ? sizeof(float) : element;
  const std::span<const Segment> arrays = op.arrays();
  sources_.resize(static_cast<std::size_t>(group_.size()));
  for (std::size_t a = 0; a < arrays.size(); ++a) {
    const Read first = op.read(group_.reads_of(op, arrays[a], 0));
    if (first.count == 0 || (group_.size() == 1 && arrays[a].source == arrays[a].destination)) {
      continue;
    }
    for (int member = 0; member < group_.size(); ++member) {
      const Read read = op.read(group_.reads_of(op, arrays[a], member));
      sources_[static_cast<std::size_t>(member)] =
          source_of(member, a, op) + static_cast<std::size_t>(read.from) * element;
    }
    std::byte* to = static_cast<std::byte*>(arrays[a].destination) +
                    static_cast<std::size_t>(first.to) * written;
    if (!op.two_phase) {
      reduce_sources(to, first.count, op);
      continue;
    }
    // In blocks, so that the copy for the peers still finds the sum in the cache.
    std::byte* result = (op.form->list ? group_.result_of(group_.rank(), a, op) : op.result) +
                        static_cast<std::size_t>(first.to) * element;
    const auto block = static_cast<std::int64_t>((std::size_t{64} << 10) / element);
    for (std::int64_t at = 0; at < first.count; at += block) {
      const std::int64_t count = std::min(block, first.count - at);
      const std::size_t bytes = static_cast<std::size_t>(count) * element;
      reduce_sources(to, count, op);
      copy_bytes(result, to, bytes);
      to += bytes;
      result += bytes;
      for (const void*& source : sources_) {
        source = static_cast<const std::byte*>(source) + bytes;
      }
    }
  }
  constexpr std::size_t kept = 256;  // with more, the scratch memory of all ranks would be N x N
  if (sources_.size() > kept) {
    std::vector<const void*>().swap(sources_);  // `= {}` would keep the memory
  }
}

}  // namespace tessera::collective
