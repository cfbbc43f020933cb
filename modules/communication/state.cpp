module;
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#endif
module tessera.communication;

import tessera.base;
import tessera.device;
import tessera.calls;
import tessera.ranks;
import tessera.machines;
import :buffer;
import :communicator;
import :device_communicators;
import :engine;
import :state;
import :world;

namespace tessera::collective {
namespace {

#if __has_feature(address_sanitizer)
// Memory that is freed to the cache of allocate_for_peers is forbidden until it is allocated again:
// a rank that still reads it is found where ranks are threads.
void allow(const void* data, std::size_t bytes) { __asan_unpoison_memory_region(data, bytes); }
void forbid(const void* data, std::size_t bytes) { __asan_poison_memory_region(data, bytes); }
#else
void allow(const void*, std::size_t) {}
void forbid(const void*, std::size_t) {}
#endif

constexpr std::size_t large_page = std::size_t{2} << 20;

}  // namespace

WorldState::WorldState(const RankPlace& place)
    : region(place.region),
      control(reinterpret_cast<Control*>(region->base())),
      rank(place.rank),
      size(place.size),
      transport(place.transport),
      bridge(place.bridge),
      ranks_here(bridge == nullptr ? size : static_cast<int>(bridge->mates().size())),
      number_here(bridge == nullptr ? rank
                                    : static_cast<int>(std::ranges::find(bridge->mates(), rank) -
                                                       bridge->mates().begin())),
      timeout(wait_limit()),
      report_after(place.report_seconds),
      devices(std::make_unique<DeviceCommunicators>(*this)),
      // With other machines each rank has a second thread.
      spin_((bridge == nullptr ? ranks_here : 2 * ranks_here) <= available_cores()),
      look_others_(std::clamp(0.0005 * ranks_here / available_cores(), 0.0005, 0.1)),
      look_failed_(std::clamp(0.001 * ranks_here / available_cores(), 0.02, 0.25)),
      small_(std::make_unique<SmallExtents>(*this)),
      segments_(std::make_unique<Segments>(*this)),
      blocks_(std::make_unique<BlockAllocator>("shared memory", *segments_)) {
  const Process self = this_process();
  own_record().process.store(self.id);
  own_record().process_start.store(self.start);
}

/// Small parts of the region, from larger ones that are this rank's alone: the lock of the region
/// is one for all ranks, and each of many ranks needs several parts before its first call.
class WorldState::SmallExtents {
 public:
  static constexpr std::size_t largest = std::size_t{32} << 10;

  explicit SmallExtents(WorldState& state) : state_(state) {}

  /// 0: no room.
  std::uint64_t take(std::size_t bytes) {
    const std::lock_guard guard(mutex_);
    const std::size_t room = std::bit_ceil(bytes);
    std::vector<std::uint64_t>& free = free_[room];
    std::uint64_t offset = 0;
    if (!free.empty()) {
      offset = free.back();
      free.pop_back();
    } else {
      if (left_in_chunk_ < room) {
        next_ = state_.take_extent(chunk);
        left_in_chunk_ = next_ == 0 ? 0 : chunk;
      }
      if (left_in_chunk_ < room) {
        return 0;
      }
      offset = next_;
      next_ += room;
      left_in_chunk_ -= room;
    }
    sizes_.emplace(offset, room);
    return offset;
  }

  /// Whether it was taken here.
  bool give_back(std::uint64_t offset) {
    const std::lock_guard guard(mutex_);
    const auto known = sizes_.find(offset);
    if (known == sizes_.end()) {
      return false;
    }
    discard_pages(state_.region->at(offset), known->second, state_.transport != Transport::single);
    free_[known->second].push_back(offset);
    sizes_.erase(known);
    return true;
  }

 private:
  // Not larger: whoever reads parts of many ranks has a page of its tables for each 2 MiB.
  static constexpr std::size_t chunk = std::size_t{128} << 10;

