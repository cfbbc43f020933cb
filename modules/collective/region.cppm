module tessera.collective:region;

import tessera.base;

namespace tessera::collective {

/// Pages that several ranks map, perhaps at different addresses: positions in it travel as offsets
/// from its begin. 0 means "nowhere" (the begin holds the control block).
class Region {
 public:
  /// Anonymous pages, shared with processes forked later; private ones for a single rank. Address
  /// space only: memory is used as pages are touched. Asks for less when the machine refuses.
  static std::shared_ptr<Region> create(std::size_t bytes, bool shared);
  /// Maps `bytes` of an open shared-memory object.
  static std::shared_ptr<Region> map(int descriptor, std::size_t bytes);
  Region(std::byte* base, std::size_t bytes) : base_(base), bytes_(bytes) {}
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region();

  inline std::byte* base() const { return base_; }
  inline std::size_t bytes() const { return bytes_; }
  inline bool contains(const void* pointer) const {
    const auto distance =
        reinterpret_cast<std::uintptr_t>(pointer) - reinterpret_cast<std::uintptr_t>(base_);
    return distance < bytes_;
  }
  inline std::uint64_t offset_of(const void* pointer) const {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(pointer) - base_);
  }
  inline std::byte* at(std::uint64_t offset) const { return base_ + offset; }

 private:
  std::byte* base_;
  std::size_t bytes_;
};

/// A lock that lives in shared memory. A rank that dies while it holds it fails the run, which
/// `give_up` reports to those who wait.
class SharedLock {
 public:
  /// Whether the lock was taken; false when `give_up` became non-zero first.
  bool lock(const std::atomic<std::uint32_t>& give_up);
  inline void unlock() { held_.store(0, std::memory_order_release); }

 private:
  std::atomic<std::uint32_t> held_{0};
};

/// Which parts of a region are in use. Lives in shared memory, used under its owner's lock.
/// First fit over a table sorted by offset; neighbours merge when they are freed.
class ExtentTable {
 public:
  void reset(std::uint64_t begin, std::uint64_t end);
  /// Offset of `bytes` at `alignment` (a power of two), or 0 when there is no room.
  std::uint64_t allocate(std::uint64_t bytes, std::uint64_t alignment);
  /// Bytes that the extent at `offset` had.
  std::uint64_t release(std::uint64_t offset);

 private:
  struct Extent {
    std::uint64_t begin;
    std::uint64_t end;
    bool used;
  };
  static constexpr std::uint32_t capacity = 8192;

  void insert(std::uint32_t at, const Extent& extent);
  void erase(std::uint32_t at);

  std::uint32_t count_ = 0;
  Extent extents_[capacity];
};

/// Gives the pages of a freed extent back to the system; they read as zero afterwards.
void discard_pages(std::byte* begin, std::size_t bytes, bool shared);
/// Asks for large pages where an extent is big enough to fill them.
void advise_large_pages(std::byte* begin, std::size_t bytes);

}  // namespace tessera::collective
