// Stacks on which a kernel's threads run, one at a time, and the switch between them.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

namespace emulator {

/// A kernel's entry. Its one parameter, a structure, is on the stack (see Fibers::begin).
using Entry = void (*)();

/// The stacks of the threads of one block. Memory is used as stacks are. Error (Fault): there are
/// no addresses left.
class Fibers {
 public:
  static constexpr std::size_t most_fibers = 1024;
  static constexpr std::size_t stack_bytes = std::size_t{1} << 17;

  Fibers();
  ~Fibers();
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;

  /// Makes stack `index` begin with entry(structure) when it is first continued; `bytes` is more
  /// than 16: the calling convention then passes the structure on the stack. `end` follows when the
  /// entry returns, and must not return.
  void begin(std::size_t index, Entry entry, const void* structure, std::size_t bytes,
             void (*end)());
  /// Runs stack `index` until it calls leave(), on the caller's stack otherwise.
  void run(std::size_t index);
  /// Called on stack `index`: continues what called run().
  void leave(std::size_t index);
  /// The memory of all stacks.
  std::span<const std::byte> stacks() const { return {memory_, most_fibers * stack_bytes}; }

 private:
  std::byte* memory_ = nullptr;
  std::vector<void*> saved_;
  void* host_ = nullptr;
};

}  // namespace emulator
