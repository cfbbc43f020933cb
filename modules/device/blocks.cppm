export module tessera.device:blocks;

import tessera.base;
import :stream;

export namespace tessera {

/// Use of memory; MemoryStatistics counts each category.
enum class MemoryCategory : std::uint8_t {
  parameter,
  gradient,
  optimizer,
  activation,
  communication,
  workspace,  // intermediate values of one operator's kernel
  snapshot,   // the copy that a save in the background writes
  other
};
inline constexpr int memory_category_count = 8;
std::string_view name_of(MemoryCategory category);

/// Bytes in use, for each category and in total.
struct MemoryStatistics {
  std::array<std::int64_t, memory_category_count> bytes{};
  std::array<std::int64_t, memory_category_count> peak{};
  std::int64_t total = 0;
  std::int64_t total_peak = 0;
  std::int64_t cached = 0;  // freed by tensors, kept for the next ones

  /// Adds bytes of a category (negative: releases them).
  inline void book(MemoryCategory category, std::int64_t change) {
    const auto i = static_cast<std::size_t>(category);
    bytes[i] += change;
    total += change;
    peak[i] = std::max(peak[i], bytes[i]);
    total_peak = std::max(total_peak, total);
  }
  inline void reset_peaks() {
    peak = bytes;
    total_peak = total;
  }
};

/// For whom memory is allocated: for the table of who holds what.
struct MemoryOwner {
  MemoryCategory category = MemoryCategory::other;
  const std::string* module = nullptr;  // interned; null: none
};

/// Bytes that one owner holds.
struct HeldMemory {
  MemoryOwner owner;
  std::size_t bytes = 0;
};
/// A line for each category and module that holds memory, the most first.
std::string memory_table(std::span<const HeldMemory> held);

/// There is not enough memory on a device (fields().thing). The details list who holds what.
class OutOfMemory : public Error {
 public:
  explicit OutOfMemory(ErrorFields fields);
};

/// Where an allocator gets its segments from.
class MemorySource {
 public:
  virtual ~MemorySource();
  /// Null: there is none left.
  virtual void* take(std::size_t bytes) = 0;
  virtual void give_back(void* data, std::size_t bytes) noexcept = 0;
  /// Returns when no queued work uses memory that was freed.
  virtual void finish() = 0;
};

/// A caching allocator: it takes large segments from its source, splits them into blocks and joins
/// free neighbours, so that lengths which change at every step need no new segments. A block
/// belongs to the stream that it was allocated for and is reused in that stream's order: freed
/// while the stream still uses it, it may be handed out at once for later work of the same stream.
/// Uses on other streams are recorded by used_on(); reuse waits for them, on the device. When the
/// source or the cap is exhausted, all free segments go back to the source before allocate() fails.
/// Safe to use from several threads.
class BlockAllocator {
 public:
  /// `name`: of the device, for errors. The source outlives the allocator.
  BlockAllocator(std::string name, MemorySource& source);
  ~BlockAllocator();
  BlockAllocator(const BlockAllocator&) = delete;
  BlockAllocator& operator=(const BlockAllocator&) = delete;

  /// At least `bytes` (more than 0), aligned to 512 where the source's segments are. Throws
  /// OutOfMemory.
  void* allocate(std::size_t bytes, MemoryOwner owner, const Stream& stream);
  /// Null is ignored, and so, with a line in the log, is memory that is not in use.
  void free(void* data) noexcept;
  /// Work of another stream uses the memory.
  void used_on(void* data, const Stream& stream);
  /// Books the memory on another category.
  void move_to(void* data, MemoryCategory category);

  /// At most so many bytes are taken from the source; 0: no limit. What is taken already stays.
  void set_cap(std::size_t bytes);
  /// Gives free segments back to the source until at most `keep` bytes are cached.
  void trim(std::size_t keep = 0);

  MemoryStatistics statistics() const;
  void reset_peaks();
  /// Bytes taken from the source.
  std::size_t reserved() const;
  /// A line for each category and module that holds memory, the most first.
  std::string table() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
