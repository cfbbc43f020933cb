export module tessera.runs:step_rows;

import tessera.base;
import :training_run;

export namespace tessera::runs {

/// Rows of a step that a rank computes at once: [first, first + rows) of the step's.
struct RankRows {
  int rank = 0;
  std::int64_t micro_batch = 0;
  std::int64_t first = 0;
  std::int64_t rows = 0;
};

/// Those of all ranks of a run, by ranks. They are those of the step that a Trainer takes, built on
/// the meta device for each rank: nothing is computed, and no rank is started. Errors (input): the
/// styles do not fit the model; the batch cannot be divided.
std::vector<RankRows> rows_of_ranks(const Run& run);

}  // namespace tessera::runs
