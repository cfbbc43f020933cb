module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <system_error>
#include <vector>
module tessera.app.run;

import tessera.base;
import tessera.app.base;
import tessera.app.config;
import tessera.optim;
import tessera.runs;

namespace tessera::app {
namespace {

namespace fs = std::filesystem;

/// The part of a program's output that has the reason: of Python the first traceback, and what was
/// printed shortly before it (a rank that aborts has no traceback; its launcher has); else the end.
std::string reason_in(const std::string& output) {
  constexpr std::size_t most = 2500;
  const std::size_t traceback = output.find("Traceback (most recent call last)");
  if (traceback != std::string::npos) {
    constexpr std::size_t before = 800;
    return output.substr(output.rfind('\n', traceback - std::min(traceback, before)) + 1, most);
  }
  return output.size() <= most ? output : "..." + output.substr(output.size() - most);
}

/// Overrides that make a run end after so many steps, with the learning rates that it has.
std::vector<std::string> end_after(const runs::RunSpec& config, std::int64_t steps) {
  std::vector<std::string> all = {"train.epochs=0", fmt::format("train.steps={}", steps)};
  const runs::OptimizerConfig& optimizer = config.optimizer;
  if (optimizer.schedule_ends() && optimizer.schedule_end == 0) {
    const bool in_tokens = optimizer.schedule_unit == optim::ScheduleUnit::tokens;
    all.push_back(fmt::format("optimizer.schedule_end={}",
                              config.train.steps * (in_tokens ? config.step_tokens() : 1)));
  }
  return all;
}

}  // namespace

void run_to_the_end(const std::string& who, const std::vector<std::string>& command) {
  constexpr double never = 1e9;
  const ProgramResult result = run_program(command, Patience(never, never), who, "fails");
  if (result.code != 0) {
    fail({.thing = who,
          .wrong = fmt::format("it ended with exit code {}", result.code),
          .details = reason_in(result.output)});
  }
}

double usual_seconds(const TrainedSteps& steps) {
  constexpr std::ptrdiff_t slower = 3;
  return runs::median({steps.seconds.begin() + slower, steps.seconds.end()});
}

TrainedSteps train_first_steps(const std::string& file, const std::vector<std::string>& overrides,
                               const runs::RunSpec& config, std::int64_t steps,
                               const std::string& folder) {
  const std::string metrics = (fs::path(folder) / "metrics.jsonl").string();
  std::error_code ignored;
  fs::remove(metrics, ignored);
  std::vector<std::string> command = {fs::read_symlink("/proc/self/exe").string(), "train", file};
  command.insert(command.end(), overrides.begin(), overrides.end());
  for (const std::vector<std::string>& own :
       {end_after(config, steps),
        {"log.metrics=" + metrics, "checkpoint.folder=", "log.tensorboard=", "sinks=[]",
         "log.sample=0", "trace.file=", fmt::format("data.validate_every={}", steps)}}) {
    command.insert(command.end(), own.begin(), own.end());
  }
  run_to_the_end("tessera train", command);
  TrainedSteps result;
  for (const runs::StepMetrics& step : runs::read_metrics(metrics)) {
    result.losses.push_back(step.loss);
    result.seconds.push_back(step.seconds);
    result.lr.push_back(step.lr);
    result.peak_bytes = std::max(result.peak_bytes, static_cast<double>(step.memory_bytes));
  }
  return result;
}

}  // namespace tessera::app
