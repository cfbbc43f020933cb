module;
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.plugin;
import tessera.tensor;
import tessera.collective;
import tessera.checkpoint;
import tessera.train;

namespace tessera::runs {
namespace {

/// JSON, an entry a line.
std::string by_lines(std::string_view json) { return json_text(parse_ordered_json(json), 0); }

/// What launchers of several machines must have alike.
std::vector<std::pair<std::string, std::string>> agreed(const Run& run) {
  return {{"version of Tessera", plugin::host_version()},
          {"config", by_lines(to_json(run.config))},
          {"text or model", by_lines(to_json(run.fingerprint))}};
}

/// What the config says of this machine's network, unless its environment does.
void check_network(const RunSpec& config) {
  const std::optional<std::string> own = environment_variable("TESSERA_INTERFACE");
  if (own) {
    collective::check_interface("TESSERA_INTERFACE", *own);
  } else if (!config.mesh.interface.empty()) {
    at_key(config, "mesh.interface",
           [&] { collective::check_interface("mesh.interface", config.mesh.interface); });
  }
}

}  // namespace

collective::LaunchOptions launch_options(const OpenedRun& opened) {
  const RunSpec& config = opened.run.config;
  collective::LaunchOptions options;
  options.ranks = static_cast<int>(config.ranks());
  options.needed_bytes = opened.facts.shared_bytes;
  options.rank_bytes = opened.facts.rank_bytes;
  options.rank_threads = threads_of_rank(config) + (config.mesh.background ? 1 : 0);
  options.transport = config.mesh.transport;
  options.interface = config.mesh.interface;
  options.place = collective::launcher_place(config.machine);
  if (options.place) {
    options.agreed = agreed(opened.run);
    options.agreed_at_start = {
        {"checkpoint",
         fmt::format("{} after step {}", opened.start.checkpoint.value_or("none, starts"),
                     opened.start.step)}};
  }
  options.black_box = config.log.blackbox;
  return options;
}

namespace {

/// What opens the task of a run, when it is known that it may write; the description may change.
using OpenTask = std::function<std::shared_ptr<const Task>(RunSpec& spec)>;

OpenedRun open_run(RunSpec spec, bool writes, const OpenTask& open_task) {
  OpenedRun opened;
  check_outputs(spec);
  check_healing(spec);
  opened.first = collective::is_first_process(spec.machine);
  if (opened.first && writes) {
    opened.lock = std::make_unique<RunLock>(spec);
  }
  if (writes) {  // a plan may be made elsewhere
    check_network(spec);
  }
  check_sinks(spec, opened.first && writes);
  opened.run.task = open_task(spec);
  opened.run.config = std::move(spec);
  return opened;
}

}  // namespace

OpenedRun open_run(RunSpec spec, bool writes) {
  return open_run(std::move(spec), writes, [](RunSpec& opened) {
    auto task = open_data_task(opened, rows_to_continue(opened));
    opened = with_data(std::move(opened), task->data());
    return task;
  });
}

OpenedRun open_run(RunSpec spec, std::shared_ptr<const Task> task, bool writes) {
  return open_run(std::move(spec), writes, [&](RunSpec& /*opened*/) { return std::move(task); });
}

void check_run(OpenedRun& opened) {
  Run& run = opened.run;
  run.rates = rates_of(run.config);
  if (const auto place = collective::launcher_place(run.config.machine)) {
    run.launchers = place->machines;
  }
  opened.facts = facts_of(run);
  run.kept_gathers = opened.facts.kept_gathers;
  run.one_rank = opened.facts.one_rank;
  run.states = opened.facts.states;
}

void check_start(OpenedRun& opened, bool weight_values) {
  Run& run = opened.run;
  run.fingerprint = run.task->fingerprint(run.config);
  opened.start = at_key(run.config, resume_key(run.config), [&] {
    return check_stored(run, checkpoint_to_resume(run.config), weight_values);
  });
  run.base_hash = opened.start.base_hash;
  if (const auto* const task = dynamic_cast<const DataTask*>(run.task.get());
      task != nullptr && !task->data().history().excluded().empty()) {
    const Dataset& data = task->data();
    opened.start.notes.push_back(fmt::format("rows left out: {}, of which {} from step {} on",
                                             count_of(data.history().excluded()),
                                             data.newly_excluded(), opened.start.step + 1));
  }
  opened.start.identity = run_identity(run.config);
  opened.start.time_begun = opened.begun;
  check_folder(run.config, opened.start);
  trace_range(run.config, opened.start.step);
  const std::string& metrics = run.config.log.metrics;
  if (opened.first && !metrics.empty()) {
    opened.start.told = check_metrics(run.config.place("log.metrics"), metrics,
                                      metrics_owner(metrics, run.config.checkpoint.folder));
  }
}

int train(OpenedRun& opened) {
  opened.start.session = session_of(opened.run);
  const auto rank_run = [&](collective::World& world) {
    if (opened.lock) {
      opened.lock->leave_to_owner();
    }
    return train_rank(opened.run, opened.facts.trial.account.model_flops, opened.start, world);
  };
  collective::LaunchOptions options = launch_options(opened);
  std::optional<Healing> healing;
  if (opened.run.config.train.heal) {
    healing.emplace(opened.run, opened.start).configure(options);
  }
  return collective::launched_by_other(opened.run.config.machine)
             ? collective::join_launch(options, rank_run)
             : collective::launch(options, rank_run);
}

namespace {

/// `open`: checks and opens the run; its plugins are loaded.
int train_opened(const RunSpec& spec, const std::function<OpenedRun()>& open) {
  collective::hide_run_key();  // before any other program is started
  try {
    use_plugins(spec);
    OpenedRun opened = open();
    check_run(opened);
    check_start(opened, false);
    const int code = train(opened);
    return code == incomplete_code || (code == 0 && !incomplete_outputs().empty()) ? 1 : code;
  } catch (const collective::PeerFailed& error) {
    return exit_code_of(error.kind());
  } catch (const Error& error) {
    collective::report_refusal(
        error.what(), error.kind(), [&] { fmt::print(stderr, "error: {}\n", error.what()); },
        spec.machine);
    return exit_code_of(error.kind());
  }
}

/// Its numbers of tokens are the task's.
RunSpec with_row_tokens(RunSpec spec, std::int64_t tokens) {
  if (spec.data.seq_len != DataConfig().seq_len) {
    fail_input({.thing = "data.seq_len",
                .wrong = "a program's own task has row_tokens instead",
                .advice = "set those"});
  }
  spec.data.seq_len = tokens;
  return spec;
}

}  // namespace

int train(RunSpec spec) {
  return train_opened(spec, [&] {
    if (spec.log.sample > 0) {
      fail_input({.thing = "log.sample",
                  .wrong = "only the program tessera shows a sample",
                  .advice = "set 0; text::generate makes one from the checkpoint"});
    }
    return open_run(checked(spec), true);
  });
}

int train(RunSpec spec, const TaskFunctions& functions) {
  return train_opened(spec, [&] {
    std::shared_ptr<const Task> task = task_of(functions);
    const OwnTask own{.optimizer = functions.optimizer != nullptr};
    RunSpec whole = checked(with_row_tokens(spec, functions.row_tokens), own);
    return open_run(std::move(whole), std::move(task), true);
  });
}

}  // namespace tessera::runs
