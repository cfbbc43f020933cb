export module tessera.app.run:first_steps;

import tessera.base;
import tessera.runs;
import tessera.app.config;

// The first steps of a run, as a program of their own.

export namespace tessera::app {

/// Runs a training to its end, however long it takes. Error: it fails; the end of its output, or
/// what Python says of it, is in the error.
void run_to_the_end(const std::string& who, const std::vector<std::string>& command);

/// Steps of a training, by this program or another one.
struct TrainedSteps {
  std::vector<double> losses;   // before each step's update
  std::vector<double> seconds;  // of each step
  std::vector<double> lr = {};  // of this program's steps
  double peak_bytes = 0;        // the largest memory of rank 0's process
};

/// The seconds of a step (median), without the first three: memory is touched for the first time,
/// code is compiled. There must be more.
double usual_seconds(const TrainedSteps& steps);

/// Trains `steps` steps of a config by this program, which saves nothing. `overrides` are those of
/// the command line, and give `config`; `folder` is for its metrics. Errors: the run fails; its
/// text is in the error.
TrainedSteps train_first_steps(const std::string& file, const std::vector<std::string>& overrides,
                               const runs::RunSpec& config, std::int64_t steps,
                               const std::string& folder);

}  // namespace tessera::app
