export module tessera.runs:rates;

import tessera.base;

// Costs of a captured step that keeps a budget of memory.

export namespace tessera::runs {

/// A second's worth, the same on all ranks; see graph::ComputeRates and graph::OffloadRates.
struct StepRates {
  double flops = 5e10;
  double bytes = 5e9;
  double stored = 1e9;
  double fetched = 1e9;
};

}  // namespace tessera::runs
