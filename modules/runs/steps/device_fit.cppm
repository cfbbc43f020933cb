export module tessera.runs:device_fit;

import tessera.base;
import tessera.tensor;
import :spec;

// Whether a device can run a step, before the ranks start.

export namespace tessera::runs {

/// Operators by name that have no kernel on the kind of device for which the thread plans, and a
/// module that calls each ("": none).
using MissingKernels = std::map<std::string, std::string>;
/// Finds them among the calls of a step within its ModeScope.
class KernelSearch final : public Mode {
 public:
  Tensors call(const Call& call, NextCall& next) override;
  const MissingKernels& missing() const { return missing_; }

 private:
  MissingKernels missing_;
};
/// Error (input): there are such operators; it names them all.
void check_device_kernels(const RunSpec& config, const MissingKernels& missing);

/// The peaks in all and by category: "1.3 MiB: parameter 0.2 MiB, ...".
std::string memory_text(const MemoryStatistics& memory);

/// A rank's step, as its memory is planned.
struct StepMemory {
  const MemoryStatistics& memory;
  std::int64_t least =
      0;                  // bytes, where a captured step needs fewer than `memory` has in all; or 0
  std::int64_t rows = 0;  // sequences of a rank in a step
  std::int64_t micro = 0;  // of which at once
};

/// Error (input): a device of this machine has less memory than the step needs. Devices whose
/// memory is unknown are left out.
void check_device_memory(const RunSpec& config, const StepMemory& step);

}  // namespace tessera::runs
