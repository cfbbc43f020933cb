export module tessera.tensor:storage;

import tessera.base;
import tessera.device;

export namespace tessera {

/// Work in progress that will fill a storage's memory, such as a collective that was issued. It
/// goes away with the storage, and must have ended when its destructor returns.
class PendingWork {
 public:
  PendingWork() = default;
  PendingWork(const PendingWork&) = delete;
  PendingWork& operator=(const PendingWork&) = delete;
  virtual ~PendingWork();
};

/// Bytes that tensors share. It keeps its identity when its memory is released and filled again (an
/// unsharded parameter between two uses), and counts the writes by operators (`version`), so that
/// autograd notices a saved tensor that was overwritten.
class Storage {
 public:
  /// Memory from the caching allocator, or, in a PeersReadScope, memory that the other ranks can
  /// read, if it is large enough to gain by it; counted under the scope's category; not
  /// initialised.
  static IntrusivePointer<Storage> allocate(std::size_t bytes);
  /// Memory of a device that is not the CPU, for its current stream; not initialised.
  static IntrusivePointer<Storage> allocate_on(Device device, std::size_t bytes);
  /// Memory that something else owns; `keep_alive` is held as long as the storage exists.
  static IntrusivePointer<Storage> borrow(void* data, std::size_t bytes,
                                          std::shared_ptr<void> keep_alive = nullptr);
  /// Some bytes of the memory of `whole`, with a version and work in progress of their own. On a
  /// device, they go with the last of their storages; on the CPU, `whole` must live as long.
  static IntrusivePointer<Storage> part_of(const Storage& whole, std::int64_t offset,
                                           std::size_t bytes);
  /// No memory: the storage of meta tensors, which would have `bytes`. In a PlannedMemoryScope they
  /// are booked as if it had some.
  static IntrusivePointer<Storage> none(std::size_t bytes = 0);

  /// The address in the device's memory, which the host may be unable to access.
  inline void* data() const { return data_; }
  inline Device device() const { return device_; }
  /// Work that is queued in the stream uses the memory. For memory of devices; it is not reused
  /// before that work is done.
  inline void used_on(const Stream& stream) {
    if (!(device_ == cpu) && keep_alive_) {
      static_cast<DeviceMemory*>(keep_alive_.get())->used_on(stream);
    }
  }
  inline std::size_t bytes() const { return bytes_; }
  inline std::uint64_t version() const { return version_; }
  inline void bump_version() { ++version_; }
  /// For memory that was released and was written again with the values that it had at that
  /// version.
  inline void set_version(std::uint64_t version) { version_ = version; }

  /// Releases the memory (data() is then null), or allocates memory of the same size again; views
  /// of the storage remain views of it. Only for memory from the allocator, and for none().
  void release_memory();
  void restore_memory();
  /// Books the memory on another category from now on. Borrowed memory is not booked.
  void move_to(MemoryCategory category);
  /// The category that the memory is booked on; of borrowed memory, nothing.
  inline MemoryCategory category() const { return category_; }
  /// For none(): whether it would have memory.
  inline bool has_memory() const {
    return source_ == Source::none ? !released_ : data_ != nullptr || bytes_ == 0;
  }

  /// The work in progress that fills the memory; null: none. set_pending() ends what was there.
  inline PendingWork* pending() const { return pending_.get(); }
  void set_pending(std::unique_ptr<PendingWork> work);
  /// Takes it away: it is complete.
  std::unique_ptr<PendingWork> take_pending();

  /// A number that a mode may give a storage to know it again; 0 at first. An address would not do:
  /// another storage may get it.
  inline std::uint64_t tag() const { return tag_; }
  inline void set_tag(std::uint64_t tag) { tag_ = tag; }

  /// Whether no other storage has the bytes, as they are not borrowed (or there are none).
  inline bool owns_memory() const { return source_ != Source::borrowed || bytes_ == 0; }
  /// The number of a pass over tensors that looks for those of one storage.
  static std::uint64_t new_pass();
  /// Marks the storage as seen in a pass; false if the pass has seen it before. Passes of two
  /// threads can overwrite each other's marks, so that a storage looks new twice. That is harmless:
  /// two threads must not use a storage at the same time if one of them writes it.
  inline bool mark(std::uint64_t pass) {
    if (__atomic_load_n(&mark_, __ATOMIC_RELAXED) == pass) [[unlikely]] {
      return false;
    }
    __atomic_store_n(&mark_, pass, __ATOMIC_RELAXED);
    return true;
  }
  /// How many tensors hold it.
  inline int references() const { return __atomic_load_n(&references_, __ATOMIC_ACQUIRE); }
  inline void retain() { __atomic_fetch_add(&references_, 1, __ATOMIC_RELAXED); }
  inline void release() {
    if (__atomic_fetch_sub(&references_, 1, __ATOMIC_ACQ_REL) == 1) {
      destroy();
    }
  }

 private:
  /// Whose memory it is.
  enum class Source : std::uint8_t {
    borrowed,   // on a device, keep_alive_ is the DeviceMemory that it is a part of
    allocator,  // the CPU's
    peers,      // keep_alive_ is memory that peers can read, or empty while it is released
    device,     // keep_alive_ is a DeviceMemory, or empty while it is released
    none        // of meta tensors
  };

  Storage() = default;
  ~Storage();
  void allocate_device_memory();
  /// Takes memory that peers can read; false: there is none.
  bool allocate_peer_memory();
  void free_memory() noexcept;
  void book_planned(std::int64_t bytes) noexcept;
  void destroy();

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint64_t version_ = 0;
  std::uint64_t mark_ = 0;  // the last pass that has seen it
  std::uint64_t tag_ = 0;
  std::unique_ptr<PendingWork> pending_;
  int references_ = 1;
  Source source_ = Source::borrowed;
  Device device_;
  bool released_ = false;     // of none()
  std::int64_t planned_ = 0;  // what restore_memory() books for none()
  std::int64_t booked_ = 0;   // of it at present
  MemoryCategory category_ = MemoryCategory::other;
  std::shared_ptr<void> keep_alive_;
};

}  // namespace tessera
