module tessera.app.first_day:pack_runs;

import tessera.base;
import tessera.app.base;
import :gpu_facts;
import :pack;

// Runs of the program `tessera` from a pack.

namespace tessera::app::first_day {

/// Where the parts run.
struct MachineSetup {
  Pack pack;
  std::string scratch;  // a folder for their files
  GpuFacts gpus;
  bool small = false;  // sizes for the emulator, whose times mean nothing
  double scale = 1;    // of all limits of time
};

/// A program that ran.
struct ProgramOutcome {
  int code = -1;  // see ProgramResult
  bool late = false;
  std::string output;
  /// In a sentence, with the line that says why; empty: it ended well in time.
  std::string problem;
};
/// Runs words[0] with the others; it ends with this process, and after `seconds`.
ProgramOutcome run_words(const std::vector<std::string>& words, double seconds);

/// The steps that a training has written; {loss, norm of the gradients} of each.
struct Steps {
  ProgramOutcome ran;
  std::vector<std::pair<double, double>> values;
  std::vector<double> rates;  // tokens in a second
  double peak = 0;            // bytes that its tensors held
};
/// `tessera train` with these words (a config, then overrides), for so many steps.
Steps train(const MachineSetup& here, const std::string& name, std::vector<std::string> words,
            int steps, double seconds);

/// The largest |found - wanted| / (1 + |wanted|) of losses and norms; infinity where steps are
/// missing or are not numbers.
double step_difference(const Steps& found, const std::vector<std::pair<double, double>>& wanted);
/// Whether two runs have the same bits.
bool same_bits(const Steps& a, const Steps& b);

/// A small run that shows one style. Where there are several ranks, they share the GPU, and
/// exchange their data through the host.
struct StyleRun {
  std::string name;      // of its config
  std::string mesh;      // its shape; empty: it has none
  double tolerance = 0;  // of step_difference from the CPU
};
const std::vector<StyleRun>& style_runs();
/// The words of its training, without the device.
std::vector<std::string> style_words(const MachineSetup& here, const StyleRun& run);
/// Likewise on the first GPU.
std::vector<std::string> gpu_words(const MachineSetup& here, const StyleRun& run);
/// Steps that are compared.
int style_steps(const MachineSetup& here);

/// The models whose costs docs/cuda-costs.md derives.
struct ModelRun {
  std::string name;
  double seconds = 0;    // for its steps
  double published = 0;  // tokens in a second by others; 0: unknown
};
const std::vector<ModelRun>& model_runs();
/// The words of its training, without the device.
std::vector<std::string> model_words(const MachineSetup& here, const ModelRun& run);

}  // namespace tessera::app::first_day
