// Kernels: each thread of a block is a fiber; blocks run one after the other, on one thread of the
// host. Which block and which thread is next is drawn from a seed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "fiber.hpp"

namespace emulator {

struct Extent {
  unsigned x = 1, y = 1, z = 1;
  std::size_t count() const { return std::size_t{x} * y * z; }
};

/// A library of kernels that was loaded.
struct KernelLibrary {
  std::string path;
  void* handle = nullptr;
  std::span<std::byte> shared;                     // all of its kernels' shared memory
  std::vector<std::span<const std::byte>> images;  // its code, constants and variables
};

struct Kernel {
  std::string name;
  Entry entry = nullptr;
  const KernelLibrary* library = nullptr;
};

struct Launch {
  const Kernel* kernel = nullptr;
  Extent grid, block;
  std::size_t memory = 0;            // bytes of shared memory besides the kernel's own
  std::vector<std::byte> structure;  // the kernel's parameter
  std::string stream;                // for errors: "stream 3 of device 0"
};

/// What a launch may give of shared memory: that of the GPUs which have the least.
inline constexpr std::size_t most_launched_bytes = 99 * 1024;
/// That memory, of which the running launch has the first bytes.
std::span<std::byte> launched_memory();

/// Runs a launch. Errors (Fault): those that the kernel's threads make; see docs/emulator.md.
void run_launch(const Launch& launch, std::uint64_t seed);

/// The running thread's place, for the check of memory.
struct RunningThread {
  const Launch* launch = nullptr;  // null: no kernel runs
  std::uint32_t block = 0;
  std::uint32_t thread = 0;
  std::uint32_t barriers = 0;       // that the block has passed
  std::uint32_t warp_barriers = 0;  // that its warp has
};
/// Kernels run on one thread of the host only.
inline constinit RunningThread running;
/// The stacks of the running block's threads.
std::span<const std::byte> fiber_stacks();

/// Called by a thread of a kernel: ends the kernel with a fault. Does not return.
[[noreturn]] void fault_in_kernel(const std::string& what);

}  // namespace emulator
