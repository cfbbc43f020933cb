export module tessera.device:memory;

import tessera.base;
import :blocks;
import :stream;

export namespace tessera {

/// Use of the CPU's memory by the calling thread (a rank): what it has allocated, less what it has
/// freed. What one thread allocates and another frees stays counted in the first, and is subtracted
/// in the second.
MemoryStatistics memory_statistics();
/// Resets the peaks to what is in use now.
void reset_memory_peaks();
/// Use of a device's memory by all threads; of the CPU: as above.
MemoryStatistics memory_statistics(Device device);
void reset_memory_peaks(Device device);

/// The device's allocator, which lives as long as the process: its cap, trim() and table(). Of the
/// CPU: the one of blocks from 1 MiB on; smaller ones are kept by each thread, in size classes.
/// Error: the meta device.
BlockAllocator& allocator_of(Device device);

/// Hears of the segments that a device's allocator has, on the threads that allocate. Must not
/// allocate memory of the device.
class SegmentObserver {
 public:
  SegmentObserver() = default;
  SegmentObserver(const SegmentObserver&) = delete;
  SegmentObserver& operator=(const SegmentObserver&) = delete;
  virtual ~SegmentObserver();
  virtual void taken(void* data, std::size_t bytes) = 0;
  /// The segment is about to go back to the driver.
  virtual void given_back(void* data, std::size_t bytes) noexcept = 0;
};
/// From now on `observer` hears of the device's segments, first of those that there are. It is
/// dropped when nobody else holds it. Not of the CPU.
void observe_segments(Device device, const std::shared_ptr<SegmentObserver>& observer);

/// Memory of a device, freed in the order of the stream for which it was allocated.
class DeviceMemory {
 public:
  /// For the current stream of the device. Throws OutOfMemory.
  DeviceMemory(Device device, std::size_t bytes, MemoryOwner owner);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  inline void* data() const { return data_; }
  inline const Stream& stream() const { return stream_; }
  /// Work that is queued in the stream uses the memory: it is not reused before that is done.
  inline void used_on(const Stream& stream) {
    if (!(stream == stream_)) [[unlikely]] {
      used_elsewhere(stream);
    }
  }
  void move_to(MemoryCategory category);

 private:
  void used_elsewhere(const Stream& stream);

  Stream stream_;
  BlockAllocator& allocator_;
  void* data_;
};

/// The allocator of the host's memory that a device reaches by itself (DeviceDriver::
/// allocate_pinned). Error: the CPU or the meta device, which have none.
BlockAllocator& pinned_allocator_of(Device device);

/// Whether the address is in memory of pinned_allocator_of(device).
bool is_pinned(Device device, const void* data);

/// Memory of the host for copies to and from a stream's device, which are queued and need no wait.
/// It is reused in the stream's order: what the stream still does with it when it is freed is done
/// before. The host must not access it outside of functions that it has launched in the stream,
/// unless it has waited for them.
class PinnedMemory {
 public:
  /// Throws OutOfMemory.
  PinnedMemory(const Stream& stream, std::size_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  inline void* data() const { return data_; }

 private:
  BlockAllocator& allocator_;
  void* data_;
};

/// Counts memory that does not come from the allocator (shared buffers); negative bytes undo
/// it.
void account_memory(MemoryCategory category, std::int64_t bytes);

/// Properties of an allocation that the scopes of the calling thread set.
struct MemoryRequest {
  MemoryCategory category = MemoryCategory::other;
  bool peers_read = false;
};

/// Allocations of the calling thread are counted under `category` within the scope.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryCategory category);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryRequest before_;
};
MemoryCategory current_memory_category();

/// Memory that the calling thread allocates within the scope will be read by other ranks: Storage
/// takes it from memory that they reach, so that a collective need not copy it there. A MemoryScope
/// within ends this.
class PeersReadScope {
 public:
  PeersReadScope();
  ~PeersReadScope();
  PeersReadScope(const PeersReadScope&) = delete;
  PeersReadScope& operator=(const PeersReadScope&) = delete;

 private:
  bool before_;
};
MemoryRequest current_memory_request();

/// Memory of the CPU that the other ranks of the calling thread's world can read, aligned to 512
/// and freed with the last reference. Null: there are no other ranks, or there is none left.
std::shared_ptr<void> allocate_for_peers(std::size_t bytes);
/// Set by the module that connects the ranks, when the library is loaded.
void set_memory_for_peers(std::shared_ptr<void> (*allocate)(std::size_t bytes));

/// Within the scope the calling thread books the meta tensors that it creates and destroys as if
/// they had memory: a trial on the meta device then shows in memory_statistics() what a rank will
/// need. What outlives the scope stays booked, so a trial runs on a thread of its own.
class PlannedMemoryScope {
 public:
  PlannedMemoryScope();
  ~PlannedMemoryScope();
  PlannedMemoryScope(const PlannedMemoryScope&) = delete;
  PlannedMemoryScope& operator=(const PlannedMemoryScope&) = delete;

 private:
  bool before_;
};
bool memory_planned();

/// Bytes that an allocation of `bytes` occupies: allocations have size classes.
std::int64_t occupied_bytes(std::size_t bytes);

/// `bytes` of the CPU's memory aligned to 64, from the thread's cache when it holds a block of that
/// size class, or from the allocator of large blocks. When there is none left, all cached memory
/// goes back to the system first; then it throws OutOfMemory.
void* allocate_bytes(std::size_t bytes, MemoryCategory category);
void free_bytes(void* data, std::size_t bytes, MemoryCategory category) noexcept;
/// Returns the cached blocks of the calling thread, and the process' cached large ones, to the
/// system.
void release_cached_memory();

}  // namespace tessera
