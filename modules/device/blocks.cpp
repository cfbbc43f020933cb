// The caching allocator. Blocks of one segment form a list; free blocks are found by stream and
// size.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <tessera/limits.hpp>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>
module tessera.device;

import tessera.base;

namespace tessera {
namespace {

constexpr std::size_t granularity = 512;
/// Small blocks have segments of their own, so that one of them does not keep a large segment.
constexpr std::size_t small_bytes = std::size_t{1} << 20;
constexpr std::size_t small_segment = std::size_t{2} << 20;
constexpr std::size_t large_segment = std::size_t{16} << 20;
constexpr std::size_t segment_step = std::size_t{2} << 20;

std::size_t rounded_up(std::size_t bytes, std::size_t step) {
  return (bytes + step - 1) / step * step;
}

struct Block {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  bool small = false;
  bool used = false;
  Block* before = nullptr;  // neighbours in the segment
  Block* after = nullptr;
  Stream stream;
  bool any_stream = false;  // free, and nothing that was queued uses it
  MemoryOwner owner;
  std::vector<Stream> also_used_on;  // while in use
  std::vector<Event> pending;        // while free: what must be reached before it is written again
};

/// Free blocks by stream; of one stream, the smallest that fits first.
struct BySize {
  static auto key(const Block& b) {
    return std::tuple(b.any_stream, b.any_stream ? nullptr : b.stream.native(), b.small, b.bytes,
                      b.data);
  }
  bool operator()(const Block* a, const Block* b) const { return key(*a) < key(*b); }
};

}  // namespace

OutOfMemory::OutOfMemory(ErrorFields fields) : Error(std::move(fields)) {}
MemorySource::~MemorySource() = default;

struct BlockAllocator::State {
  std::string name;
  MemorySource& source;
  mutable std::mutex mutex;
  std::size_t cap = 0;
  std::size_t taken = 0;
  std::unordered_map<void*, std::unique_ptr<Block>> blocks;  // all, by address
  std::set<Block*, BySize> free_blocks;
  MemoryStatistics statistics;

  State(std::string of, MemorySource& from) : name(std::move(of)), source(from) {}

  /// The smallest free block that fits; null: there is none.
  Block* find_free(std::size_t bytes, const Stream& stream) {
    Block probe;
    probe.small = bytes <= small_bytes;
    probe.bytes = bytes;
    probe.stream = stream;
    for (const bool any : {false, true}) {
      probe.any_stream = any;
      const auto found = free_blocks.lower_bound(&probe);
      if (found == free_blocks.end()) {
        continue;
      }
      Block* block = *found;
      if (block->any_stream == any && block->small == probe.small &&
          (any || block->stream == stream)) {
        return block;
      }
    }
    return nullptr;
  }

  /// A free block of a new segment; null: the source or the cap is exhausted.
  Block* take_segment(std::size_t bytes, const Stream& stream) {
    const bool small = bytes <= small_bytes;
    const std::size_t usual = small ? small_segment : large_segment;
    const std::size_t exact = rounded_up(bytes, segment_step);
    for (const std::size_t wanted : {std::max(usual, exact), exact}) {
      if (cap != 0 && taken + wanted > cap) {
        continue;
      }
      void* data = source.take(wanted);
      if (data == nullptr) {
        continue;
      }
      taken += wanted;
      statistics.cached += static_cast<std::int64_t>(wanted);
      auto block = std::make_unique<Block>();
      block->data = static_cast<std::byte*>(data);
      block->bytes = wanted;
      block->small = small;
      block->stream = stream;
      Block* kept = block.get();
      blocks.emplace(data, std::move(block));
      free_blocks.insert(kept);
      return kept;
    }
    return nullptr;
  }

