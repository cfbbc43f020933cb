module;
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>
module tessera.communication;

import tessera.base;
import tessera.calls;
import tessera.ranks;
import :communicator;
import :group_view;
import :observer;
import :operation;
import :publisher;
import :state;

namespace tessera::collective {
namespace {

bool overlap(const std::byte* a, std::size_t bytes_a, const std::byte* b, std::size_t bytes_b) {
  return a < b + bytes_b && b < a + bytes_a;
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

bool Publisher::reachable(const void* pointer, std::size_t bytes) const {
  const Region& region = group_.region();
  return bytes == 0 || (region.contains(pointer) &&
                        region.contains(static_cast<const std::byte*>(pointer) + bytes - 1));
}

Publisher::Span Publisher::read_by_peers(const Operation& op, const Segment& array) const {
  Span span;
  for (int reader = 0; reader < group_.size(); ++reader) {
    if (reader == group_.rank()) {
      continue;
    }
    const Read read = op.read_of(group_.read_by(op, array, reader));
    if (read.count != 0) {
      const std::int64_t end = read.from + read.count;
      span = span.begin == span.end
                 ? Span{read.from, end}
                 : Span{std::min(span.begin, read.from), std::max(span.end, end)};
    }
  }
  return span;
}

bool Publisher::overwrites_what_peers_read(const Operation& op, const Span& span) const {
  const std::size_t element = size_of(op.call.dtype);
  const auto* const source = static_cast<const std::byte*>(op.array.source);
  const auto* const destination = static_cast<const std::byte*>(op.array.destination);
  const auto bytes = [&](std::int64_t count) { return static_cast<std::size_t>(count) * element; };
  const auto peers_read = [&](const std::byte* written, std::size_t count) {
    for (int reader = 0; reader < group_.size(); ++reader) {
      const Read read =
          reader == group_.rank() ? Read{} : op.read_of(group_.read_by(op, op.array, reader));
      if (read.count != 0 &&
          overlap(written, count, source + bytes(read.from), bytes(read.count))) {
        return true;
      }
    }
    return false;
  };
  for (int member = 0; member < group_.size(); ++member) {
    const Read read = op.read(group_.reads_of(op, op.array, member));
    const std::byte* const written = destination + bytes(read.to);
    if (read.count == 0 || (member == group_.rank() && op.form->combine == Combine::copy &&
                            written == source + bytes(read.from))) {
      continue;  // what stays where it is
    }
    if (overlap(written, bytes(read.count), source + bytes(span.begin),
                bytes(span.end - span.begin)) &&
        peers_read(written, bytes(read.count))) {
      return true;
    }
    if (op.form->combine == Combine::reduce) {
      break;  // all members' reads go to one place
    }
  }
  return false;
}

void Publisher::stage(const Operation& op, const Segment& array, std::uint64_t to) const {
  const std::size_t element = size_of(op.call.dtype);
  const auto* const source = static_cast<const std::byte*>(array.source);
  Span span;
  const auto copy = [&] {
    const std::size_t begin = static_cast<std::size_t>(span.begin) * element;
    if (span.end > span.begin) {
      std::memcpy(group_.region().at(to + begin), source + begin,
                  static_cast<std::size_t>(span.end - span.begin) * element);
    }
  };
  // Ranges that several peers read are copied once, and neighbours in one piece. Nobody but this
  // rank reads its own part, and it reads the source.
  for (int reader = 0; reader < group_.size(); ++reader) {
    const Read read =
        reader == group_.rank() ? Read{} : op.read_of(group_.read_by(op, array, reader));
    const std::int64_t end = read.from + read.count;
    if (read.count == 0 || (read.from >= span.begin && end <= span.end)) {
      continue;
    }
    if (read.from == span.end) {
      span.end = end;
    } else {
      copy();
      span = {read.from, end};
    }
  }
  copy();
}

std::uint64_t Publisher::publish_array(Operation& op) {
  const std::size_t element = size_of(op.call.dtype);
  Span span = read_by_peers(op, op.array);
  if (op.two_phase) {  // what is staged has room for the own piece too: see publish_result
    const Read own = op.read(group_.reads_of(op, op.array, group_.rank()));
    span = {std::min(span.begin, own.from), std::max(span.end, own.from + own.count)};
  }
  const std::size_t bytes = static_cast<std::size_t>(span.end - span.begin) * element;
  const std::size_t begin = static_cast<std::size_t>(span.begin) * element;
  if (bytes == 0) {
    return 0;
  }
  // A destination that is also the source changes while peers read it. In two phases it does not:
  // a rank writes its own piece first, and another one's when that has been reduced.
  const auto* const source = static_cast<const std::byte*>(op.array.source);
  op.direct =
      reachable(source + begin, bytes) && (op.two_phase || !overwrites_what_peers_read(op, span));
  if (op.direct) {
    return group_.region().offset_of(source);
  }
  const std::uint64_t base = take(bytes, op) - begin;
  stage(op, op.array, base);
  return base;
}

std::uint64_t Publisher::publish_result(Operation& op, std::uint64_t source) {
  const std::size_t element = size_of(op.call.dtype);
  auto* const destination = static_cast<std::byte*>(op.array.destination);
  const Read own = op.form->gather(group_.reads_of(op, op.array, group_.rank()));
  const std::size_t begin = static_cast<std::size_t>(own.from) * element;
  const std::size_t bytes = static_cast<std::size_t>(own.count) * element;
  if (reachable(destination + begin, bytes)) {
    op.result = destination;
  } else if (!op.direct) {
    op.result = group_.region().at(source);  // peers read other pieces of it
  } else {
    op.result = group_.region().at(take(bytes, op) - begin);
  }
  return group_.region().offset_of(op.result);
}

std::uint64_t Publisher::publish_list(Operation& op) {
  const std::size_t element = size_of(op.call.dtype);
  const auto private_bytes = [&](const Segment& segment, const Span& span) -> std::size_t {
    const std::size_t bytes = static_cast<std::size_t>(span.end - span.begin) * element;
    const auto* const first = static_cast<const std::byte*>(segment.source) +
                              static_cast<std::size_t>(span.begin) * element;
    return reachable(first, bytes) ? 0 : (bytes + 63) / 64 * 64;
  };
  spans_.clear();
  std::size_t all_private = 0;
  for (const Segment& segment : op.segments) {
    Span& span = spans_.emplace_back(read_by_peers(op, segment));
    if (op.two_phase) {  // peers read the own piece, when it is reduced, where they read the others
      const Read own = op.read(group_.reads_of(op, segment, group_.rank()));
      span = {std::min(span.begin, own.from), std::max(span.end, own.from + own.count)};
    }
    all_private += private_bytes(segment, span);
  }
  const std::uint64_t offset = take(op.segments.size() * sizeof(std::uint64_t), op);
  auto* table = reinterpret_cast<std::uint64_t*>(group_.region().at(offset));
  std::uint64_t copy_to = all_private == 0 ? 0 : take(all_private, op);
  for (std::size_t i = 0; i < op.segments.size(); ++i) {
    const Segment& segment = op.segments[i];
    const std::size_t bytes = private_bytes(segment, spans_[i]);
    if (spans_[i].begin == spans_[i].end) {
      table[i] = 0;
    } else if (bytes == 0) {
      table[i] = group_.region().offset_of(segment.source);
    } else {
      table[i] = copy_to - static_cast<std::size_t>(spans_[i].begin) * element;
      stage(op, segment, table[i]);
      copy_to += bytes;
    }
  }
  return offset;
}

std::uint64_t Publisher::publish_counts(Operation& op) {
  const std::size_t element = size_of(op.call.dtype);
  const auto ranks = static_cast<std::size_t>(group_.size());
  // The table: the offset of the elements for each peer, then their number.
  const std::uint64_t offset = take(2 * ranks * sizeof(std::uint64_t), op);
  const std::uint64_t base = op.announced ? 0 : publish_array(op);
  auto* table = reinterpret_cast<std::uint64_t*>(group_.region().at(offset));
  for (std::size_t r = 0; r < ranks; ++r) {
    const Read read = op.form->read(group_.read_by(op, op.array, static_cast<int>(r)));
    table[r] = op.announced || read.count == 0
                   ? 0
                   : base + static_cast<std::uint64_t>(read.from) * element;
    table[ranks + r] = static_cast<std::uint64_t>(read.count);
  }
  return offset;
}

void Publisher::publish(Operation& op) {
  Publication& publication = group_.own_publication(op.sequence);
  if (op.form->counts) {
    publication.source = publish_counts(op);
  } else if (op.read != nullptr) {
    publication.source = op.form->list ? publish_list(op) : publish_array(op);
    if (op.two_phase) {
      publication.result =
          op.form->list ? publication.source : publish_result(op, publication.source);
    }
  }
  publication.call = pack(op.call);
  if (group_.state().slow_link != nullptr) {
    publication.time = steady_nanoseconds();
  }
  group_.own().published.raise(op.sequence + 1);
}

}  // namespace tessera::collective
