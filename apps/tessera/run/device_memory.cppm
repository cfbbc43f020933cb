export module tessera.app.run:device_memory;

import tessera.base;
import tessera.tensor;
import tessera.app.base;
import tessera.app.config;

export namespace tessera::app {

/// A rank's step, as its memory is planned.
struct PlannedStep {
  const MemoryStatistics& memory;
  std::int64_t least =
      0;                  // bytes, where a captured step needs fewer than `memory` has in all; or 0
  std::int64_t rows = 0;  // sequences of a rank in a step
  std::int64_t micro = 0;  // of which at once
};

/// Error (input): a device of this machine has less memory than the step needs. Devices whose
/// memory is unknown are left out. Before the ranks start.
void check_device_memory(const Config& config, const PlannedStep& step);

}  // namespace tessera::app
