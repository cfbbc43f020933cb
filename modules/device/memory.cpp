module;
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.device;

import tessera.base;

#if defined(__SANITIZE_ADDRESS__) || (defined(__has_feature) && __has_feature(address_sanitizer))
#define TESSERA_NO_CACHE 1
#endif

namespace tessera {
namespace {

#ifdef TESSERA_NO_CACHE
constexpr bool cache_blocks = false;  // so that the sanitizer sees every use after free
#else
constexpr bool cache_blocks = true;
#endif

constexpr std::size_t alignment = 64;
constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr std::size_t page = 4096;
/// Blocks from here on are split and joined, so that lengths which change at every step need no new
/// memory; below it, a size class costs fewer instructions.
constexpr std::size_t large_bytes = std::size_t{1} << 20;
constexpr std::size_t class_count = 8 * 48;

/// Size classes: eight steps in each power of two, so that at most an eighth of a block is lost.
/// Large blocks have whole pages.
struct SizeClass {
  std::size_t index;
  std::size_t bytes;
};

/// More than any machine has; above it the size classes end.
constexpr std::size_t most_bytes = std::size_t{1} << 50;

SizeClass size_class(std::size_t bytes) {
  const std::size_t lines = std::max<std::size_t>(1, (bytes + alignment - 1) / alignment);
  if (lines <= 8) {
    return {lines - 1, lines * alignment};
  }
  const auto power =
      static_cast<std::size_t>(std::bit_width(lines - 1)) - 4;  // steps of 2^power lines
  const std::size_t steps = (lines + (std::size_t{1} << power) - 1) >> power;  // 9 to 16
  const std::size_t index = (power + 1) * 8 + (steps - 9);
  if (bytes >= large_bytes) {
    return {index, (bytes + page - 1) / page * page};
  }
  return {index, (steps << power) * alignment};
}

/// A thread's free blocks of one size class. It keeps no more than it has taken: blocks that other
/// threads take and this one frees, as where one makes the batches of another, go to the system.
struct FreeBlocks {
  std::vector<void*> blocks;
  std::int64_t taken = 0;  // and not freed by this thread
};

struct Cache {
  std::array<FreeBlocks, class_count> classes;
  MemoryStatistics statistics;
  MemoryRequest request;
  bool planned = false;

  Cache() = default;
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;
  ~Cache();
  void clear();
};

// Tensors may die after their thread's cache (statics, thread-local results): then memory goes to
// the system at once, and is no longer counted.
thread_local bool cache_ended = false;

Cache& cache() {
  thread_local Cache instance;
  return instance;
}

void Cache::clear() {
  for (FreeBlocks& list : classes) {
    for (void* block : list.blocks) {
      std::free(block);
    }
    list.blocks.clear();
  }
  statistics.cached = 0;
}

Cache::~Cache() {
  cache_ended = true;
  clear();
}

bool is_large(const SizeClass& size) { return cache_blocks && size.bytes >= large_bytes; }

class SystemMemory final : public MemorySource {
 public:
  void* take(std::size_t bytes) override {
    void* data = std::aligned_alloc(huge_page, (bytes + huge_page - 1) / huge_page * huge_page);
    if (data != nullptr) {
      madvise(data, bytes, MADV_HUGEPAGE);
    }
    return data;
  }
  void give_back(void* data, std::size_t) noexcept override { std::free(data); }
  void finish() override {
    if (!cache_ended) {
      cache().clear();  // the system may have run out of what small blocks keep
    }
  }
};

BlockAllocator& large_blocks() {
  static auto* source = new SystemMemory;  // never destroyed: tensors may outlive statics
  static auto* allocator = new BlockAllocator("cpu", *source);
  return *allocator;
}

/// The memory that a device's driver provides.
class DriverMemory final : public MemorySource {
 public:
  explicit DriverMemory(Device device) : device_(device), driver_(driver_of(device)) {}
  void* take(std::size_t bytes) override {
    void* const data = driver_.allocate(bytes);
    if (data != nullptr) {
      const std::lock_guard lock(mutex_);
      segments_.emplace_back(data, bytes);
      for_each_observer([&](SegmentObserver& observer) { observer.taken(data, bytes); });
    }
    return data;
  }
  void give_back(void* data, std::size_t bytes) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(segments_, [&](const auto& segment) { return segment.first == data; });
      for_each_observer([&](SegmentObserver& observer) { observer.given_back(data, bytes); });
    }
    driver_.free(data, bytes);
  }
  void finish() override { synchronize(device_); }