  /// Takes the first bytes of a free block.
  void* use(Block* block, std::size_t bytes, MemoryOwner owner, const Stream& stream) {
    free_blocks.erase(block);
    if (block->bytes - bytes >= granularity) {
      auto rest = std::make_unique<Block>();
      rest->data = block->data + bytes;
      rest->bytes = block->bytes - bytes;
      rest->small = block->small;
      rest->stream = block->stream;
      rest->any_stream = block->any_stream;
      rest->pending = block->pending;
      rest->before = block;
      rest->after = block->after;
      if (rest->after != nullptr) {
        rest->after->before = rest.get();
      }
      block->after = rest.get();
      block->bytes = bytes;
      free_blocks.insert(rest.get());
      blocks.emplace(rest->data, std::move(rest));
    }
    block->used = true;
    block->any_stream = false;
    block->stream = stream;
    block->owner = owner;
    for (const Event& event : block->pending) {
      if (!event.reached()) {
        stream.wait(event);
      }
    }
    block->pending.clear();
    statistics.cached -= static_cast<std::int64_t>(block->bytes);
    statistics.book(owner.category, static_cast<std::int64_t>(block->bytes));
    return block->data;
  }

  /// Whether two neighbours can be one free block: the order of one stream covers both.
  static bool joins(const Block* a, const Block* b) {
    return a != nullptr && b != nullptr && !a->used && !b->used &&
           (a->any_stream || b->any_stream || a->stream == b->stream);
  }

  /// `block` and the free block after it (neither is among the free ones) become one.
  void join(Block* block, Block* next) {
    if (block->any_stream && !next->any_stream) {
      block->any_stream = false;
      block->stream = next->stream;
    }
    block->bytes += next->bytes;
    block->pending.insert(block->pending.end(), next->pending.begin(), next->pending.end());
    block->after = next->after;
    if (block->after != nullptr) {
      block->after->before = block;
    }
    blocks.erase(next->data);
  }

  /// Adds a free block to the others, joined with its neighbours.
  void add_free(Block* block) {
    if (joins(block, block->after)) {
      free_blocks.erase(block->after);
      join(block, block->after);
    }
    if (joins(block->before, block)) {
      Block* front = block->before;
      free_blocks.erase(front);
      join(front, block);
      block = front;
    }
    free_blocks.insert(block);
  }

  /// Waits until nothing uses what is free; then each free block serves every stream.
  void settle() {
    source.finish();
    std::vector<Block*> all(free_blocks.begin(), free_blocks.end());
    free_blocks.clear();
    for (Block* block : all) {
      block->any_stream = true;
      block->pending.clear();
    }
    std::ranges::sort(all, {}, [](const Block* b) { return b->data; });
    for (std::size_t i = 0; i < all.size(); ++i) {
      Block* block = all[i];
      while (i + 1 < all.size() && block->after == all[i + 1]) {
        join(block, all[++i]);
      }
      free_blocks.insert(block);
    }
  }

  /// Gives back whole segments that are free, the largest first, until at most `keep` are cached.
  void give_back(std::size_t keep) {
    settle();
    std::vector<Block*> whole;
    for (Block* block : free_blocks) {
      if (block->before == nullptr && block->after == nullptr) {
        whole.push_back(block);
      }
    }
    std::ranges::sort(whole, std::greater<>(), [](const Block* b) { return b->bytes; });
    for (Block* block : whole) {
      if (static_cast<std::size_t>(statistics.cached) <= keep) {
        return;
      }
      free_blocks.erase(block);
      source.give_back(block->data, block->bytes);
      taken -= block->bytes;
      statistics.cached -= static_cast<std::int64_t>(block->bytes);
      blocks.erase(block->data);
    }
  }

  std::string table() const {
    std::vector<HeldMemory> held;
    for (const auto& [data, block] : blocks) {
      if (block->used) {
        held.push_back({block->owner, block->bytes});
      }
    }
    return memory_table(held);
  }

