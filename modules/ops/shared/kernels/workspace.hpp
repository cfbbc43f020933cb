#pragma once
// Memory for the intermediate values of a kernel: what Op::workspace says and Call::workspace is.
// Kernels have no other memory that grows with their operands.

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <type_traits>

#include "parallel.hpp"

namespace tessera::kernels {

/// A cursor over memory from which a kernel takes its arrays in order. Without memory it only
/// counts: what is taken is null, and the kernel returns before it touches an operand or a result.
/// So one function both says how much it needs and takes it:
///
///     void kernel(Workspace& workspace, std::int64_t n, const float* x, float* y) {
///       float* sums = workspace.take<float>(n);
///       if (workspace.counts()) return;
///       ...
///
/// Memory of intermediate values. What a kernel takes must depend on shapes, types and the number
/// of threads only, not on values.
class Workspace {
 public:
  static constexpr std::size_t kAlignment = 64;

  /// Counts, for a call with the calling thread's threads().
  Workspace() : counts_(true) {}
  /// Takes from `memory`, which is aligned to 64.
  Workspace(std::byte* memory, std::size_t bytes) : memory_(memory), size_(bytes) {}

  [[nodiscard]] bool counts() const { return counts_; }
  /// The most that was taken at one time, in bytes.
  [[nodiscard]] std::size_t bytes() const { return most_; }

  /// An array of `count` elements, aligned to 64, not initialised; null where count is 0. Throws
  /// std::logic_error where less is left: the kernel takes more than it has announced.
  template <class T>
  T* take(std::int64_t count) {
    static_assert(std::is_trivially_destructible_v<T>);
    if (count == 0) return nullptr;
    return reinterpret_cast<T*>(take_bytes(static_cast<std::size_t>(count), sizeof(T)));
  }

  /// Gives back at its end what was taken within it.
  class Scope {
   public:
    explicit Scope(Workspace& workspace) : workspace_(workspace), used_(workspace.used_) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { workspace_.used_ = used_; }

   private:
    Workspace& workspace_;
    std::size_t used_;
  };

  /// A part for each thread that may run the body of a parallel_for.
  class Parts {
   public:
    /// The part of the thread that calls this, in the body. Loops within it run inline, so the part
    /// is a workspace for one thread.
    [[nodiscard]] Workspace mine() const {
      const int number = threads_ == 1 ? 0 : thread_number();
      if (number >= threads_) too_many_threads();
      Workspace part(memory_ + bytes_ * static_cast<std::size_t>(number), bytes_);
      part.threads_ = 1;
      return part;
    }

   private:
    friend class Workspace;
    std::byte* memory_ = nullptr;
    std::size_t bytes_ = 0;
    int threads_ = 1;
  };

  /// Takes parts with room for what `take_arrays(Workspace&)` takes.
  template <class Take>
  Parts per_thread(const Take& take_arrays) {
    Workspace one;
    one.threads_ = 1;
    take_arrays(one);
    Parts parts;
    parts.bytes_ = one.bytes();
    parts.threads_ = threads_ == 0 ? kernels::threads() : threads_;
    parts.memory_ = take<std::byte>(static_cast<std::int64_t>(parts.bytes_) * parts.threads_);
    return parts;
  }

 private:
  std::byte* take_bytes(std::size_t count, std::size_t size) {
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(count, size, &bytes) ||
        __builtin_add_overflow(bytes, kAlignment - 1, &bytes)) {
      too_large();
    }
    bytes &= ~(kAlignment - 1);
    const std::size_t first = used_;
    if (__builtin_add_overflow(used_, bytes, &used_)) too_large();
    if (used_ > most_) most_ = used_;
    if (counts_) return nullptr;
    if (used_ > size_) used_up();
    return memory_ + first;
  }
  [[noreturn]] static void used_up() {
    throw std::logic_error("workspace: a kernel takes more than it has announced");
  }
  [[noreturn]] static void too_large() {
    throw std::length_error("workspace: more bytes than can be addressed");
  }
  [[noreturn]] static void too_many_threads() {
    throw std::logic_error("workspace: a loop has more threads than the workspace was made for");
  }

  std::byte* memory_ = nullptr;
  std::size_t size_ = 0;
  std::size_t used_ = 0;
  std::size_t most_ = 0;
  int threads_ = 0;  // that share it; 0: the calling thread's, looked up where it matters
  bool counts_ = false;
};

}  // namespace tessera::kernels
