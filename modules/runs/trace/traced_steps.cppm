export module tessera.runs:traced_steps;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import :recorder;
import :spec;

// Which steps of a run are traced.

export namespace tessera::runs {

/// The first and the last step, counted from 1.
struct TraceRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};
/// The steps that a run traces which continues after step `done`: trace.steps, else its second to
/// fourth step, as far as it has them: the first one is slower than the others. Nothing: no trace
/// is requested, or no step is left. Error (input): trace.steps begins before the run does.
std::optional<TraceRange> trace_range(const RunSpec& config, std::int64_t done);

/// Records those steps and writes the file after the last of them. Every rank calls it.
class TraceSteps {
 public:
  /// `mesh`: of the run, as the file says it.
  TraceSteps(const RunSpec& config, std::string mesh, std::int64_t done, collective::World& world);

  /// `done`: the steps done. Begins the recording with its first step.
  void before_step(std::int64_t done);
  /// Ends it with its last step, or where the run stops before that. Returns whether the file was
  /// written; see write_trace.
  bool after_step(std::int64_t done, bool stops);

 private:
  const RunSpec& config_;
  std::string mesh_;
  collective::World& world_;
  std::optional<TraceRange> range_;
  std::unique_ptr<TraceRecorder> recorder_;
};

}  // namespace tessera::runs
