module;
#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
module tessera.train;

import tessera.base;
import tessera.checkpoint;
import tessera.collective;
import tessera.tensor;
import :checkpoints;

namespace tessera {
namespace {

double seconds_of(const std::function<void()>& act) {
  const auto start = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

RunCheckpoints::RunCheckpoints(Training& training, SaveSchedule schedule,
                               std::function<std::string()> meta_data,
                               std::function<void(const std::string&)> say)
    : training_(training),
      schedule_(std::move(schedule)),
      meta_data_(std::move(meta_data)),
      say_(std::move(say)),
      place_(schedule_.folder.empty() ? nullptr : RunPlace::named(schedule_.folder)) {
  check_place();
}

void RunCheckpoints::check_place() {
  if (place_ && collective::World::current().rank() == 0) {
    place_->check();
  }
}

void RunCheckpoints::before_steps(bool last) {
  if (schedule_.kept == nullptr || schedule_.folder.empty() ||
      schedule_.kept->newest() != training_.done()) {
    return;
  }
  const std::int64_t every = schedule_.every;
  const std::int64_t due = last        ? training_.done()
                           : every > 0 ? training_.done() / every * every
                                       : 0;
  const std::vector<std::string> saved = checkpoints_in(schedule_.folder);
  // All ranks look before any of them can save: a save begins with all of them.
  if (due > 0 && (saved.empty() || saved.front() < checkpoint_folder(schedule_.folder, due))) {
    run_phase(fmt::format("save step {}", training_.done()), [&] { save(last); });
  }
}

void RunCheckpoints::keep() {
  collective::World::current().set_progress(training_.done(), "keeping the state");
  run_phase(fmt::format("keep step {}", training_.done()),
            [&] { training_.checkpoints().keep(*schedule_.kept); });
}

void RunCheckpoints::after_step(bool last) {
  seconds_ = 0;
  if (compares_after(training_.done())) {
    seconds_ += seconds_of([&] {
      collective::World::current().set_progress(training_.done(), "comparing copies");
      check_copies(training_.checkpoints().state());
    });
  }
  if (keeps_after(training_.done()) || (last && schedule_.kept != nullptr)) {
    seconds_ += seconds_of([&] { keep(); });
  }
  collective::World::current().set_progress(training_.done(), "saving a checkpoint");
  check_place();
  // A failure of a save in the background is told at the first opportunity; but one of which the
  // ranks save the state elsewhere, at the next save, where all of them learn of it.
  if (!place_ || place_->rescue_folder().empty()) {
    if (const std::optional<std::string> folder = training_.checkpoints().finished()) {
      ended(*folder);
    }
  }
  if (!last && !saves_after(training_.done())) {
    return;
  }
  if (schedule_.folder.empty()) {
    training_.checkpoints().check_finite();  // a run that ends well ends with a model
    return;
  }
  seconds_ += seconds_of(
      [&] { run_phase(fmt::format("save step {}", training_.done()), [&] { save(last); }); });
}

void RunCheckpoints::after_error() {
  try {
    if (const std::optional<std::string> folder = training_.checkpoints().wait()) {
      say("checkpoint saved: " + *folder);
    }
  } catch (const std::exception& error) {
    if (!collective::is_of_peer(error)) {  // else its rank says it
      log(LogLevel::warning, error.what());
    }
  }
}

void RunCheckpoints::save(bool last) {
  if (schedule_.background && !last && schedule_.skip_when_busy &&
      training_.checkpoints().saving_anywhere()) {
    say(fmt::format("no checkpoint of step {}: the save before it is still running",
                    training_.done()));
    return;
  }
  try {
    if (const std::optional<std::string> before = training_.checkpoints().wait()) {
      ended(*before);
    }
  } catch (const CheckpointRefusal& why) {
    rescue(why);
  }
  const std::string folder = checkpoint_folder(schedule_.folder, training_.done());
  const std::string meta_data = meta_data_ ? meta_data_() : std::string("{}");
  try {
    if (!schedule_.background) {
      training_.checkpoints().save(folder, meta_data, place_->save_options());
      ended(folder);
      return;
    }
    training_.checkpoints().start(folder, meta_data, place_->save_options());
    if (last) {
      training_.checkpoints().wait();
      ended(folder);
    }
  } catch (const CheckpointRefusal& why) {
    rescue(why);
    if (last) {
      ErrorFields fields = why.fields();
      fields.advice = fmt::format(
          "the last state is saved in {}: continue from it with "
          "checkpoint.resume, or copy it to the store",
          checkpoint_folder(place_->rescue_folder(), training_.done()));
      throw Error(std::move(fields), why.kind());
    }
  }
}

void RunCheckpoints::rescue(const CheckpointRefusal& why) {
  const std::string folder = checkpoint_folder(place_->rescue_folder(), training_.done());
  if (rescued_ == training_.done()) {
    return;
  }
  training_.checkpoints().save(folder, meta_data_ ? meta_data_() : std::string("{}"));
  rescued_ = training_.done();
  if (collective::World::current().rank() == 0) {
    log(LogLevel::warning, fmt::format("a checkpoint was not saved where it should be; the state "
                                       "after step {} is in {} ({})",
                                       training_.done(), folder, why.what()));
  }
}

void RunCheckpoints::ended(const std::string& folder) {
  if (schedule_.keep > 0 && collective::World::current().rank() == 0) {
    try_side_work(SideWork::upkeep, "checkpoint.keep", [&] { place_->prune(schedule_.keep); });
  }
  say("checkpoint saved: " + folder);
}

void RunCheckpoints::say(const std::string& text) const {
  if (say_) {
    say_(text);
  }
}

bool take_steps(collective::World& world, const Training& training, RunCheckpoints& checkpoints,
                const RunSteps& run) {
  try {
    bool stop = false;
    checkpoints.before_steps(training.done() >= run.steps);
    while (training.done() < run.steps && !stop) {
      const std::int64_t next = training.done() + 1;
      world.set_progress(next, "training");
      run.step(next == run.steps || checkpoints.takes_state_after(next) ||
               (run.is_evaluated && run.is_evaluated(next)));
      if (run.goes_back && run.goes_back()) {
        continue;
      }
      world.tell_waits(training.done());
      stop = world.interrupt_agreed();
      if (run.after_step) {
        run.after_step(stop);
      }
      checkpoints.after_step(stop || training.done() == run.steps);
    }
    return stop;
  } catch (...) {
    checkpoints.after_error();
    throw;
  }
}

}  // namespace tessera