  [[noreturn]] void exhausted(std::size_t bytes, MemoryOwner owner) const {
    std::size_t largest = 0;
    for (const Block* block : free_blocks) {
      largest = std::max(largest, block->bytes);
    }
    throw OutOfMemory(
        {.thing = name,
         .wrong = fmt::format(
             "there is not enough memory for {} ({}): {} in use, {} cached (at most {} in one "
             "piece), {}",
             format_bytes(bytes), name_of(owner.category),
             format_bytes(static_cast<std::uint64_t>(statistics.total)),
             format_bytes(static_cast<std::uint64_t>(statistics.cached)), format_bytes(largest),
             cap != 0        ? "the cap is " + format_bytes(cap)
             : name == "cpu" ? reason_of(ENOMEM)
                             : std::string("the device has no more")),
         .advice = "use smaller batches, or free what holds most:",
         .details = table()});
  }
};

BlockAllocator::BlockAllocator(std::string name, MemorySource& source)
    : state_(std::make_unique<State>(std::move(name), source)) {}

BlockAllocator::~BlockAllocator() { trim(); }

void* BlockAllocator::allocate(std::size_t bytes, MemoryOwner owner, const Stream& stream) {
  State& s = *state_;
  constexpr std::size_t most = std::size_t{1} << 50;  // more than any machine has
  const std::lock_guard lock(s.mutex);
  if (bytes > most) {
    s.exhausted(bytes, owner);
  }
  const std::size_t size = rounded_up(std::max<std::size_t>(bytes, 1), granularity);
  Block* block = s.find_free(size, stream);
  if (block == nullptr) {
    block = s.take_segment(size, stream);
  }
  if (block == nullptr) {
    s.settle();  // blocks of other streams may be taken then
    block = s.find_free(size, stream);
  }
  if (block == nullptr) {
    s.give_back(0);
    block = s.take_segment(size, stream);
  }
  if (block == nullptr) {
    s.exhausted(bytes, owner);
  }
  return s.use(block, size, owner, stream);
}

void BlockAllocator::free(void* data) noexcept {
  if (data == nullptr) {
    return;
  }
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  const auto found = s.blocks.find(data);
  if (found == s.blocks.end() || !found->second->used) {
    log(LogLevel::error, s.name + ": memory is freed that is not in use; it is ignored");
    return;
  }
  Block* block = found->second.get();
  s.statistics.book(block->owner.category, -static_cast<std::int64_t>(block->bytes));
  try {
    for (const Stream& stream : block->also_used_on) {
      block->pending.push_back(record_event(stream));
    }
  } catch (const Error&) {
    return;  // the device fails, as its next use says: the memory is not used again
  }
  block->used = false;
  block->also_used_on.clear();
  s.statistics.cached += static_cast<std::int64_t>(block->bytes);
  s.add_free(block);
}

void BlockAllocator::used_on(void* data, const Stream& stream) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  const auto found = s.blocks.find(data);
  if (found == s.blocks.end() || !found->second->used || found->second->stream == stream) {
    return;
  }
  std::vector<Stream>& others = found->second->also_used_on;
  if (std::ranges::find(others, stream) == others.end()) {
    others.push_back(stream);
  }
}

void BlockAllocator::move_to(void* data, MemoryCategory category) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  const auto found = s.blocks.find(data);
  if (found == s.blocks.end() || !found->second->used) {
    return;
  }
  Block& block = *found->second;
  s.statistics.book(block.owner.category, -static_cast<std::int64_t>(block.bytes));
  block.owner.category = category;
  s.statistics.book(category, static_cast<std::int64_t>(block.bytes));
}

void BlockAllocator::set_cap(std::size_t bytes) {
  const std::lock_guard lock(state_->mutex);
  state_->cap = bytes;
}

void BlockAllocator::trim(std::size_t keep) {
  const std::lock_guard lock(state_->mutex);
  state_->give_back(keep);
}

MemoryStatistics BlockAllocator::statistics() const {
  const std::lock_guard lock(state_->mutex);
  return state_->statistics;
}

void BlockAllocator::reset_peaks() {
  const std::lock_guard lock(state_->mutex);
  state_->statistics.reset_peaks();
}

std::size_t BlockAllocator::reserved() const {
  const std::lock_guard lock(state_->mutex);
  return state_->taken;
}

std::string BlockAllocator::table() const {
  const std::lock_guard lock(state_->mutex);
  return state_->table();
}

}  // namespace tessera
