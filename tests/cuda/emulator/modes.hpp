// In what the emulated driver behaves as some driver does, on some machine.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace emulator {

/// Drawn by the number in TESSERA_EMULATOR_MODES. 0, also without it: a driver of a GPU on a PCI
/// bus with the usual queues.
struct Modes {
  static Modes& instance();

  std::uint64_t seed = 0;
  /// Tasks that a stream's queue takes. Who adds another one waits for room.
  std::atomic<std::size_t> places = 1024;
  /// Copies to and from ordinary memory of the host return when they are done, after all work of
  /// their stream. Else they read and write that memory when the stream reaches them, as on
  /// machines whose GPUs reach all memory.
  std::atomic<bool> copies_block = true;
  /// A kernel's first launch waits for all streams of the device, unless CUDA_MODULE_LOADING is
  /// EAGER when cuInit is called.
  std::atomic<bool> lazy_loading = true;

  /// Launches are listed in the file TESSERA_EMULATOR_LAUNCHES, and devices do nothing: memory of
  /// any size, without values.
  bool only_lists = false;
  /// `elements`: of all rows; 0: not known.
  void list(const std::string& kernel, unsigned blocks, unsigned threads,
            std::uint64_t elements) const;

  /// "TESSERA_EMULATOR_MODES=3 (a stream's queue takes 12 tasks, ...)".
  std::string describe() const;

  /// What a context takes of its device.
  std::size_t context_bytes = std::size_t{700} << 20;

 private:
  explicit Modes(std::uint64_t drawn_by);
};

}  // namespace emulator