  void observe(const std::shared_ptr<SegmentObserver>& observer) {
    const std::lock_guard lock(mutex_);
    observers_.push_back(observer);
    for (const auto& [data, bytes] : segments_) {
      observer->taken(data, bytes);
    }
  }

 private:
  template <class Tell>
  void for_each_observer(const Tell& tell) {
    std::erase_if(observers_, [](const auto& observer) { return observer.expired(); });
    for (const std::weak_ptr<SegmentObserver>& entry : observers_) {
      if (const std::shared_ptr<SegmentObserver> observer = entry.lock()) {
        tell(*observer);
      }
    }
  }

  Device device_;
  DeviceDriver& driver_;
  std::mutex mutex_;
  std::vector<std::pair<void*, std::size_t>> segments_;
  std::vector<std::weak_ptr<SegmentObserver>> observers_;
};

/// Memory of the host that a device's driver provides.
class PinnedSource final : public MemorySource {
 public:
  explicit PinnedSource(Device device) : device_(device), driver_(driver_of(device)) {}
  void* take(std::size_t bytes) override {
    void* const data = driver_.allocate_pinned(bytes);
    if (data != nullptr) {
      const std::lock_guard lock(mutex_);
      segments_[data] = bytes;
    }
    return data;
  }
  void give_back(void* data, std::size_t bytes) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      segments_.erase(data);
    }
    driver_.free_pinned(data, bytes);
  }
  bool has(const void* data) {
    const std::lock_guard lock(mutex_);
    const auto after = segments_.upper_bound(data);
    return after != segments_.begin() &&
           data < static_cast<const std::byte*>(std::prev(after)->first) + std::prev(after)->second;
  }
  void finish() override { synchronize(device_); }

 private:
  Device device_;
  DeviceDriver& driver_;
  std::mutex mutex_;
  std::map<const void*, std::size_t> segments_;
};

/// A device's allocators and where they get their memory from.
struct OfDevice {
  Device device;
  DriverMemory source;
  BlockAllocator allocator;
  PinnedSource pinned_source;
  BlockAllocator pinned;
  explicit OfDevice(Device of)
      : device(of),
        source(of),
        allocator(to_string(of), source),
        pinned_source(of),
        pinned("pinned memory of " + to_string(of), pinned_source) {}
};

OfDevice& memory_of(Device device) {
  static std::mutex mutex;
  static auto* made = new std::vector<std::unique_ptr<OfDevice>>;
  const std::lock_guard lock(mutex);
  for (const std::unique_ptr<OfDevice>& one : *made) {
    if (one->device == device) {
      return *one;
    }
  }
  made->push_back(std::make_unique<OfDevice>(device));
  return *made->back();
}

}  // namespace

std::string_view name_of(MemoryCategory category) {
  constexpr std::string_view names[] = {"parameter",     "gradient",  "optimizer", "activation",
                                        "communication", "workspace", "snapshot",  "other"};
  return names[static_cast<int>(category)];
}

MemoryStatistics memory_statistics() { return cache().statistics; }

void reset_memory_peaks() { cache().statistics.reset_peaks(); }

void account_memory(MemoryCategory category, std::int64_t bytes) {
  if (!cache_ended) {
    cache().statistics.book(category, bytes);
  }
}

BlockAllocator& allocator_of(Device device) {
  return device == cpu ? large_blocks() : memory_of(device).allocator;
}

SegmentObserver::~SegmentObserver() = default;

void observe_segments(Device device, const std::shared_ptr<SegmentObserver>& observer) {
  require(!(device == cpu), "observe_segments: the CPU's memory has no segments of a driver");
  memory_of(device).source.observe(observer);
}

BlockAllocator& pinned_allocator_of(Device device) {
  require(!(device == cpu), "pinned memory: the CPU has none, all its memory is the host's");
  return memory_of(device).pinned;
}

bool is_pinned(Device device, const void* data) {
  return !(device == cpu) && !(device == meta) && memory_of(device).pinned_source.has(data);
}

PinnedMemory::PinnedMemory(const Stream& stream, std::size_t bytes)
    : allocator_(pinned_allocator_of(stream.device())),
      data_(allocator_.allocate(bytes, {.category = MemoryCategory::communication}, stream)) {}
PinnedMemory::~PinnedMemory() { allocator_.free(data_); }

MemoryStatistics memory_statistics(Device device) {
  return device == cpu ? memory_statistics() : allocator_of(device).statistics();
}

