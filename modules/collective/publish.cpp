module;
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <vector>
module tessera.collective;

import tessera.base;
import :call;
import :communicator;
import :control;
import :engine;
import :observer;
import :region;
import :state;

namespace tessera::collective {
namespace {

bool overlap(const std::byte* a, const std::byte* b, std::size_t bytes) {
  return a < b + bytes && b < a + bytes;
}

}  // namespace

Staging::~Staging() {
  // Peers may still read: the blocks are freed with the region.
}

std::uint64_t Staging::take(std::size_t bytes, std::uint64_t sequence, std::uint64_t all_done) {
  const std::size_t wanted = std::bit_ceil(std::max<std::size_t>(bytes, 4096));
  for (Block& block : blocks_) {
    if (block.bytes == wanted && block.busy_until <= all_done) {
      block.busy_until = sequence + 1;
      return block.offset;
    }
  }
  if (total_ + wanted > kept_bytes) {
    std::erase_if(blocks_, [&](const Block& block) {
      const bool free = block.busy_until <= all_done;
      if (free) {
        total_ -= block.bytes;
        state_.release(block.offset);
      }
      return free;
    });
  }
  const std::uint64_t offset = state_.allocate(wanted);
  blocks_.push_back({offset, wanted, sequence + 1});
  total_ += wanted;
  return offset;
}

std::int64_t piece_begin(std::int64_t count, std::size_t element, int size, int rank) {
  const auto line = static_cast<std::int64_t>(64 / element);
  const std::int64_t piece = ((count + size - 1) / size + line - 1) / line * line;
  return std::min(count, piece * rank);
}

std::int64_t piece_elements(const Segment& segment, int rank) {
  return std::clamp<std::int64_t>(segment.total - segment.chunk * rank, 0, segment.chunk);
}

bool Engine::reachable(const void* pointer, std::size_t bytes) const {
  return bytes == 0 ||
         (state_.region->contains(pointer) &&
          state_.region->contains(static_cast<const std::byte*>(pointer) + bytes - 1));
}

std::uint64_t Engine::stage(const void* source, std::size_t bytes, std::uint64_t sequence) {
  const std::uint64_t offset = staging_.take(bytes, sequence, all_done());
  if (bytes != 0) {
    std::memcpy(state_.region->at(offset), source, bytes);
  }
  return offset;
}

std::uint64_t Engine::publish_source(Operation& op) {
  const Call& call = op.call;
  const std::size_t row = static_cast<std::size_t>(call.count) * size_of(call.dtype);
  const std::size_t all = row * static_cast<std::size_t>(size_);
  const bool root = rank_ == call.root;
  std::size_t bytes = 0;
  bool in_place = false;
  switch (call.kind) {
    case CallKind::all_reduce:
      bytes = row;
      in_place = !op.two_phase && overlap(op.source, op.destination, row);
      break;
    case CallKind::all_gather:
      bytes = row;
      break;
    case CallKind::reduce_scatter:
      bytes = all;
      break;
    case CallKind::all_to_all:
      bytes = all;
      in_place = overlap(op.source, op.destination, all);
      break;
    case CallKind::broadcast:
      bytes = root ? row : 0;
      break;
    case CallKind::scatter:
      bytes = root ? all : 0;
      break;
    case CallKind::gather:
    case CallKind::reduce:
      bytes = root ? 0 : row;
      break;
    default:
      break;
  }
  if (bytes == 0) {
    return 0;
  }
  // A destination that is also the source changes while peers read it.
  op.direct = !in_place && reachable(op.source, bytes);
  if (op.direct) {
    return state_.region->offset_of(op.source);
  }
  if (bytes != all || in_place) {
    return stage(op.source, bytes, op.sequence);
  }
  // Nobody but this rank reads its own row, and it reads the source.
  const std::uint64_t offset = staging_.take(bytes, op.sequence, all_done());
  const std::size_t before = row * static_cast<std::size_t>(rank_);
  std::memcpy(state_.region->at(offset), op.source, before);
  std::memcpy(state_.region->at(offset) + before + row, op.source + before + row,
              all - before - row);
  return offset;
}

std::uint64_t Engine::publish_result(Operation& op, std::uint64_t source) {
  const std::size_t element = size_of(op.call.dtype);
  const std::size_t bytes = static_cast<std::size_t>(op.call.count) * element;
  if (reachable(op.destination, bytes)) {
    op.result = op.destination;
  } else if (!op.direct) {
    op.result = state_.region->at(source);  // peers read other pieces of it
  } else {
    const std::int64_t begin = piece_begin(op.call.count, element, size_, rank_);
    const std::int64_t end = piece_begin(op.call.count, element, size_, rank_ + 1);
    const std::uint64_t offset =
        staging_.take(static_cast<std::size_t>(end - begin) * element, op.sequence, all_done());
    op.result = state_.region->at(offset) - static_cast<std::size_t>(begin) * element;
  }
  return state_.region->offset_of(op.result);
}

std::uint64_t Engine::publish_segments(Operation& op) {
  const std::size_t element = size_of(op.call.dtype);
  const bool gathers = op.call.kind == CallKind::all_gather_segments;
  const auto bytes_of = [&](const Segment& s) {
    return static_cast<std::size_t>(gathers ? piece_elements(s, rank_) : s.total) * element;
  };
  std::size_t private_bytes = 0;
  for (const Segment& segment : op.segments) {
    const std::size_t bytes = bytes_of(segment);
    private_bytes += reachable(segment.source, bytes) ? 0 : (bytes + 63) / 64 * 64;
  }
  const std::uint64_t offset =
      staging_.take(op.segments.size() * sizeof(std::uint64_t), op.sequence, all_done());
  auto* table = reinterpret_cast<std::uint64_t*>(state_.region->at(offset));
  std::uint64_t copy_to =
      private_bytes == 0 ? 0 : staging_.take(private_bytes, op.sequence, all_done());
  for (std::size_t i = 0; i < op.segments.size(); ++i) {
    const Segment& segment = op.segments[i];
    const std::size_t bytes = bytes_of(segment);
    if (reachable(segment.source, bytes)) {
      table[i] = bytes == 0 ? 0 : state_.region->offset_of(segment.source);
      continue;
    }
    std::memcpy(state_.region->at(copy_to), segment.source, bytes);
    table[i] = copy_to;
    copy_to += (bytes + 63) / 64 * 64;
  }
  return offset;
}

std::uint64_t Engine::publish_counts(Operation& op) {
  const std::size_t element = size_of(op.call.dtype);
  const auto ranks = static_cast<std::size_t>(size_);
  const std::int64_t all =
      std::accumulate(op.send_counts.begin(), op.send_counts.end(), std::int64_t{0});
  const std::size_t bytes = static_cast<std::size_t>(all) * element;
  // The table: the offset of the elements for each peer, then their number.
  const std::uint64_t offset =
      staging_.take(2 * ranks * sizeof(std::uint64_t), op.sequence, all_done());
  op.direct = bytes != 0 && reachable(op.source, bytes);
  std::uint64_t begin =
      op.direct ? state_.region->offset_of(op.source) : stage(op.source, bytes, op.sequence);
  auto* table = reinterpret_cast<std::uint64_t*>(state_.region->at(offset));
  for (std::size_t r = 0; r < ranks; ++r) {
    table[r] = begin;
    table[ranks + r] = static_cast<std::uint64_t>(op.send_counts[r]);
    begin += static_cast<std::uint64_t>(op.send_counts[r]) * element;
  }
  return offset;
}

void Engine::publish(Operation& op) {
  Member& own = members_[rank_];
  Publication& publication = own.publications[op.sequence % Member::ring];
  switch (op.call.kind) {
    case CallKind::barrier:
      break;
    case CallKind::all_gather_segments:
    case CallKind::reduce_scatter_segments:
    case CallKind::all_reduce_segments:
      publication.source = publish_segments(op);
      publication.result = publication.source;
      break;
    case CallKind::all_to_all_counts:
      publication.source = publish_counts(op);
      break;
    default:
      publication.source = publish_source(op);
      if (op.two_phase) {
        publication.result = publish_result(op, publication.source);
      }
  }
  publication.call = pack(op.call);
  if (state_.slow_link != nullptr) {
    publication.time = steady_nanoseconds();
  }
  own.published.raise(op.sequence + 1);
}

}  // namespace tessera::collective
