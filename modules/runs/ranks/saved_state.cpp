module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tessera/json.hpp>
#include <utility>
#include <variant>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.program;
import tessera.capture;
import tessera.nn;
import tessera.models;
import tessera.optim;
import tessera.parallel;
import tessera.checkpoint;
import tessera.train;
import tessera.hub;

// State that a trainer saves and that a run continues from.
namespace tessera::runs {
namespace {

/// Says when a longer or shorter run moves the end of a schedule: the step count is not a
/// difference.
void note_schedule(const Run& run, const CheckpointReader& reader, StartPoint& start) {
  const auto meta = parse_json(reader.meta());
  const nlohmann::json::json_pointer key("/config/train/steps");
  const std::int64_t steps = run.config.train.steps;
  if (make_schedule(run.config).has_end() && run.config.optimizer.schedule_end == 0 &&
      meta.contains(key) && meta[key] != steps) {
    start.notes.push_back(
        fmt::format("train.steps was {} and is {}: the {} schedule now ends there",
                    json_text(meta[key]), steps, word_of(run.config, "optimizer.schedule")));
  }
}

/// What a checkpoint has of modules that are absent here.
std::vector<std::string> ignored_state(nn::Module& model) {
  std::vector<std::string> patterns = {"transform.**"};
  for (const std::string& module : nn::absent_modules(model)) {
    patterns.push_back(fmt::format("model.{}.**", module));
    patterns.push_back(fmt::format("optimizer.*.{}.**", module));
  }
  return patterns;
}

/// Takes the hash of model.from, where the run's checkpoints name it or `reader`, the one that it
/// continues, does; null: there is none. Error (input): that one names another model.
void take_base(const Run& run, nn::Module& model, const CheckpointReader* reader,
               StartPoint& start) {
  const std::string& from = run.config.model.from;
  const CheckpointBase* const stored = reader == nullptr ? nullptr : reader->base().get();
  const std::shared_ptr<const CheckpointBase> own =
      run.task->checkpoint_base(run.config, run.base_hash, model);
  if (!own || (own->tensors.empty() && stored == nullptr)) {
    return;
  }
  at_key(run.config, "model.from", [&] { start.base_hash = hub::base_hash(from); });
  if (stored != nullptr) {
    hub::check_is_base(*stored, from, start.base_hash, reader->path());
  }
  if (!own->tensors.empty()) {
    start.notes.push_back(
        fmt::format("checkpoints name {} in place of its weights that are not "
                    "trained (checkpoint.weights)",
                    from));
  }
}

/// check_stored on the thread that calls it, as the calling rank. `places`: the ranks along the
/// axis of stages. `hash`: of the base, if it was taken before.
StartPoint check(const Run& run, const std::optional<std::string>& resume, bool weight_values,
                 std::vector<int>& places, const std::string& hash = "") {
  const auto model = training_model(*run.task, run.config);
  const parallel::ParallelPlan plan(*model, make_mesh(run.config), plan_entries(run.config, {}),
                                    plugin::host());  // styles replace modules
  if (plan.stages() != nullptr) {
    places = plan.stages()->group().group->ranks;
  }
  run.task->check_files(run.config, *model, weight_values, hash);
  StartPoint start;
  start.base_hash = hash;
  if (!resume) {
    if (hash.empty()) {
      take_base(run, *model, nullptr, start);
    }
    return start;
  }
  const CheckpointReader reader(*resume);
  start.checkpoint = resume;
  start.notes = compare(stored_fingerprint(reader.meta(), *resume), run.fingerprint,
                        run.task->earlier_values(run.fingerprint), run.config, *resume);
  for (std::string& note : start.notes) {
    note = "allowed difference: " + note;
  }
  if (hash.empty()) {
    take_base(run, *model, &reader, start);
  }
  hub::compare_updates(hub::stored_updates(reader.meta(), *resume), hub::updates_of(*model),
                       *resume);
  const auto optimizer = task_optimizer(*run.task, run.config, *model);  // its state is meta too
  optimizer->prepare_state();
  check_state(reader, training_state(*model, *optimizer),
              {.ignore = ignored_state(*model), .base = start.base_hash});
  start.step = read_training_progress(reader).step;
  const std::string name = std::filesystem::path(*resume).filename();
  const std::string expected = std::filesystem::path(checkpoint_folder("", start.step)).filename();
  if (name.starts_with("step-") && name != expected) {
    fail_input({.thing = *resume,
                .wrong = fmt::format("it holds the checkpoint of step {}", start.step),
                .expected = fmt::format("the name {}", expected),
                .advice = "rename it"});
  }
  if (start.step > run.config.train.steps) {
    fail_input(
        {.where = run.config.place("train.steps"),
         .wrong = fmt::format("the run to continue has done {} steps ({}), more than {}",
                              start.step, *resume, run.config.train.steps),
         .advice = "raise train.steps, or name another checkpoint.folder to start a new run"});
  }
  note_schedule(run, reader, start);
  return start;
}

}  // namespace

StartPoint check_stored(const Run& run, const std::optional<std::string>& resume,
                        bool weight_values) {
  // On a thread of its own, as in try_step: what styles leave behind goes with it.
  StartPoint start;
  std::vector<int> places;
  as_rank(0, [&] { start = check(run, resume, weight_values, places); });
  for (std::size_t place = 1; place < places.size(); ++place) {
    std::vector<int> same;
    as_rank(places[place], [&] { check(run, resume, weight_values, same, start.base_hash); });
  }
  return start;
}

}  // namespace tessera::runs
