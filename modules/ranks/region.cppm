export module tessera.ranks:region;

import tessera.base;

export namespace tessera::collective {

/// Pages that several ranks map, perhaps at different addresses: positions are exchanged as
/// offsets from its start. 0 means "nowhere" (the control block is at the start).
class Region {
 public:
  /// Anonymous pages, shared with processes forked later; private ones for a single rank. Address
  /// space only: memory is used as pages are touched. Requests less when the machine refuses.
  static std::shared_ptr<Region> create(std::size_t bytes, bool shared);
  /// Makes a region in a file without a name, whose descriptor can be sent to other processes; its
  /// pages are not in /dev/shm and not limited by its size. The descriptor closes with the region.
  static std::shared_ptr<Region> create_shareable(std::size_t bytes);
  /// Maps what another process made by create_shareable.
  static std::shared_ptr<Region> map(int descriptor, std::size_t bytes);
  Region(std::byte* base, std::size_t bytes, int descriptor = -1)
      : base_(base), bytes_(bytes), descriptor_(descriptor) {}
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region();

  inline std::byte* base() const { return base_; }
  inline std::size_t bytes() const { return bytes_; }
  inline int descriptor() const { return descriptor_; }
  inline bool contains(const void* pointer) const {
    const auto distance =
        reinterpret_cast<std::uintptr_t>(pointer) - reinterpret_cast<std::uintptr_t>(base_);
    return distance < bytes_;
  }
  inline std::uint64_t offset_of(const void* pointer) const {
    return reinterpret_cast<std::uintptr_t>(pointer) - reinterpret_cast<std::uintptr_t>(base_);
  }
  /// Offsets wrap: where a rank holds one piece of a range, the range may begin before the region.
  inline std::byte* at(std::uint64_t offset) const {
    return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(base_) + offset);
  }

 private:
  std::byte* base_;
  std::size_t bytes_;
  int descriptor_;
};

/// Sleeps until the 32-bit word in shared memory is not `seen` any more and somebody says so, at
/// most `seconds`.
void sleep_on(const void* word, std::uint32_t seen, double seconds);
/// Wakes at most `sleepers` of those that sleep on the word.
void wake_on(const void* word, int sleepers);

/// A lock that lives in shared memory and knows its owner, so that a wait for it finds out when the
/// owner has died. Whoever waits sleeps: with many ranks on few cores, the owner needs the core.
class SharedLock {
 public:
  inline bool try_lock(int rank) { return take(static_cast<std::uint32_t>(rank) + 1); }
  /// Waits; `look(owner)` is called at least every tenth of a second while the rank `owner` has it,
  /// and ends the wait by throwing.
  template <class Look>
  void lock(int rank, const Look& look) {
    if (try_lock(rank)) {
      return;
    }
    while (!sleep(rank, 0.1)) {
      if (const int owner = this->owner(); owner >= 0) {
        look(owner);
      }
    }
  }
  inline void unlock() {
    if ((word_.exchange(0, std::memory_order_release) & has_sleepers) != 0) {
      wake_on(&word_, 1);
    }
  }
  /// The rank that holds it; -1 when it is free.
  inline int owner() const {
    return static_cast<int>(word_.load(std::memory_order_relaxed) & ~has_sleepers) - 1;
  }

 private:
  static constexpr std::uint32_t has_sleepers = std::uint32_t{1} << 31;
  inline bool take(std::uint32_t owner) {
    std::uint32_t none = 0;
    return word_.compare_exchange_strong(none, owner, std::memory_order_acquire);
  }
  /// Sleeps until the lock may be free; whether this rank has taken it then.
  bool sleep(int rank, double seconds);

  std::atomic<std::uint32_t> word_{0};  // rank + 1, and whether others sleep
};

/// Which parts of a region are in use. Lives in the region, used under the lock of its Control.
/// First fit over a table sorted by offset; neighbours merge when they are freed. The table itself
/// is one of the extents, and moves to a larger one when it is full.
class ExtentTable {
 public:
  /// [begin, end) of the region at `base` is free.
  void reset(std::byte* base, std::uint64_t begin, std::uint64_t end);
  /// Offset of `bytes` at `alignment` (a power of two), or 0 when there is no room.
  std::uint64_t allocate(std::byte* base, std::uint64_t bytes, std::uint64_t alignment);
  /// Frees the extent at `offset`; returns its bytes, 0 if there is none.
  std::uint64_t release(std::byte* base, std::uint64_t offset);
  inline std::uint64_t used_bytes() const { return used_bytes_; }

 private:
  struct Extent {
    std::uint64_t begin;
    std::uint64_t end;
    bool used;
  };

  inline Extent* entries(std::byte* base) const { return reinterpret_cast<Extent*>(base + table_); }
  std::uint64_t place(std::byte* base, std::uint64_t bytes, std::uint64_t alignment);
  bool grow(std::byte* base);
  void insert(Extent* extents, std::uint32_t at, const Extent& extent);
  void erase(Extent* extents, std::uint32_t at);

  std::uint64_t table_ = 0;
  std::uint64_t used_bytes_ = 0;
  std::uint32_t capacity_ = 0;
  std::uint32_t count_ = 0;
};

/// Returns the pages of a freed extent to the system; they read as zero afterwards.
void discard_pages(std::byte* begin, std::size_t bytes, bool shared);
/// Requests large pages where an extent is big enough to fill them.
void advise_large_pages(std::byte* begin, std::size_t bytes);

}  // namespace tessera::collective
