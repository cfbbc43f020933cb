export module tessera.pipeline:builders;

import tessera.base;
import :schedule;

export namespace tessera::pipeline {

/// A way to make a schedule.
struct ScheduleKind {
  std::string_view name;
  std::string_view about;         // a line for people
  int least_stages_per_rank = 1;  // it can have
  int most_stages_per_rank = 1;   // 0: any number
};
/// Those that make_schedule() knows, in the order in which they were found.
std::span<const ScheduleKind> schedule_kinds();
/// The kind of that name; null: there is none.
const ScheduleKind* find_schedule_kind(std::string_view name);
/// Their names.
std::vector<std::string> schedule_kind_names();

/// Sizes of a pipeline.
struct PipelineSize {
  int ranks = 1;            // of the axis
  int stages_per_rank = 1;  // how many parts of the model each rank has
  int micro_batches = 1;    // of a step
};

/// The schedule of a kind, with its transfers. With V stages a rank, rank r of R has the stages r,
/// r + R, ..., except in zero_bubble_v, where it has r and 2 R - 1 - r.
///   gpipe          all forwards, then all backwards. Huang et al. (2019)
///   1f1b           one forward, one backward; keeps R - r micro-batches. Narayanan et al. (2019)
///   interleaved    1f1b with V >= 2 stages a rank: the bubble is 1 / V. Narayanan et al. (2021)
///   zero_bubble    1f1b whose weight gradients fill the bubble: (R - 1) units of 3 (R - 1) remain,
///                  and every rank keeps R micro-batches. Qi et al. (2023), ZB-H1
///   zero_bubble_v  two stages a rank, in the form of a V: 2 R halves are kept on every rank.
///                  Found by placing, at each point in time, what is ready: gradients of inputs
///                  first, then forwards, then gradients of parameters. Qi et al. (2024)
/// Errors (input): no such kind, sizes below 1, stages a rank that the kind does not have, a number
/// of micro-batches that interleaved cannot use (R must divide it).
Schedule make_schedule(std::string_view kind, const PipelineSize& size);

}  // namespace tessera::pipeline
