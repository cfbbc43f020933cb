export module tessera.tensor:allocator;

import tessera.base;

export namespace tessera {

/// What memory is used for; the accounts of MemoryStatistics.
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

/// Bytes in use by the calling rank's thread, for each category and in all.
struct MemoryStatistics {
  std::array<std::int64_t, memory_category_count> bytes{};
  std::array<std::int64_t, memory_category_count> peak{};
  std::int64_t total = 0;
  std::int64_t total_peak = 0;
  std::int64_t cached = 0;  // freed by tensors, kept for the next ones
};

/// Accounts of the calling thread (a rank).
MemoryStatistics memory_statistics();
/// Lets the peaks begin again at what is in use now.
void reset_memory_peaks();
/// Counts memory that does not come from the allocator (shared buffers); negative bytes take it
/// back.
void account_memory(MemoryCategory category, std::int64_t bytes);

/// Allocations of the calling thread are booked on `category` within the scope.
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

/// `bytes` of memory aligned to 64, from the thread's cache when it holds a block of that size
/// class.
void* allocate_bytes(std::size_t bytes, MemoryCategory category);
void free_bytes(void* data, std::size_t bytes, MemoryCategory category) noexcept;
/// Gives all cached blocks of the calling thread back to the system.
void release_cached_memory();

}  // namespace tessera
