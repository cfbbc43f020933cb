export module tessera.runs:progress;

import tessera.base;
import tessera.collective;
import :metrics;

// The progress lines of a run.

export namespace tessera::runs {

/// Nothing where a share of a measured ceiling is above 1: the ceiling was measured while the
/// machine did something else, and no share of it means anything.
std::optional<double> reliable_share(double share);

/// A step for the display: its metrics and what only the display needs.
struct ProgressLine {
  StepMetrics metrics;
  std::int64_t steps = 0;            // of the whole run
  std::optional<double> gemm_share;  // of the machine's GEMM ceiling, 0 to 1; reliable
  double seconds_left = 0;
};

/// "step 120/300  loss 2.3456  grad 0.81  8.1 k tokens/s  62% of GEMM  312.0 MiB  1:05 left".
std::string format_progress(const ProgressLine& line);

/// The line cut to `columns` characters.
std::string fit_line(const std::string& line, int columns);

/// Where the lines go.
struct ProgressOutput {
  std::function<void(const std::string& text)> write = {};
  std::function<int()> columns = {};  // of a terminal, as it is now; null: it is none
};
/// To stdout, which TERM=dumb makes no terminal.
ProgressOutput progress_on_stdout(const collective::MachineOptions& machine = {});

/// On a terminal one line that is overwritten; elsewhere a line every `every` steps, and at the
/// first, the last and every validated step. Used by rank 0 only.
class Progress {
 public:
  /// `first` steps are done already (a resumed run). Whether `out` is a terminal decides the form.
  Progress(std::int64_t first, std::int64_t steps, std::int64_t every,
           ProgressOutput out = progress_on_stdout());
  Progress(Progress&&) = delete;
  ~Progress();

  /// After a share that is not reliable, none is shown any more, and a line says so.
  void step(const StepMetrics& metrics, std::optional<double> gemm_share = std::nullopt);
  /// Writes a whole line ("checkpoint saved: ...") above the live one.
  void note(const std::string& text);
  /// Ends the live line; the destructor does it too.
  void finish();

 private:
  /// The line that is overwritten, with `text` above it.
  void write_live(const std::string& text);

  bool shares_ = true;  // until one of them is not reliable
  std::int64_t first_;
  std::int64_t steps_;
  std::int64_t every_;
  ProgressOutput out_;
  bool line_open_ = false;
  std::string shown_;
  std::int64_t shown_steps_ = 0;  // of this object
  double seconds_per_step_ = 0;   // smoothed
};

}  // namespace tessera::runs