  WorldState& state_;
  std::mutex mutex_;
  std::map<std::size_t, std::vector<std::uint64_t>> free_;  // by size
  std::unordered_map<std::uint64_t, std::size_t> sizes_;    // of those in use
  std::uint64_t next_ = 0;
  std::size_t left_in_chunk_ = 0;
};

std::uint64_t WorldState::take_extent(std::size_t bytes) {
  const std::size_t alignment = bytes >= 2 * large_page ? large_page : 4096;
  lock();
  const std::uint64_t offset = control->extents.allocate(region->base(), bytes, alignment);
  control->lock.unlock();
  if (offset != 0 && alignment == large_page) {
    advise_large_pages(region->at(offset), bytes);
  }
  return offset;
}

std::uint64_t WorldState::try_allocate(std::size_t bytes) {
  const std::lock_guard guard(mutex_);
  reap_retired();
  const std::size_t rounded = std::max<std::size_t>((bytes + 4095) & ~std::size_t{4095}, 4096);
  if (rounded <= SmallExtents::largest) {
    if (const std::uint64_t small = small_->take(rounded); small != 0) {
      return small;
    }
  }
  return take_extent(rounded);
}

std::uint64_t WorldState::allocate(std::size_t bytes) {
  const std::uint64_t offset = try_allocate(bytes);
  if (offset == 0) {
    lock();
    const std::uint64_t used = control->extents.used_bytes();
    control->lock.unlock();
    fail({.thing = "shared memory",
          .wrong =
              fmt::format("no room for {} more (all ranks together use {} of {})",
                          format_bytes(bytes), format_bytes(used), format_bytes(region->bytes())),
          .advice =
              "use fewer or smaller buffers, a machine with more memory, or raise `ulimit -v`"});
  }
  return offset;
}

/// Parts of the region for the blocks of allocate_for_peers.
class WorldState::Segments final : public MemorySource {
 public:
  explicit Segments(WorldState& state) : state_(state) {}
  void* take(std::size_t bytes) override {
    const std::uint64_t offset = state_.try_allocate(bytes);
    return offset == 0 ? nullptr : state_.region->at(offset);
  }
  void give_back(void* data, std::size_t bytes) noexcept override {
    allow(data, bytes);
    if (!state_.closed_) {  // else the region is freed with its last user
      state_.release(state_.region->offset_of(data));
    }
  }
  void finish() override {}

