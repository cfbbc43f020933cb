// The symmetric windows of an emulated communicator, and the memory that they are made of.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "nccl_region.hpp"

namespace emulator {

/// Memory of ncclMemAlloc, of all communicators of this process. Each function returns what is
/// wrong
/// ("": nothing).
class WindowMemory {
 public:
  static WindowMemory& instance();

  void add(void* data, std::size_t bytes);
  /// Where it goes back to the device.
  std::string remove(void* data);
  /// Whether a window may be made of this.
  std::string check(const void* data, std::size_t bytes);
  std::uint64_t bytes();
  /// A window of it begins or ends.
  void count(const void* data, int windows);

 private:
  struct Piece {
    std::size_t bytes = 0;
    int windows = 0;
  };
  std::map<const std::byte*, Piece>::iterator find(const void* data);
  std::mutex mutex_;
  std::map<const std::byte*, Piece> pieces_;
};

/// The windows of one rank's part of a communicator.
class Windows {
 public:
  /// How many there were, ended ones too.
  std::uint64_t made() const { return all_.size(); }
  bool any() const;
  /// What is wrong with a new one there; "": nothing.
  std::string check(const void* data, std::size_t bytes) const;
  /// Returns its number, from 1.
  std::uint64_t add(const void* data, std::size_t bytes);
  /// What is wrong; "": nothing.
  std::string remove(std::uint64_t number);
  void remove_all();

  /// Where an array of a call is, in `place`: 0, or 1 + its offset in a window, and above that the
  /// window's number. Returns what is wrong with it; "": nothing.
  std::string find(const void* data, std::size_t bytes, std::uint64_t& place) const;
  static std::string describe(std::uint64_t place);

 private:
  struct One {
    const std::byte* data;
    std::size_t bytes;
    bool live = true;
  };
  std::vector<One> all_;
};

/// A step of a rank's call number `number` (from 0) of ncclCommWindowRegister: whether all ranks
/// have made it. `wrong`: how two of them differ; "": they do not.
bool window_calls_agree(const Region& region, int rank, std::uint64_t number, std::string& wrong);

}  // namespace emulator
