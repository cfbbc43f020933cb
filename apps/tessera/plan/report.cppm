export module tessera.app.plan:report;

import tessera.base;
import tessera.mesh;
import tessera.device;
import tessera.program;
import tessera.app.base;
import :failures;
import :hardware;
import :simulate;
import :sums;

// What a plan says of a step in time.

export namespace tessera::app {

/// What a report is about.
struct ForecastRun {
  StepTimes step;
  const Hardware& hardware;
  int ranks = 1;
  double step_tokens = 0;        // of all ranks
  double model_flops = 0;        // of a step, of all ranks
  MemoryStatistics memory = {};  // of a rank, at the peaks
  double tokens = 0;             // of a whole training; 0: nothing is said of it
  FailingRun failing = {};       // without failures, nothing is said of them
};

/// Rows beside those of a plan: hardware, step, rate, memory; what failures cost; time and price of
/// a training.
TableRows planned_rows(const ForecastRun& run);

/// Tables: the time by operator, and by kind of collective and axes of the mesh.
std::string planned_tables(const ForecastRun& run);

/// All of it: see docs/planning.md.
std::string planned_json(const ForecastRun& run);

/// A trace file as training writes one, of one rank: `tessera trace summary` and `draw` read it.
void write_planned_trace(const Program& program, const SimulatedStep& step, const DeviceMesh& mesh,
                         const std::string& file);

}  // namespace tessera::app
