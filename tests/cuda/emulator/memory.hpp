// The memory of the emulated devices and the pinned memory of the host.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace emulator {

/// Memory is mapped twice: at the addresses that the host knows, without any permission, and at
/// others, which kernels get. Addresses are not given twice until the range is used up, so that an
/// access to freed memory is found.
class Memory {
 public:
  /// Bytes of one device. Memory that nothing uses (Modes::only_lists) costs nothing.
  static std::size_t device_bytes() {
    return std::size_t{4} << (std::getenv("TESSERA_EMULATOR_LAUNCHES") == nullptr ? 30 : 36);
  }

  static Memory& instance();

  /// Memory full of NaN, aligned to 4096 and at least as far from the next; null: the device has no
  /// more.
  void* allocate(int device, std::size_t bytes);
  /// Takes bytes of a device; false: it has not so many.
  bool take(int device, std::size_t bytes);
  void give_back(int device, std::size_t bytes);
  std::size_t used(int device);
  /// False: nothing begins there.
  bool free(void* data);
  void* allocate_pinned(std::size_t bytes);
  bool free_pinned(void* data);

  bool is_device(const void* data) const { return inside(closed_, data); }
  bool is_pinned(const void* data, std::size_t bytes);
  /// Where the emulator and kernels find what the host knows by this address.
  std::byte* opened(const void* data) const {
    return open_ + (static_cast<const std::byte*>(data) - closed_);
  }
  /// Replaces the devices' addresses among the words of a structure by those for kernels.
  void open_addresses(std::byte* structure, std::size_t bytes) const;

  /// A kernel's address, of devices' memory.
  bool is_open(const void* data) const { return inside(open_, data); }
  std::size_t offset_of(const void* opened) const {
    return static_cast<std::size_t>(static_cast<const std::byte*>(opened) - open_);
  }
  /// What is wrong with an access there, by the address that the host knows; empty: nothing.
  std::string check(const void* closed, std::size_t bytes);
  std::string check_open(const void* opened, std::size_t bytes) {
    return check(closed_ + offset_of(opened), bytes);
  }
  /// The begin and end, as offsets, of the live allocation at or before a kernel's address; 0, 0:
  /// there is none. Valid until frees() changes.
  std::pair<std::size_t, std::size_t> live_piece(const void* opened);
  std::uint64_t frees() const { return frees_; }
  /// Bytes of the range of all devices' addresses.
  static std::size_t range() { return 16 * device_bytes(); }

 private:
  Memory();
  bool inside(const std::byte* begin, const void* data) const {
    return data >= begin && data < begin + range_;
  }

  struct Piece {
    std::size_t bytes = 0;
    int device = 0;
    bool live = true;
  };
  std::mutex mutex_;
  std::byte* open_ = nullptr;
  std::byte* closed_ = nullptr;
  const std::size_t range_ = range();
  std::size_t next_ = 4096;
  std::atomic<std::uint64_t> frees_ = 0;
  std::map<std::size_t, Piece> pieces_;  // freed ones too
  std::map<const std::byte*, std::size_t> pinned_;
  std::map<int, std::size_t> used_;  // by device
};

}  // namespace emulator
