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

const std::byte* Engine::source_of(int member, const Operation& op) const {
  return member == rank_ ? op.source : state_.region->at(publication(member, op.sequence).source);
}

const std::uint64_t* Engine::table_of(int member, const Operation& op) const {
  return reinterpret_cast<const std::uint64_t*>(
      state_.region->at(publication(member, op.sequence).source));
}

void Engine::reduce_sources(void* destination, std::int64_t count, const Operation& op) {
  kernels::reduce_ranks({destination, sources_.data(), size_, count, op.call.dtype,
                         static_cast<kernels::RankReduce>(op.call.reduce),
                         op.options.destination_f32, op.options.accumulate});
}

void Engine::pull(Operation& op) {
  switch (op.call.kind) {
    case CallKind::all_reduce:
      op.two_phase ? reduce_piece(op) : reduce_rows(op);
      break;
    case CallKind::reduce:
      if (rank_ == op.call.root) {
        reduce_rows(op);
      }
      break;
    case CallKind::reduce_scatter:
      reduce_rows(op);
      break;
    case CallKind::gather:
      if (rank_ == op.call.root) {
        pull_rows(op);
      }
      break;
    case CallKind::all_gather:
    case CallKind::all_to_all:
    case CallKind::broadcast:
    case CallKind::scatter:
      pull_rows(op);
      break;
    case CallKind::all_to_all_counts:
      pull_counts(op);
      break;
    case CallKind::all_gather_segments:
      pull_segments(op);
      break;
    case CallKind::reduce_scatter_segments:
      reduce_segments(op);
      break;
    case CallKind::all_reduce_segments:
      reduce_segment_pieces(op);
      break;
    case CallKind::barrier:
    case CallKind::send:
    case CallKind::receive:
      break;
  }
}

void Engine::pull_rows(Operation& op) {
  const std::size_t row = static_cast<std::size_t>(op.call.count) * size_of(op.call.dtype);
  const bool from_root = op.call.kind == CallKind::broadcast || op.call.kind == CallKind::scatter;
  const bool to_rows = !from_root;
  const bool from_rows = op.call.kind == CallKind::all_to_all || op.call.kind == CallKind::scatter;
  // Each rank begins with its neighbour, so that not all read the same rank at once.
  for (int i = 0; i < size_; ++i) {
    const int r = (rank_ + i) % size_;
    if (from_root && r != op.call.root) {
      continue;
    }
    copy_bytes(op.destination + (to_rows ? row * static_cast<std::size_t>(r) : 0),
               source_of(r, op) + (from_rows ? row * static_cast<std::size_t>(rank_) : 0), row);
  }
}

void Engine::pull_counts(Operation& op) {
  const std::size_t element = size_of(op.call.dtype);
  const auto ranks = static_cast<std::size_t>(size_);
  const auto own = static_cast<std::size_t>(rank_);
  std::byte* to = op.destination;
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::size_t bytes = static_cast<std::size_t>(op.receive_counts[r]) * element;
    const std::byte* from = op.source;
    auto sent = static_cast<std::uint64_t>(op.send_counts[own]);
    if (r == own) {
      for (std::size_t before = 0; before < own; ++before) {
        from += static_cast<std::size_t>(op.send_counts[before]) * element;
      }
    } else {
      const std::uint64_t* table = table_of(static_cast<int>(r), op);
      from = state_.region->at(table[own]);
      sent = table[ranks + own];
    }
    if (sent != static_cast<std::uint64_t>(op.receive_counts[r])) {
      state_.fail_published(fmt::format(
          "all_to_all with counts: rank {} sends {} elements to rank {}, which expects {} (call {} "
          "of group {})",
          ranks_[r], sent, ranks_[own], op.receive_counts[r], op.sequence,
          describe_group(*group_)));
    }
    copy_bytes(to, from, bytes);
    to += bytes;
  }
}

void Engine::reduce_rows(Operation& op) {
  const std::size_t row = static_cast<std::size_t>(op.call.count) * size_of(op.call.dtype);
  const std::size_t begin =
      op.call.kind == CallKind::reduce_scatter ? row * static_cast<std::size_t>(rank_) : 0;
  for (int r = 0; r < size_; ++r) {
    sources_[static_cast<std::size_t>(r)] = source_of(r, op) + begin;
  }
  reduce_sources(op.destination, op.call.count, op);
}

