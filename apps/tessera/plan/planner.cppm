export module tessera.app.plan:planner;

import tessera.program;
import tessera.app.base;
import tessera.app.config;
import tessera.runs;
import :failures;
import :hardware;
import :measure;
import :simulate;
import :sums;

// Puts steps of runs in time, on one kind of ranks.

export namespace tessera::app {

class Planner {
 public:
  /// `file`: rates of the hardware; empty: this machine, whose kernels are measured as they are
  /// needed. `config`: of the ranks and threads of all runs to come. Errors (input): see
  /// read_hardware; a run for another device than the CPU without a file.
  Planner(const runs::RunSpec& config, const std::string& file);

  const Hardware& hardware() const { return hardware_; }
  /// Whether kernels are measured: nothing bounds their rates.
  bool measures() const { return measured_.has_value(); }
  /// Whether kernels wait for the host that calls them: in eager steps on the CPU that is measured.
  bool waits_for_host(const runs::RunSpec& config) const {
    return measures() && !config.graph.capture;
  }
  /// How often a rank fails in a year, instead of what the file says.
  void set_failures(double per_rank_year) { hardware_.failures.per_rank_year = per_rank_year; }
  /// Of measured kernels: see MeasuredKernels.
  void measure_again();
  /// Seconds of each kernel of a rank's program; 0 of what is none.
  ByPlace<double> kernel_seconds(const Program& program);
  /// Of `program`, a rank's step.
  SimulatedStep simulated(const Program& program);
  /// Its sums, with the time of the host where kernels wait for it: in an eager step on a CPU.
  StepTimes times_of(const runs::Run& run, const runs::StepSetup& setup, const Program& program,
                     const SimulatedStep& step) const;
  /// A step of a run with this trial. Of many micro-batches it is what two and three of them say:
  /// each one more adds what the third one adds. Errors: see capture_step.
  StepTimes step_of(const runs::Run& run, const runs::Trial& trial);

 private:
  Hardware hardware_;
  std::optional<MeasuredKernels> measured_;
};

/// A rank's step as it is executed: captured and changed by passes, or as it is written. `setup`:
/// the run's, or one with fewer rows.
Program step_program(const runs::Run& run, const runs::StepSetup& setup);

/// Adds what keeping states in memory costs at the ends of steps: the copy of the state, and the
/// wait for the second home where its link is slower than the steps.
void add_keeping(StepTimes& step, const Hardware& hardware, const runs::Run& run,
                 const runs::Trial& trial);

/// What failures cost a run, with the rates of the hardware's [failures]: a rank writes its own
/// part of what is trained and of the optimizer's state. A save in the background stops the run
/// for the copy alone, and a failure takes on average the work of as long as the write lasts more.
FailingRun failing_run(const Hardware& hardware, const runs::RunSpec& config,
                       const runs::Trial& trial, double step_seconds);

}  // namespace tessera::app
