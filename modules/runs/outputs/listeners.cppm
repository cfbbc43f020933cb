export module tessera.runs:listeners;

import tessera.base;
import tessera.collective;
import tessera.sinks;
import :metrics;
import :spec;

// Who is told what a run does: rank 0 tells, each in its order.

export namespace tessera::runs {

/// A step that was taken.
struct StepReport {
  const StepMetrics& metrics;
  double gemm_share = 0;  // of the machine's ceiling
  bool again = false;     // ranks that have died since have told it already
};

/// Listens to one run. An output that cannot be written is its own concern (try_side_work): what it
/// throws ends the run.
class RunListener {
 public:
  virtual ~RunListener();
  virtual void step(const StepReport& step);
  virtual void note(const std::string& text);
  /// A phase of a step (0: of none) that ends now.
  virtual void span(const sinks::PhaseSpan& span);
  /// No further step follows; notes may.
  virtual void end_steps();
  virtual void finish(const sinks::RunEnd& end);
};

/// All listeners of a run, in their order.
class RunListeners {
 public:
  void add(std::unique_ptr<RunListener> listener);
  void step(const StepReport& step);
  void note(const std::string& text);
  void span(const sinks::PhaseSpan& span);
  void end_steps();
  /// Once.
  void finish(const sinks::RunEnd& end);

 private:
  std::vector<std::unique_ptr<RunListener>> all_;
  bool finished_ = false;
};

/// What listeners must know of the run.
struct ListenerSetup {
  const RunSpec& config;
  std::string identity = {};  // see run_identity
  std::int64_t begun = 0;     // steps that were done when the run began
  std::int64_t done = 0;      // that are done where these ranks begin
  bool again = false;         // ranks before these have told of it
};

/// The metrics file, TensorBoard's event file, the progress lines and the sinks, as the config has
/// them. Errors (input), with the key: a file cannot be written; a sink cannot be made.
RunListeners listeners_of(const ListenerSetup& run);

/// The same for all parts of one run, before and after it was continued: it follows from the folder
/// of its checkpoints. Without a folder, each start is another run.
std::string run_identity(const RunSpec& config);

/// Makes all sinks. Errors (input), with the key: there is no such sink; its options; with
/// `begins`, it could not begin (a port is taken).
void check_sinks(const RunSpec& config, bool begins);

/// The numbers of a step by the names of the metrics file.
sinks::NamedNumbers numbers_of(const StepMetrics& metrics);

}  // namespace tessera::runs
