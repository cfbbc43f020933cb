export module tessera.tensor:allocator;

import tessera.base;

export namespace tessera {

/// What memory is used for; MemoryStatistics counts each category.
enum class MemoryCategory : std::uint8_t {
  parameter,
  gradient,
  optimizer,
  activation,
  communication,
  other
};
inline constexpr int memory_category_count = 6;
std::string_view name_of(MemoryCategory category);

/// Bytes in use by the calling rank's thread, for each category and in total.
struct MemoryStatistics {
  std::array<std::int64_t, memory_category_count> bytes{};
  std::array<std::int64_t, memory_category_count> peak{};
  std::int64_t total = 0;
  std::int64_t total_peak = 0;
  std::int64_t cached = 0;  // freed by tensors, kept for the next ones
};

/// The statistics of the calling thread (a rank).
MemoryStatistics memory_statistics();
/// Resets the peaks to what is in use now.
void reset_memory_peaks();
/// Counts memory that does not come from the allocator (shared buffers); negative bytes undo
/// it.
void account_memory(MemoryCategory category, std::int64_t bytes);

/// Allocations of the calling thread are counted under `category` within the scope.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryCategory category);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryCategory before_;
};
MemoryCategory current_memory_category();

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

/// What an allocation of `bytes` occupies: allocations have size classes.
std::int64_t occupied_bytes(std::size_t bytes);

/// `bytes` of memory aligned to 64, from the thread's cache when it holds a block of that size
/// class.
void* allocate_bytes(std::size_t bytes, MemoryCategory category);
void free_bytes(void* data, std::size_t bytes, MemoryCategory category) noexcept;
/// Returns all cached blocks of the calling thread to the system.
void release_cached_memory();

}  // namespace tessera
