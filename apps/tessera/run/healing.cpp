module;
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>
module tessera.app.run;

import tessera.base;
import tessera.collective;
import tessera.checkpoint;
import tessera.train;
import tessera.app.config;

namespace tessera::app {
namespace {

constexpr double hour = 3600;

/// A fault that is not from outside must not come again so soon: it may not be at the same step, as
/// a save in the background fails when the disk does.
constexpr std::int64_t steps_between_faults = 10;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Healing::Healing(const Config& config, StartPoint& start)
    : config_(config), start_(start), kept_(static_cast<int>(config.ranks())) {
  start_.kept = &kept_;
  start_.begun = start.step;
}

void check_healing(const Config& config) {
  if (config.train.heal && collective::launched_by_other()) {
    fail_input({.where = config.place("train.heal"),
                .wrong = "another program has started the ranks, and it alone can start them again",
                .advice = "set train.heal to false, save with checkpoint.every, and let that "
                          "program restart the job (torchrun --max-restarts, Slurm's --requeue): "
                          "with checkpoint.resume = \"auto\" it continues; or start one `tessera "
                          "train` for all ranks of this machine"});
  }
}

void Healing::configure(collective::LaunchOptions& options) {
  options.stuck_seconds = config_.train.heal_after;
  options.grace_seconds = 1;
  options.restart = [this](const collective::FailedAttempt& failed) { return start_again(failed); };
}

std::string Healing::refusal(const collective::FailedAttempt& failed) {
  const bool again = !failed.from_outside && step_of_fault_ &&
                     failed.step - *step_of_fault_ < steps_between_faults;
  if (!failed.from_outside) {
    step_of_fault_ = failed.step;
  }
  if (again) {
    return fmt::format("the ranks are not started again, as a fault came again within {} steps",
                       steps_between_faults);
  }
  const double time = now();
  std::erase_if(times_, [&](double before) { return time - before > hour; });
  if (static_cast<std::int64_t>(times_.size()) >= config_.train.heal_limit) {
    return fmt::format(
        "the ranks are not started again, as they were {} times within an hour "
        "(train.heal_limit)",
        times_.size());
  }
  times_.push_back(time);
  return "";
}

std::string Healing::find_start() {
  kept_.drop_unfinished();
  start_.notes.clear();
  if (const std::optional<std::int64_t> step = kept_.newest()) {
    start_.step = *step;
    start_.from_kept = true;
    return fmt::format("after step {}, which is in memory", *step);
  }
  const std::string& folder = config_.checkpoint.folder;
  if (std::optional<std::string> saved =
          folder.empty() ? std::nullopt : latest_checkpoint(folder)) {
    start_.step = read_training_progress(CheckpointReader(*saved)).step;
    start_.checkpoint = std::move(saved);
  }
  return start_.checkpoint ? "from " + *start_.checkpoint : "from the start";
}

bool Healing::start_again(const collective::FailedAttempt& failed) {
  if (const std::string why = refusal(failed); !why.empty()) {
    log(LogLevel::warning, why);
    return false;
  }
  std::string text = to_string(failed.error);
  if (!failed.calls.empty()) {
    text += "\nlast calls of each rank:\n" + failed.calls.substr(0, failed.calls.rfind('\n'));
  }
  log(LogLevel::warning, text);
  log(LogLevel::warning,
      fmt::format("the run heals ({}): its ranks start again {}", failed.number, find_start()));
  return true;
}

}  // namespace tessera::app