void Engine::reduce_piece(Operation& op) {
  const std::size_t element = size_of(op.call.dtype);
  const std::int64_t begin = piece_begin(op.call.count, element, size_, rank_);
  const std::int64_t end = piece_begin(op.call.count, element, size_, rank_ + 1);
  // In blocks, so that the copy for the peers still finds the sum in the cache.
  const auto block = static_cast<std::int64_t>((std::size_t{64} << 10) / element);
  for (std::int64_t at = begin; at < end; at += block) {
    const std::int64_t count = std::min(block, end - at);
    const std::size_t offset = static_cast<std::size_t>(at) * element;
    for (int r = 0; r < size_; ++r) {
      sources_[static_cast<std::size_t>(r)] = source_of(r, op) + offset;
    }
    reduce_sources(op.destination + offset, count, op);
    copy_bytes(op.result + offset, op.destination + offset,
               static_cast<std::size_t>(count) * element);
  }
}

void Engine::gather_pieces(Operation& op) {
  const std::size_t element = size_of(op.call.dtype);
  for (int i = 1; i < size_; ++i) {
    const int r = (rank_ + i) % size_;
    const std::int64_t begin = piece_begin(op.call.count, element, size_, r);
    const std::int64_t end = piece_begin(op.call.count, element, size_, r + 1);
    const std::size_t offset = static_cast<std::size_t>(begin) * element;
    copy_bytes(op.destination + offset,
               state_.region->at(publication(r, op.sequence).result + offset),
               static_cast<std::size_t>(end - begin) * element);
  }
}

void Engine::reduce_segment_pieces(Operation& op) {
  if (size_ == 1) {
    return;  // nothing was published; the sum is there already
  }
  const std::size_t element = size_of(op.call.dtype);
  const std::uint64_t* own = table_of(rank_, op);
  for (std::size_t s = 0; s < op.segments.size(); ++s) {
    const Segment& segment = op.segments[s];
    const std::int64_t begin = piece_begin(segment.total, element, size_, rank_);
    const std::int64_t end = piece_begin(segment.total, element, size_, rank_ + 1);
    if (begin == end) {
      continue;
    }
    const std::size_t offset = static_cast<std::size_t>(begin) * element;
    for (int r = 0; r < size_; ++r) {
      const auto* source = r == rank_ ? static_cast<const std::byte*>(segment.source)
                                      : state_.region->at(table_of(r, op)[s]);
      sources_[static_cast<std::size_t>(r)] = source + offset;
    }
    auto* const destination = static_cast<std::byte*>(segment.destination) + offset;
    reduce_sources(destination, end - begin, op);
    copy_bytes(state_.region->at(own[s]) + offset, destination,
               static_cast<std::size_t>(end - begin) * element);
  }
}

void Engine::gather_segment_pieces(Operation& op) {
  const std::size_t element = size_of(op.call.dtype);
  for (int i = 1; i < size_; ++i) {
    const int r = (rank_ + i) % size_;
    const auto* table = reinterpret_cast<const std::uint64_t*>(
        state_.region->at(publication(r, op.sequence).result));
    for (std::size_t s = 0; s < op.segments.size(); ++s) {
      const Segment& segment = op.segments[s];
      const std::int64_t begin = piece_begin(segment.total, element, size_, r);
      const std::int64_t end = piece_begin(segment.total, element, size_, r + 1);
      const std::size_t offset = static_cast<std::size_t>(begin) * element;
      copy_bytes(static_cast<std::byte*>(segment.destination) + offset,
                 state_.region->at(table[s]) + offset,
                 static_cast<std::size_t>(end - begin) * element);
    }
  }
}

void Engine::pull_segments(Operation& op) {
  const std::size_t element = size_of(op.call.dtype);
  for (int i = 0; i < size_; ++i) {
    const int r = (rank_ + i) % size_;
    const std::uint64_t* table = r == rank_ ? nullptr : table_of(r, op);
    for (std::size_t s = 0; s < op.segments.size(); ++s) {
      const Segment& segment = op.segments[s];
      const std::size_t bytes = static_cast<std::size_t>(piece_elements(segment, r)) * element;
      if (bytes == 0) {
        continue;
      }
      copy_bytes(
          static_cast<std::byte*>(segment.destination) +
              static_cast<std::size_t>(segment.chunk * r) * element,
          r == rank_ ? static_cast<const std::byte*>(segment.source) : state_.region->at(table[s]),
          bytes);
    }
  }
}

void Engine::reduce_segments(Operation& op) {
  const std::size_t element = size_of(op.call.dtype);
  for (std::size_t s = 0; s < op.segments.size(); ++s) {
    const Segment& segment = op.segments[s];
    const std::int64_t count = piece_elements(segment, rank_);
    if (count == 0) {
      continue;
    }
    const std::size_t begin = static_cast<std::size_t>(segment.chunk * rank_) * element;
    for (int r = 0; r < size_; ++r) {
      const auto* source = r == rank_ ? static_cast<const std::byte*>(segment.source)
                                      : state_.region->at(table_of(r, op)[s]);
      sources_[static_cast<std::size_t>(r)] = source + begin;
    }
    reduce_sources(segment.destination, count, op);
  }
}

}  // namespace tessera::collective
