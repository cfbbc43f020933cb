export module tessera.passes:recompute;

import tessera.base;
import tessera.tensor;
import tessera.program;
import tessera.execute;

export namespace tessera::graph {

/// Bytes of the device's memory that a planned step of the program needs at once, inputs included.
/// `compiled`: with compiled kernels, where a compiler is there.
std::int64_t planned_bytes(const Program& program, bool compiled = false);
/// Bytes of other memory that a step of the program needs: its parts are used again for values of
/// equal size.
std::int64_t bytes_elsewhere(const Program& program);

/// Bytes a second that are copied into other memory and back.
struct OffloadRates {
  double stored = 1e9;
  double fetched = 1e9;
};

/// Costs of a value that is not kept, roughly: only which one it is depends on them.
struct ComputeRates {
  double flops = 5e10;  // of products, a second
  double bytes = 5e9;   // that other calls read and write, a second
};

/// Options of fitting a program into a budget of memory.
struct FitOptions {
  ComputeRates computing = {};
  std::optional<OffloadRates> offloading = {};  // none: there is no other memory
  /// That the step needs besides, for what it keeps until the next one; of the budget.
  std::int64_t kept = 0;
};

/// Measures them in some hundredths of a second, rounded to powers of two. `memory`: null: none.
/// Errors: those of the other memory.
FitOptions measured_rates(MemoryPlace* memory);

/// How a program keeps within a budget of memory.
struct MemoryFit {
  std::int64_t bytes = 0;  // that a planned step needs at once, inputs included
  int calls = 0;           // that are made again
  int stored = 0;          // values that are copied into other memory
  int fetched = 0;         // copies from there
};

/// Changes a program so that a planned step of it needs at most `budget` bytes at once, inputs
/// included: values are dropped after a use, and computed again or fetched from other memory before
/// the next one. Without other memory, products are only computed again where other calls do not
/// suffice; with it, what costs less time is done. Error (input): the budget cannot be met; the
/// least that was found is named, and the program stays as it was.
MemoryFit fit_memory(Program& program, std::int64_t budget, const FitOptions& options = {});

}  // namespace tessera::graph
