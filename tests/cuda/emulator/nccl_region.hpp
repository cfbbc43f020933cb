// Memory that the ranks of an emulated communicator share, whether they are processes or threads.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace emulator {

/// Bytes on their way from one rank to another one.
class Channel {
 public:
  static constexpr std::uint64_t capacity = std::uint64_t{64} << 10;

  /// Moves as many bytes as there is room for, or as have come. Returns how many.
  std::size_t put(const std::byte* from, std::size_t bytes);
  std::size_t take(std::byte* to, std::size_t bytes);
  /// Whether the other rank has taken everything.
  bool empty() const { return taken_.load() == written_.load(); }

 private:
  std::atomic<std::uint64_t> written_;
  std::atomic<std::uint64_t> taken_;
  std::byte data_[capacity];
};

class Region {
 public:
  static constexpr int most_splits = 64;
  static constexpr std::size_t path_bytes = 64;
  /// A rank's call of ncclCommSplit.
  struct Split {
    enum State : int { none, called, has_region };
    std::atomic<int> state;
    int color;
    int key;
    char path[path_bytes];  // of the new communicator's region, if this rank is its first
  };
  static constexpr int most_windows = 64;
  /// A rank's call of ncclCommWindowRegister.
  struct WindowCall {
    std::atomic<int> called;
    int flags;
    std::uint64_t bytes;
    std::uint64_t collectives;  // that the rank has called before
  };
  struct Member {
    std::atomic<int> joined;  // 1 + its device
    Split splits[most_splits];
    WindowCall windows[most_windows];
  };

  /// Memory for a new communicator. It lives as long as this process, or as a rank that has opened
  /// it. Returns its path; empty: there is none.
  static std::string create();
  /// Errors (Fault): it cannot be opened.
  Region(const std::string& path, int size);
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region();

  int size() const { return size_; }
  Member& member(int rank) const { return members_[rank]; }
  Channel& channel(int from, int to) const { return channels_[from * size_ + to]; }

 private:
  int size_;
  std::size_t bytes_ = 0;
  void* memory_ = nullptr;
  Member* members_ = nullptr;
  Channel* channels_ = nullptr;
};

}  // namespace emulator
