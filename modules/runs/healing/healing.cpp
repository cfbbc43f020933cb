module;
#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.collective;
import tessera.checkpoint;
import tessera.train;

namespace tessera::runs {
namespace {

constexpr double hour = 3600;

/// A fault that is not from outside must not come again so soon: it may not be at the same step, as
/// a save in the background fails when the disk does.
constexpr std::int64_t steps_between_faults = 10;

/// Of a machine, as those that have its states number its ranks.
struct MachineRanks {
  int all = 1;  // of the run
  int first = 0;
  int there = 0;
};

/// Those of this machine; `before`: of the one before it.
MachineRanks ranks_there(const RunSpec& config, int before) {
  MachineRanks ranks{.all = static_cast<int>(config.ranks())};
  if (const auto place = collective::launcher_place(config.machine)) {
    ranks.there = collective::ranks_started_here(ranks.all, config.machine);
    ranks.first = (place->machine + place->machines - before) % place->machines * ranks.there;
  }
  return ranks;
}

MemoryStateStore memory_for(const MachineRanks& ranks) {
  return MemoryStateStore(ranks.all, ranks.first, ranks.there);
}

}  // namespace

bool has_second_home(const Run& run) {
  return run.config.train.heal && run.config.train.heal_copies > 1 && run.launchers > 1;
}

int kept_copies(const Run& run) {
  constexpr int generations = 2;
  return !run.config.train.heal ? 0 : has_second_home(run) ? 2 * generations : generations;
}

Healing::Healing(const Run& run, StartPoint& start)
    : config_(run.config),
      start_(start),
      kept_(memory_for(ranks_there(run.config, 0))),
      board_(collective::ranks_started_here(static_cast<int>(run.config.ranks()),
                                            run.config.machine)) {
  start_.kept = &kept_;
  start_.board = &board_;
  start_.begun = start.step;
  if (has_second_home(run)) {
    const MachineRanks before = ranks_there(config_, 1);
    of_other_.emplace(before.all, before.first, before.there);
    kept_.expect_copies();
  }
}

void check_healing(const RunSpec& config) {
  if (config.train.heal && collective::launched_by_other(config.machine)) {
    fail_input({.where = config.place("train.heal"),
                .wrong = "another program has started the ranks, and it alone can start them again",
                .advice = "set train.heal to false, save with checkpoint.every, and let that "
                          "program restart the job (torchrun --max-restarts, Slurm's --requeue): "
                          "with checkpoint.resume = \"auto\" it continues; or start one `tessera "
                          "train` for all ranks of a machine, with --machines where there are "
                          "several"});
  }
  if (const auto place = collective::launcher_place(config.machine);
      config.train.heal && place && place->ranks > 0) {
    fail_input({.where = config.place("train.heal"),
                .wrong = "machines that heal start as many ranks each",
                .got = fmt::format("--here {}", place->ranks),
                .advice = "leave out --here, or set train.heal to false"});
  }
}

void Healing::configure(collective::LaunchOptions& options) {
  options.stuck_seconds = config_.train.heal_after;
  options.grace_seconds = 1;
  options.replace_seconds = config_.train.heal_wait;
  options.kept = &kept_;
  options.kept_of_other = of_other_ ? &*of_other_ : nullptr;
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
  const double time = steady_seconds();
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

std::string Healing::find_start(std::int64_t kept) {
  kept_.drop_after(kept);
  if (of_other_) {
    of_other_->drop_after(kept);
  }
  start_.notes.clear();
  if (kept >= 0) {
    start_.step = kept;
    start_.from_kept = true;
    return fmt::format("after step {}, which is in memory", kept);
  }
  start_.from_kept = false;
  start_.step = start_.begun;
  const std::string& folder = config_.checkpoint.folder;
  if (std::optional<std::string> saved =
          folder.empty() ? std::nullopt : latest_checkpoint(folder)) {
    start_.step = read_training_progress(CheckpointReader(*saved)).step;
    start_.checkpoint = std::move(saved);
  }
  return start_.checkpoint ? "from " + *start_.checkpoint : "from the start";
}

bool Healing::start_again(const collective::FailedAttempt& failed) {
  if (failed.joins) {
    log(LogLevel::warning,
        fmt::format("the run heals ({}): this machine takes the place of one that is lost; its "
                    "ranks start {}",
                    failed.number, find_start(failed.kept)));
    return true;
  }
  if (const std::string why = failed.decided ? "" : refusal(failed); !why.empty()) {
    log(LogLevel::warning, why);
    return false;
  }
  std::string text = to_string(failed.error);
  if (!failed.calls.empty()) {
    text += "\nlast calls of each rank:\n" + failed.calls.substr(0, failed.calls.rfind('\n'));
  }
  log(LogLevel::warning, text);
  log(LogLevel::warning, fmt::format("the run heals ({}): its ranks start again {}", failed.number,
                                     find_start(failed.kept)));
  return true;
}

}  // namespace tessera::runs
