module tessera.app.first_day:runner;

import tessera.base;
import tessera.app.base;
import :checks;
import :pack_runs;
import :results;

// Runs the parts, each within its time.

namespace tessera::app::first_day {

struct RunOptions {
  double seconds = 420;   // of everything; more stretch all limits
  std::string part = {};  // only this one, where it is not empty
  std::string only = {};  // only items with this in their name
  bool again = false;     // also what has passed
};

/// Runs what has not passed yet, and prints a line for each part. Returns whether all has passed.
/// Errors (input): there is no such part or item; see ResultFile.
bool run_parts(const MachineSetup& here, ResultFile& file, const RunOptions& options);

}  // namespace tessera::app::first_day