void reset_memory_peaks(Device device) {
  if (device == cpu) {
    reset_memory_peaks();
  } else {
    allocator_of(device).reset_peaks();
  }
}

DeviceMemory::DeviceMemory(Device device, std::size_t bytes, MemoryOwner owner)
    : stream_(current_stream(device)),
      allocator_(allocator_of(device)),
      data_(allocator_.allocate(bytes, owner, stream_)) {}
DeviceMemory::~DeviceMemory() { allocator_.free(data_); }
void DeviceMemory::used_elsewhere(const Stream& stream) { allocator_.used_on(data_, stream); }
void DeviceMemory::move_to(MemoryCategory category) { allocator_.move_to(data_, category); }

MemoryScope::MemoryScope(MemoryCategory category)
    : before_(std::exchange(cache().request, {.category = category})) {}
MemoryScope::~MemoryScope() { cache().request = before_; }

MemoryCategory current_memory_category() { return cache().request.category; }

PeersReadScope::PeersReadScope() : before_(std::exchange(cache().request.peers_read, true)) {}
PeersReadScope::~PeersReadScope() { cache().request.peers_read = before_; }

MemoryRequest current_memory_request() { return cache().request; }

namespace {

std::shared_ptr<void> (*memory_for_peers)(std::size_t bytes) = nullptr;

}  // namespace

void set_memory_for_peers(std::shared_ptr<void> (*allocate)(std::size_t bytes)) {
  memory_for_peers = allocate;
}

std::shared_ptr<void> allocate_for_peers(std::size_t bytes) {
  return memory_for_peers == nullptr ? nullptr : memory_for_peers(bytes);
}

PlannedMemoryScope::PlannedMemoryScope() : before_(std::exchange(cache().planned, true)) {}
PlannedMemoryScope::~PlannedMemoryScope() { cache().planned = before_; }

bool memory_planned() { return cache().planned; }

std::int64_t occupied_bytes(std::size_t bytes) {
  return static_cast<std::int64_t>(size_class(bytes).bytes);
}

namespace {

/// Memory that is not in the thread's cache.
[[gnu::noinline]] void* fresh_block(const SizeClass& size, MemoryCategory category) {
  void* block = nullptr;
  if (is_large(size)) {
    block = large_blocks().allocate(size.bytes, {.category = category}, {});
  } else {
    block = std::aligned_alloc(alignment, size.bytes);
    if (block == nullptr) {
      release_cached_memory();
      block = std::aligned_alloc(alignment, size.bytes);
    }
    if (block == nullptr) {
      throw OutOfMemory({.thing = "cpu",
                         .wrong = "there is not enough memory",
                         .advice = "the blocks from 1 MiB on are held by:",
                         .details = large_blocks().table()});
    }
  }
  return block;
}

}  // namespace

void* allocate_bytes(std::size_t bytes, MemoryCategory category) {
  if (bytes > most_bytes) {
    throw std::bad_alloc();
  }
  const SizeClass size = size_class(bytes);
  Cache& c = cache();
  FreeBlocks& list = c.classes[size.index];
  if (!list.blocks.empty()) {
    void* block = list.blocks.back();
    list.blocks.pop_back();
    ++list.taken;
    c.statistics.cached -= static_cast<std::int64_t>(size.bytes);
    c.statistics.book(category, static_cast<std::int64_t>(size.bytes));
    return block;
  }
  void* block = fresh_block(size, category);
  ++list.taken;
  c.statistics.book(category, static_cast<std::int64_t>(size.bytes));
  return block;
}

void free_bytes(void* data, std::size_t bytes, MemoryCategory category) noexcept {
  if (data == nullptr) {
    return;
  }
  const SizeClass size = size_class(bytes);
  if (is_large(size)) [[unlikely]] {
    if (!cache_ended) {
      cache().statistics.book(category, -static_cast<std::int64_t>(size.bytes));
    }
    large_blocks().free(data);
    return;
  }
  if (cache_ended) {
    std::free(data);
    return;
  }
  Cache& c = cache();
  c.statistics.book(category, -static_cast<std::int64_t>(size.bytes));
  FreeBlocks& list = c.classes[size.index];
  if (!cache_blocks || list.taken <= 0) {
    std::free(data);
    return;
  }
  --list.taken;
  list.blocks.push_back(data);
  c.statistics.cached += static_cast<std::int64_t>(size.bytes);
}

void release_cached_memory() {
  cache().clear();
  large_blocks().trim();
}

}  // namespace tessera
