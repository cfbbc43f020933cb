export module tessera.app.tools:roofline;

import tessera.program;
import tessera.app.base;
import tessera.app.plan;
import tessera.app.commands;

// The least time of a captured step on a device of given rates.

export namespace tessera::app {

/// Calls of one operator that the same thing limits.
struct OperatorCost {
  std::string op;
  Bound bound = Bound::memory;
  std::int64_t calls = 0;
  double flops = 0;
  double bytes = 0;
  double seconds = 0;   // of each call the longer one of computing and of moving bytes
  double expected = 0;  // seconds of all calls, derived from the machine code of an H100's kernels
  double measured = 0;  // seconds of all calls, where they were measured
};

/// The least time of a rank's step, if each kernel reads its operands and writes its results once.
struct Roofline {
  std::int64_t tokens = 0;              // of the rows that the rank has
  std::vector<OperatorCost> operators;  // the longest time first
  std::int64_t launches = 0;
  std::int64_t collectives = 0;
  double received = 0;               // bytes from other ranks
  double launch_seconds = 0;         // of all launches
  double collective_seconds = 0;     // if nothing of them is hidden
  graph::CategoryBytes memory = {};  // at the peak, with what exists before the step
  std::int64_t peak = 0;
  bool is_measured = false;

  double seconds(Bound bound) const;
  double flops() const;
  double bytes() const;
  double measured() const;
  /// The same as best(), of kernels as they are expected.
  double expected() const;
  /// Of kernels and launches; collectives are hidden, or last longer.
  double best() const;
  /// With collectives, of which nothing is hidden.
  double worst() const;
};

/// `link`: bytes that arrive from other ranks in a second. `measured`: seconds of each kernel;
/// none: they were not measured.
Roofline roofline_of(const Program& program, const DeviceRates& rates, double link,
                     const ByPlace<double>& measured = {});

/// `tessera graph roofline`. Errors (input): as of run_graph_show; the program has no rows; there
/// is no such device, or too little memory on it.
int run_graph_roofline(const std::string& file, const RooflineOptions& options);

}  // namespace tessera::app
