module;
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string_view>
#include <utility>
#include <vector>
module tessera.tensor;

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
constexpr std::size_t class_count = 8 * 48;

/// Size classes: eight steps in each power of two, so that at most an eighth of a block is lost.
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
  return {(power + 1) * 8 + (steps - 9), (steps << power) * alignment};
}

struct Cache {
  std::array<std::vector<void*>, class_count> blocks;
  MemoryStatistics statistics;
  MemoryCategory category = MemoryCategory::other;
  bool planned = false;

  Cache() = default;
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;
  ~Cache();
  void clear();
};

// Tensors may die after their thread's cache (statics, thread-local results): then memory goes to
// the system at once.
thread_local bool cache_alive = false;

Cache& cache() {
  thread_local Cache instance;
  return instance;
}

void Cache::clear() {
  for (auto& list : blocks) {
    for (void* block : list) {
      std::free(block);
    }
    list.clear();
  }
  statistics.cached = 0;
}

Cache::~Cache() {
  cache_alive = false;
  clear();
}

void book(Cache& c, MemoryCategory category, std::int64_t bytes) {
  MemoryStatistics& s = c.statistics;
  const auto i = static_cast<std::size_t>(category);
  s.bytes[i] += bytes;
  s.total += bytes;
  s.peak[i] = std::max(s.peak[i], s.bytes[i]);
  s.total_peak = std::max(s.total_peak, s.total);
}

}  // namespace

std::string_view name_of(MemoryCategory category) {
  constexpr std::string_view names[] = {"parameter",  "gradient",      "optimizer",
                                        "activation", "communication", "other"};
  return names[static_cast<int>(category)];
}

MemoryStatistics memory_statistics() { return cache().statistics; }

void reset_memory_peaks() {
  MemoryStatistics& s = cache().statistics;
  s.peak = s.bytes;
  s.total_peak = s.total;
}

void account_memory(MemoryCategory category, std::int64_t bytes) { book(cache(), category, bytes); }

MemoryScope::MemoryScope(MemoryCategory category)
    : before_(std::exchange(cache().category, category)) {}
MemoryScope::~MemoryScope() { cache().category = before_; }

MemoryCategory current_memory_category() { return cache().category; }

PlannedMemoryScope::PlannedMemoryScope() : before_(std::exchange(cache().planned, true)) {}
PlannedMemoryScope::~PlannedMemoryScope() { cache().planned = before_; }

bool memory_planned() { return cache().planned; }

std::int64_t occupied_bytes(std::size_t bytes) {
  return static_cast<std::int64_t>(size_class(bytes).bytes);
}

void* allocate_bytes(std::size_t bytes, MemoryCategory category) {
  if (bytes > most_bytes) {
    throw std::bad_alloc();
  }
  const SizeClass size = size_class(bytes);
  Cache& c = cache();
  cache_alive = true;
  auto& list = c.blocks[size.index];
  if (!list.empty()) {
    void* block = list.back();
    list.pop_back();
    c.statistics.cached -= static_cast<std::int64_t>(size.bytes);
    book(c, category, static_cast<std::int64_t>(size.bytes));
    return block;
  }
  const std::size_t align = size.bytes >= huge_page ? huge_page : alignment;
  void* block = std::aligned_alloc(align, (size.bytes + align - 1) / align * align);
  if (block == nullptr) {
    throw std::bad_alloc();
  }
  book(c, category, static_cast<std::int64_t>(size.bytes));
  if (size.bytes >= huge_page) {
    madvise(block, size.bytes, MADV_HUGEPAGE);
  }
  return block;
}

void free_bytes(void* data, std::size_t bytes, MemoryCategory category) noexcept {
  if (data == nullptr) {
    return;
  }
  if (!cache_alive) {
    std::free(data);
    return;
  }
  const SizeClass size = size_class(bytes);
  Cache& c = cache();
  book(c, category, -static_cast<std::int64_t>(size.bytes));
  if (!cache_blocks) {
    std::free(data);
    return;
  }
  c.blocks[size.index].push_back(data);
  c.statistics.cached += static_cast<std::int64_t>(size.bytes);
}

void release_cached_memory() { cache().clear(); }

}  // namespace tessera