 private:
  WorldState& state_;
};

WorldState::~WorldState() = default;

std::shared_ptr<void> WorldState::allocate_for_peers(std::size_t bytes) {
  if (size == 1 || transport == Transport::fake) {
    return nullptr;
  }
  try {
    void* const fresh = blocks_->allocate(bytes, {.category = current_memory_category()}, {});
    allow(fresh, bytes);
    return {fresh, [state = shared_from_this(), bytes](void* data) {
              forbid(data, bytes);
              state->blocks_->free(data);
            }};
  } catch (const OutOfMemory&) {
    return nullptr;
  }
}

void WorldState::release(std::uint64_t offset) noexcept {
  if (small_->give_back(offset)) {
    return;
  }
  try {
    lock();
  } catch (const Error&) {
    return;  // the run has failed: the region is freed with its processes
  }
  const std::uint64_t bytes = control->extents.release(region->base(), offset);
  // Under the lock: no rank may take the extent before its pages are discarded.
  if (bytes != 0) {
    discard_pages(region->at(offset), bytes, transport != Transport::single);
  }
  control->lock.unlock();
}

void WorldState::retire(std::uint64_t offset) noexcept {
  const std::lock_guard guard(mutex_);
  if (closed_) {
    return;  // peers may still read; the region is freed with its last user
  }
  RetiredBuffer entry{offset, {}};
  for (Engine* engine : engines_) {
    if (!engine->peers_done(engine->issued())) {
      entry.readers.emplace_back(engine, engine->issued());
    }
  }
  retired_.push_back(std::move(entry));
  reap_retired();
}

void WorldState::reap_retired() {
  std::erase_if(retired_, [&](const RetiredBuffer& entry) {
    const bool free = std::all_of(entry.readers.begin(), entry.readers.end(),
                                  [](const auto& r) { return r.first->peers_done(r.second); });
    if (free) {
      release(entry.offset);
    }
    return free;
  });
}

void WorldState::throw_peer_failed() const {
  const FirstError error = control->first_error();
  throw PeerFailed(
      ErrorFields{.thing = "stopped, because of", .wrong = to_string(error), .rank = error.rank},
      error.kind);
}

void WorldState::fail_published(const std::string& text, ErrorKind kind) {
  const std::string work = work_in_words();
  const std::string said =
      work.empty() ? text : fmt::format("{}\n  rank {} was {}", text, rank, work);
  if (control->publish_error(rank, said, kind, true)) {
    throw Error(said, kind);
  }
  throw_peer_failed();
}

RecordedCall& WorldState::record(std::uint64_t group, std::uint64_t sequence,
                                 const PackedCall& call) {
  RankRecord& own = own_record();
  const std::lock_guard guard(recorder_mutex_);
  const std::uint64_t at = own.recorded.load(std::memory_order_relaxed);
  RecordedCall& entry = own.calls[at % RankRecord::kept_calls];
  entry.group.store(group, std::memory_order_relaxed);
  entry.sequence.store(sequence, std::memory_order_relaxed);
  entry.head.store(call.head, std::memory_order_relaxed);
  entry.count.store(call.count, std::memory_order_relaxed);
  entry.shape.store(call.shape, std::memory_order_relaxed);
  entry.done.store(0, std::memory_order_relaxed);
  own.recorded.store(at + 1, std::memory_order_release);
  return entry;
}

bool WorldState::progress_others(const Engine* self) {
  std::vector<Engine*> engines;
  {
    const std::lock_guard guard(mutex_);
    if (engines_.size() < 2 && self != nullptr) {
      return false;
    }
    engines = engines_;
  }
  bool any = false;
  for (Engine* engine : engines) {
    any |= engine != self && engine->try_progress();
  }
  return any;
}

Communicator& WorldState::communicator(std::span<const int> ranks, std::string_view name) {
  std::uint64_t hash = ranks.size();
  for (const int member : ranks) {
    hash = hash_combine(hash, static_cast<std::uint64_t>(member));
  }
  std::atomic<Communicator*>& place = unnamed_[hash % unnamed_.size()];
  if (Communicator* const known = place.load(std::memory_order_acquire);
      known != nullptr && name.empty() && std::ranges::equal(known->global_ranks(), ranks)) {
    return *known;
  }
  Communicator& found = find_or_make(ranks, hash, name);
  if (name.empty()) {
    place.store(&found, std::memory_order_release);
  }
  return found;
}

Communicator& WorldState::everyone() {
  Communicator* known = everyone_.load(std::memory_order_acquire);
  if (known == nullptr) {
    std::vector<int> all(static_cast<std::size_t>(size));
    std::iota(all.begin(), all.end(), 0);
    known = &communicator(all, "");
    everyone_.store(known, std::memory_order_release);
  }
  return *known;
}

Communicator& WorldState::find_or_make(std::span<const int> ranks, std::uint64_t hash,
                                       std::string_view name) {
  const std::lock_guard guard(mutex_);
  std::vector<std::unique_ptr<Communicator>>& known = communicators_[{std::string(name), hash}];
  for (const std::unique_ptr<Communicator>& one : known) {
    if (std::ranges::equal(one->global_ranks(), ranks)) {
      return *one;
    }
  }
  std::vector<int> sorted(ranks.begin(), ranks.end());
  std::sort(sorted.begin(), sorted.end());
  if (sorted.empty() || sorted.front() < 0 || sorted.back() >= size ||
      std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end() ||
      !std::binary_search(sorted.begin(), sorted.end(), rank)) {
    fail({.thing = "communicator",
          .wrong = "bad group",
          .expected =
              fmt::format("different ranks of 0 to {} with rank {} among them", size - 1, rank),
          .got = fmt::format("[{}]", fmt::join(ranks, ", "))});
  }
  if (name.size() > sizeof(GroupBlock::name)) {
    fail({.thing = "communicator",
          .wrong = fmt::format("the name '{}' is too long (at most {} bytes)", name,
                               sizeof(GroupBlock::name))});
  }
  GroupBlock* group = find_group(*region, ranks, name);
  if (group == nullptr) {
    lock();
    group = find_or_make_group(*region, ranks, name, transport == Transport::fake);
    control->lock.unlock();
  }
  if (group == nullptr) {
    fail({.thing = "communicator",
          .wrong = fmt::format("no room for a group of {} ranks in {} of shared memory",
                               ranks.size(), format_bytes(region->bytes())),
          .advice = "use fewer ranks or fewer buffers, or raise `ulimit -v`"});
  }
  auto engine = std::make_unique<Engine>(*this, group);
  engines_.push_back(engine.get());
  return *known.emplace_back(std::make_unique<Communicator>(std::move(engine)));
}

void WorldState::close() {
  std::vector<Communicator*> open;
  {
    const std::lock_guard guard(mutex_);
    for (const auto& [key, communicators] : communicators_) {
      for (const std::unique_ptr<Communicator>& communicator : communicators) {
        open.push_back(communicator.get());
      }
    }
  }
  if (control->failed.load(std::memory_order_acquire) != 0) {
    devices->abort();
  }
  for (Communicator* communicator : open) {
    communicator->finish_streams();  // what is queued there looks communicators up
  }
  devices->close();
  if (bridge != nullptr) {
    bridge->flush();  // it sends from memory that is freed with the communicators
  }
  decltype(communicators_) closing;
  {
    const std::lock_guard guard(mutex_);
    closed_ = true;
    for (std::atomic<Communicator*>& place : unnamed_) {
      place.store(nullptr, std::memory_order_relaxed);
    }
    everyone_.store(nullptr, std::memory_order_relaxed);
    engines_.clear();
    retired_.clear();
    closing.swap(communicators_);
  }
  closing.clear();
  own_record().ended.store(1, std::memory_order_release);
}

}  // namespace tessera::collective
