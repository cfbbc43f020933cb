module;
#include <fmt/format.h>
#include <stdlib.h>

#include <cstdio>
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
void set_interface(const RunSpec& config) {
  const std::optional<std::string> own = environment_variable("TESSERA_INTERFACE");
  if (own) {
    collective::check_interface("TESSERA_INTERFACE", *own);
  } else if (!config.mesh.interface.empty()) {
    at_key(config, "mesh.interface",
           [&] { collective::check_interface("mesh.interface", config.mesh.interface); });
    ::setenv("TESSERA_INTERFACE", config.mesh.interface.c_str(), 1);
  }
}

collective::LaunchOptions launch_options(const OpenedRun& opened) {
  const RunSpec& config = opened.run.config;
  collective::LaunchOptions options;
  options.ranks = static_cast<int>(config.ranks());
  options.needed_bytes = opened.facts.shared_bytes;
  options.rank_bytes = opened.facts.rank_bytes;
  options.rank_threads = threads_of_rank(config) + (config.mesh.background ? 1 : 0);
  options.transport = config.mesh.transport;
  options.place = collective::launcher_place();
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

}  // namespace

OpenedRun open_run(RunSpec spec, bool writes) {
  OpenedRun opened;
  Run& run = opened.run;
  check_outputs(spec);
  check_healing(spec);
  opened.first = collective::is_first_process();
  if (opened.first && writes) {
    opened.lock = std::make_unique<RunLock>(spec);
  }
  if (writes) {  // a plan may be made elsewhere
    set_interface(spec);
  }
  RunData data = open_run_data(spec);
  run.shape = std::move(data.shape);
  run.data = std::move(data.dataset);
  run.config = with_steps(std::move(spec), *run.data);
  return opened;
}

void check_run(OpenedRun& opened) {
  Run& run = opened.run;
  run.rates = rates_of(run.config);
  if (const auto place = collective::launcher_place()) {
    run.launchers = place->machines;
  }
  opened.facts = facts_of(run);
  run.kept_gathers = opened.facts.kept_gathers;
  run.one_rank = opened.facts.one_rank;
  run.states = opened.facts.states;
}

void check_start(OpenedRun& opened, bool weight_values) {
  Run& run = opened.run;
  run.fingerprint = fingerprint_of(run.config, run.shape, *run.data);
  opened.start = at_key(run.config, resume_key(run.config), [&] {
    return check_stored(run, checkpoint_to_resume(run.config), weight_values);
  });
  run.base_hash = opened.start.base_hash;
  check_folder(run.config, opened.start);
  trace_range(run.config, opened.start.step);
  const std::string& metrics = run.config.log.metrics;
  if (opened.first && !metrics.empty()) {
    check_metrics(run.config.place("log.metrics"), metrics,
                  metrics_owner(metrics, run.config.checkpoint.folder));
  }
}

int train(OpenedRun& opened) {
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
  return collective::launched_by_other() ? collective::join_launch(options, rank_run)
                                         : collective::launch(options, rank_run);
}

int train(RunSpec spec) {
  collective::hide_run_key();  // before any other program is started
  try {
    use_plugins(spec);
    OpenedRun opened = open_run(checked(std::move(spec)), true);
    check_run(opened);
    check_start(opened, false);
    const int code = train(opened);
    return code == incomplete_code || (code == 0 && !incomplete_outputs().empty()) ? 1 : code;
  } catch (const collective::PeerFailed& error) {
    return exit_code_of(error.kind());
  } catch (const Error& error) {
    collective::report_refusal(error.what(), error.kind(),
                               [&] { fmt::print(stderr, "error: {}\n", error.what()); });
    return exit_code_of(error.kind());
  }
}

}  // namespace tessera::runs
