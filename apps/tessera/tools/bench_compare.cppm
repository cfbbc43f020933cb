export module tessera.app.tools:bench_compare;

import tessera.app.base;
import tessera.app.commands;

export namespace tessera::app {

/// `tessera bench compare`: the same training here and under PyTorch, in turn. Errors (input):
/// those of a run's config and data, torch_layout and Torch; the run has fewer steps.
int run_bench_compare(const TrainArguments& arguments, const BenchCompareArguments& compared);

}  // namespace tessera::app
