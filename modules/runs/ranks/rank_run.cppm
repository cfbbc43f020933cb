export module tessera.runs:rank_run;

import tessera.base;
import tessera.collective;
import :training_run;

export namespace tessera::runs {

/// Result of train_rank where all steps are done, and not all other outputs could be written.
constexpr int incomplete_code = 3;

/// Runs one rank: trains from `start` on, and writes checkpoints, metrics, progress and trace.
/// Returns its exit code: 0, incomplete_code, or that of an interrupt. `step_flops`: of the whole
/// model and batch.
int train_rank(const Run& run, double step_flops, const StartPoint& start,
               collective::World& world);

}  // namespace tessera::runs
