module;
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.stores;
import tessera.checkpoint;
import tessera.train;
import :repeated_spec;
import :record_members;

namespace tessera::runs {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_files = 10'000;  // that a record names

struct FileTimes {
  std::int64_t bytes = -1;  // -1: it is not there
  std::string modified = {};
};

FileTimes times_of(const std::string& path) {
  struct stat found{};
  if (::stat(path.c_str(), &found) != 0) {
    return {};
  }
  return {.bytes = static_cast<std::int64_t>(found.st_size),
          .modified = fmt::format("{}.{:09}", found.st_mtim.tv_sec, found.st_mtim.tv_nsec)};
}

std::string absolute_path(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

}  // namespace

std::vector<std::string> recorded_plugins(const std::string& config, const fs::path& folder) {
  const nlohmann::json named = parse_json(config, false).value("plugins", nlohmann::json::object());
  std::vector<std::string> paths;
  for (const nlohmann::json& path : named.is_object()
                                        ? named.value("paths", nlohmann::json::array())
                                        : nlohmann::json::array()) {
    if (path.is_string()) {
      paths.push_back((folder / path.get<std::string>()).string());
    }
  }
  return paths;
}

void remove_outputs(RunSpec& spec) {
  spec.log.metrics.clear();
  spec.log.tensorboard.clear();
  spec.log.blackbox.clear();
  spec.log.sample = 0;
  spec.sinks.clear();
  spec.trace = {};
  spec.graph.dump.clear();
  spec.graph.program.clear();
  spec.checkpoint.folder.clear();
  spec.checkpoint.resume = "never";
  spec.train.heal = false;
  spec.data.exclude.clear();  // what it has named is in the checkpoints
  // Steps that the run has kept had their updates; one whose numbers are not finite ended it, and
  // can be looked at without its update.
  if (const std::optional<SpikePolicy> policy = spike_policy(spec);
      !policy || policy->action != SpikeAction::skip) {
    spec.train.on_spike.text = R"({"over": 1e300, "action": "skip"})";
  }
}

namespace {

std::string text_member(const nlohmann::json& json, const char* name) {
  return json.is_object() && json.contains(name) && json[name].is_string()
             ? json[name].get<std::string>()
             : std::string();
}

/// Files of the record that are not as they were, as words for an error.
std::vector<std::string> changed_files(const std::string& record) {
  std::vector<std::string> changed;
  for (const nlohmann::json& file : parse_json(record, false)) {
    const std::string path = text_member(file, "path");
    const FileTimes now = times_of(path);
    // The record of an export has no times.
    const bool same = file.contains("bytes") && file["bytes"] == now.bytes &&
                      (!file.contains("modified") || text_member(file, "modified") == now.modified);
    if (!path.empty() && !same) {
      changed.push_back(now.bytes < 0 ? shown(path) + " (which is gone)" : shown(path));
    }
  }
  return changed;
}

std::string changes_text(std::vector<std::string> changed) {
  constexpr std::size_t most = 5;
  const std::size_t all = changed.size();
  changed.resize(std::min(all, most));
  return all == 0 ? "none of its files has another size or time"
                  : join_words(changed) + (all > most ? " and others" : "");
}

}  // namespace

std::string record_members(const Run& run) {
  const auto* const task = dynamic_cast<const DataTask*>(run.task.get());
  if (task == nullptr) {
    return "";
  }
  std::error_code ignored;
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (const OpenedSource& source : task->data().sources()) {
    for (const std::string& path : source.paths) {
      const FileTimes times = times_of(path);
      if (files.size() < most_files) {
        files.push_back(
            {{"path", absolute_path(path)}, {"bytes", times.bytes}, {"modified", times.modified}});
      }
    }
  }
  const nlohmann::ordered_json started = {
      {"folder", fs::current_path(ignored).string()},
      {"config", run.config.file.empty() ? "" : absolute_path(run.config.file.string())}};
  return fmt::format(R"("started": {}, "files": {}, )", json_text(started), json_text(files));
}

std::vector<RecordedRun::Checkpoint> saved_checkpoints(const std::string& folder) {
  std::error_code ignored;
  if (!stores::is_address(folder) && !fs::is_directory(folder, ignored)) {
    fail_input({.thing = shown(folder),
                .wrong = "there is no such folder",
                .expected = "the folder of a run's checkpoints"});
  }
  std::vector<std::string> found = checkpoints_in(folder);
  if (found.empty() &&
      fs::path(folder).lexically_normal().filename().string().starts_with("step-")) {
    found = {folder};
  }
  if (found.empty()) {
    fail_input({.thing = shown(folder),
                .wrong = "there is no checkpoint in it",
                .expected = "the folder that a run's checkpoint.folder names"});
  }
  std::vector<RecordedRun::Checkpoint> saved;
  for (const std::string& path : found) {
    std::string name = fs::path(path).lexically_normal().filename().string();
    name.erase(0, std::string("step-").size());
    std::int64_t number = 0;
    std::from_chars(name.data(), name.data() + name.size(), number);
    saved.push_back({.step = number, .path = path});
  }
  std::ranges::sort(saved, {}, &RecordedRun::Checkpoint::step);
  return saved;
}

const RecordedRun::Checkpoint& describing_checkpoint(
    const std::vector<RecordedRun::Checkpoint>& saved, std::int64_t step) {
  const auto after =
      step == 0 ? saved.end()
                : std::ranges::lower_bound(saved, step, {}, &RecordedRun::Checkpoint::step);
  return after == saved.end() ? saved.back() : *after;
}

RecordedRun open_recorded(const std::string& folder, const std::vector<std::string>& plugins,
                          std::int64_t step, const RunSpec* layout) {
  // A store is read by a plugin, and this process looks for plugins once.
  const bool is_stored = stores::is_address(folder);
  if (is_stored && layout == nullptr) {
    use_plugins(plugins);
  }
  RecordedRun run{.folder = folder, .saved = saved_checkpoints(folder)};
  std::error_code ignored;
  const std::string& newest = describing_checkpoint(run.saved, step).path;
  const CheckpointReader reader(newest, OpenFiles::when_read);
  run.fingerprint = stored_fingerprint(reader.meta(), newest);
  const nlohmann::json meta = parse_json(reader.meta(), false);
  if (!meta.is_object() || !meta.contains("config") || !meta["config"].is_object()) {
    fail_input({.thing = newest, .wrong = "it has no config of its run"});
  }
  if (run.fingerprint.contains("own_task")) {
    fail_input({.thing = newest,
                .wrong = "the run has a program's own task, whose rows only that program knows",
                .advice = "ask it in the program"});
  }
  const nlohmann::json started = meta.value("started", nlohmann::json::object());
  std::string from = text_member(started, "folder");
  if (!fs::is_directory(from, ignored)) {
    from = fs::current_path(ignored).string();
  }
  const std::string config = json_text(parse_ordered_json(reader.meta())["config"]);
  RunSpec loads;  // a family of models may be in one of them
  loads.plugins.paths = recorded_plugins(config, from);
  if (is_stored && layout == nullptr && plugins.empty() && !loads.plugins.paths.empty()) {
    fail_input({.thing = newest,
                .wrong = fmt::format("its run uses the plugins {}, and is in a store",
                                     join_words(loads.plugins.paths)),
                .advice = "name them by --plugin"});
  }
  if (!is_stored && layout == nullptr) {
    use_plugins(loads, plugins);
  }
  run.spec = with_copies(spec_of_json(config, newest, from));
  run.spec.file = text_member(started, "config");
  run.metrics = run.spec.log.metrics;
  remove_outputs(run.spec);
  if (const std::string text = stored_text(reader, exclusions_text); !text.empty()) {
    run.excluded = exclusions_of(text, newest);
  }
  if (meta.contains("files") && meta["files"].is_array()) {
    run.files = json_text(meta["files"]);
  }
  return run;
}

std::shared_ptr<const DataTask> open_task(const RecordedRun& run) {
  std::shared_ptr<const DataTask> task;
  try {
    task = open_data_task(run.spec, {.before = run.excluded});
  } catch (const Error& error) {
    const std::vector<std::string> changed = changed_files(run.files);
    if (error.kind() != ErrorKind::input || changed.empty()) {
      throw;
    }
    fail_input({.thing = shown(run.folder),
                .wrong = fmt::format("the run's data have changed since: {} ({})",
                                     changes_text(changed), error.what()),
                .advice = "put back what it was trained on"});
  }
  const Fingerprint own = task->fingerprint(run.spec);
  const auto content = [](const Fingerprint& values) {
    const auto found = values.find("data.content");
    return found == values.end() ? std::string() : found->second;
  };
  if (content(own) != content(run.fingerprint)) {
    fail_input({.thing = shown(run.folder),
                .wrong = fmt::format("the run's data have changed since: {}",
                                     changes_text(changed_files(run.files))),
                .expected = content(run.fingerprint),
                .got = content(own),
                .advice = "put back what it was trained on"});
  }
  return task;
}

void check_step(const RecordedRun& run, std::int64_t step) {
  if (step < 1 || step > run.spec.train.steps) {
    fail_input({.thing = "--step",
                .wrong = "the run has no such step",
                .expected = fmt::format("1 to {}", run.spec.train.steps),
                .got = fmt::format("{}", step)});
  }
}

const RecordedRun::Checkpoint& checkpoint_before(const RecordedRun& run, std::int64_t step) {
  const auto after = std::ranges::lower_bound(run.saved, step, {}, &RecordedRun::Checkpoint::step);
  if (after == run.saved.begin()) {
    fail_input({.thing = shown(run.folder),
                .wrong = fmt::format("there is no checkpoint before step {}", step),
                .expected = fmt::format("a step after {}", run.saved.front().step),
                .advice = "save more often by checkpoint.every, and keep them by "
                          "checkpoint.keep = 0"});
  }
  return *std::prev(after);
}

std::optional<StepMetrics> recorded_metrics(const RecordedRun& run, std::int64_t step) {
  std::error_code ignored;
  if (run.metrics.empty() || !fs::is_regular_file(run.metrics, ignored)) {
    return std::nullopt;
  }
  for (StepMetrics& metrics : read_metrics(run.metrics)) {
    if (metrics.step == step) {
      return std::move(metrics);
    }
  }
  return std::nullopt;
}

}  // namespace tessera::runs
