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
module tessera.collective;

import tessera.base;
import :call;
import :communicator;
import :control;
import :engine;
import :forms;
import :region;
import :state;

namespace tessera::collective {
namespace {

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from && bytes != 0) {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace

const std::uint64_t* Engine::table_of(int member, const Operation& op) const {
  return reinterpret_cast<const std::uint64_t*>(
      state_.region->at(publication(member, op.sequence).source));
}

const std::byte* Engine::source_of(int member, std::size_t array, const Operation& op) const {
  if (member == rank_) {
    return static_cast<const std::byte*>(op.arrays()[array].source);
  }
  const std::uint64_t offset = op.form->list     ? table_of(member, op)[array]
                               : op.form->counts ? table_of(member, op)[rank_]
                                                 : publication(member, op.sequence).source;
  return state_.region->at(offset);
}

std::byte* Engine::result_of(int member, std::size_t array, const Operation& op) const {
  const std::uint64_t offset = publication(member, op.sequence).result;
  return state_.region->at(
      op.form->list ? reinterpret_cast<const std::uint64_t*>(state_.region->at(offset))[array]
                    : offset);
}

void Engine::reduce_sources(void* destination, std::int64_t count, const Operation& op) {
  kernels::reduce_ranks({destination, sources_.data(), size_, count, op.call.dtype,
                         static_cast<kernels::RankReduce>(op.call.reduce),
                         op.options.destination_f32, op.options.accumulate});
}

void Engine::pull(Operation& op) {
  if (op.read == nullptr) {
    return;
  }
  if (op.form->counts) {
    check_counts(op);
  }
  op.form->combine == Combine::reduce ? reduce_reads(op) : copy_reads(op);
}

void Engine::check_counts(const Operation& op) {
  const auto ranks = static_cast<std::size_t>(size_);
  const auto own = static_cast<std::size_t>(rank_);
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto sent = r == own
                          ? static_cast<std::uint64_t>(op.send_begins[r + 1] - op.send_begins[r])
                          : table_of(static_cast<int>(r), op)[ranks + own];
    const std::int64_t expected = op.receive_begins[r + 1] - op.receive_begins[r];
    if (sent != static_cast<std::uint64_t>(expected)) {
      state_.fail_published(fmt::format(
          "{}: rank {} sends {} elements to rank {}, which expects {} (call {} of group {})",
          op.form->name, ranks_[r], sent, ranks_[own], expected, op.sequence,
          describe_group(*group_)));
    }
  }
}

void Engine::copy_reads(Operation& op) {
  const std::size_t element = size_of(op.call.dtype);
  const std::span<const Segment> arrays = op.arrays();
  // Each rank begins with its neighbour, so that not all read the same rank at once.
  for (int i = 0; i < size_; ++i) {
    const int member = (rank_ + i) % size_;
    for (std::size_t a = 0; a < arrays.size(); ++a) {
      const Read read = op.read(pair(op, arrays[a], rank_, member));
      if (read.count != 0) {
        copy_bytes(static_cast<std::byte*>(arrays[a].destination) +
                       static_cast<std::size_t>(read.to) * element,
                   source_of(member, a, op) + static_cast<std::size_t>(read.from) * element,
                   static_cast<std::size_t>(read.count) * element);
      }
    }
  }
}

void Engine::gather_results(Operation& op) {
  const std::size_t element = size_of(op.call.dtype);
  const std::span<const Segment> arrays = op.arrays();
  for (int i = 1; i < size_; ++i) {
    const int member = (rank_ + i) % size_;
    for (std::size_t a = 0; a < arrays.size(); ++a) {
      const Read read = op.form->gather(pair(op, arrays[a], rank_, member));
      if (read.count != 0) {
        copy_bytes(static_cast<std::byte*>(arrays[a].destination) +
                       static_cast<std::size_t>(read.to) * element,
                   result_of(member, a, op) + static_cast<std::size_t>(read.from) * element,
                   static_cast<std::size_t>(read.count) * element);
      }
    }
  }
}

void Engine::reduce_reads(Operation& op) {
  const std::size_t element = size_of(op.call.dtype);
  const std::size_t written = op.options.destination_f32 ? sizeof(float) : element;
  const std::span<const Segment> arrays = op.arrays();
  for (std::size_t a = 0; a < arrays.size(); ++a) {
    const Read first = op.read(pair(op, arrays[a], rank_, 0));
    if (first.count == 0 || (size_ == 1 && arrays[a].source == arrays[a].destination)) {
      continue;
    }
    for (int member = 0; member < size_; ++member) {
      const Read read = op.read(pair(op, arrays[a], rank_, member));
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
    std::byte* result = (op.form->list ? result_of(rank_, a, op) : op.result) +
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
}

}  // namespace tessera::collective
