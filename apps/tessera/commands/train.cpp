module;
#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.collective;
import tessera.models;
import tessera.checkpoint;
import tessera.app.base;
import tessera.app.config;
import tessera.runs;
import tessera.text;
import tessera.app.run;
import :run_data;

namespace tessera::app {
namespace {

/// `named`: plugins of the command line.
void print_ending(const runs::Run& run, const std::vector<std::string>& named) {
  const runs::RunSpec& config = run.config;
  if (config.checkpoint.folder.empty()) {
    return;
  }
  const std::string checkpoint = checkpoint_folder(config.checkpoint.folder, config.train.steps);
  const runs::DataTask& task = runs::data_task_of(run);
  const auto& tokenizer = task.data().tokenizer();
  if (config.log.sample > 0 && tokenizer) {
    const text::GenerationOptions options{.tokens = config.log.sample,
                                          .sampling = {.temperature = 0.7, .top_k = 20}};
    try_side_work(SideWork::output, "log.sample", [&] {
      const std::string text = text::generate_text(checkpoint, config.log.sample_prompt, options);
      fmt::print("\nA sample of {} {}:\n\n{}{}\n", config.log.sample,
                 tokenizer->kind == "bytes" ? "bytes" : "tokens", config.log.sample_prompt, text);
    });
  }
  fmt::print("\ncheckpoint  {}\n", checkpoint);
  if (!config.log.metrics.empty()) {
    fmt::print("metrics     {}\n", config.log.metrics);
  }
  std::string what = shell_word(checkpoint);
  const std::vector<std::string> built_in = models::built_in_families();
  if (std::ranges::find(built_in, task.facts().family) == built_in.end()) {
    for (const std::vector<std::string>& paths : {named, config.plugins.paths}) {
      for (const std::string& path : paths) {
        what += " --plugin " + shell_word(path);
      }
    }
  }
  if (tokenizer && task.writes_texts() && !tokenizer->opened.chat_template.empty()) {
    fmt::print("try next    tessera chat {}\n", what);
  } else if (tokenizer && task.writes_texts()) {
    fmt::print("try next    tessera generate {} --prompt \"The \"\n", what);
  }
  fmt::print("            tessera checkpoint export {} --to FOLDER\n", what);
}

/// Waits as a spare machine, and becomes the one whose place is free. False: the run has ended.
bool become_machine(TrainArguments& arguments) {
  const runs::RunSpec config = load_run_config(arguments);
  collective::MachineOptions& machine = arguments.machine;
  if (!machine.machines || !machine.meet) {
    fail_input({.thing = "--spare",
                .wrong = "it needs --machines and --meet",
                .advice = "give those of the run's other machines"});
  }
  if (!config.train.heal || config.train.heal_wait <= 0) {
    fail_input({.where = config.place(config.train.heal ? "train.heal_wait" : "train.heal"),
                .wrong = "the run does not wait for another machine in the place of a lost one",
                .advice = "set train.heal to true, and train.heal_wait to some seconds"});
  }
  fmt::print("spare machine: waits at {} until one of {} machines is lost\n", *machine.meet,
             *machine.machines);
  std::fflush(stdout);
  machine.number = collective::wait_as_spare(*machine.meet);
  if (!machine.number) {
    fmt::print("spare machine: the run has ended and did not need it\n");
  }
  return machine.number.has_value();
}

/// What the user is told of a run before its ranks start.
struct CheckedRun {
  runs::OpenedRun opened;
  TableRows rows = {};
};

CheckedRun checked_run(const TrainArguments& arguments, bool writes) {
  CheckedRun all{.opened = runs::open_run(load_run_config(arguments), writes)};
  const runs::Run& run = all.opened.run;
  all.rows = runs::at_key(run.config, "model.adapter",
                          [&] { return plan_rows(run.config, runs::data_task_of(run)); });
  runs::check_run(all.opened);
  for (auto& row : fact_rows(run, all.opened.facts)) {
    all.rows.push_back(std::move(row));
  }
  return all;
}

/// Captures the step of the run that a config asks for, whatever it has saved.
int capture(TrainArguments arguments, const CaptureArguments& captured) {
  arguments.overrides.emplace_back("graph.capture=true");
  if (!captured.part.empty()) {
    arguments.overrides.emplace_back("graph.across_steps=true");  // where it cannot be is an error
  }
  const CheckedRun all = checked_run(arguments, false);
  const runs::Run& run = all.opened.run;
  if (captured.rank < 0 || captured.rank >= run.config.ranks()) {
    fail_input({.thing = "--rank",
                .wrong = "the mesh has no such rank",
                .expected = fmt::format("0 to {}", run.config.ranks() - 1),
                .got = fmt::format("{}", captured.rank)});
  }
  if (all.opened.first) {
    write_output("graph capture", captured.to,
                 runs::capture_part(run, captured.rank, captured.part).to_text());
    fmt::print("{}\nprogram written: {}\n", format_table(all.rows), captured.to);
  }
  return 0;
}

int train(TrainArguments arguments) {
  const bool dry_run = arguments.dry_run || arguments.account;
  if (arguments.spare && !become_machine(arguments)) {
    return 0;
  }
  CheckedRun all = checked_run(arguments, !dry_run);
  runs::OpenedRun& opened = all.opened;
  const runs::Run& run = opened.run;
  runs::check_start(opened, dry_run);
  if (opened.first) {
    fmt::print("{}", format_table(all.rows));
    check_stdout();
  }
  if (dry_run) {
    if (opened.first && arguments.account) {
      fmt::print("\nOne step on rank 0:\n\n{}", opened.facts.trial.account.to_string());
    }
    return 0;
  }
  const std::optional<collective::LauncherPlace> place =
      collective::launcher_place(run.config.machine);
  if (place && !opened.first) {
    fmt::print(
        "machine {} of {}: starts {} of the run's {} ranks; machine 0 prints the table and "
        "the progress\n",
        place->machine, place->machines, place->ranks_of(static_cast<int>(run.config.ranks())),
        run.config.ranks());
    std::fflush(stdout);
  }
  const int code = runs::train(opened);
  if ((code == 0 || code == runs::incomplete_code) && opened.first) {
    print_ending(run, arguments.plugins);
  }
  if (code == runs::incomplete_code || (code == 0 && !incomplete_outputs().empty())) {
    fail({.thing = "train",
          .wrong = "all steps are done, and not everything else could be written",
          .advice = "the warnings above say what is missing"});
  }
  return code;
}

/// Every rank of another launcher makes the checks before the launch: one of them prints.
int reported(const TrainArguments& arguments, const ErrorPrinter& print,
             const std::function<int()>& body) {
  try {
    return body();
  } catch (const collective::PeerFailed&) {
    throw;
  } catch (const Error& error) {
    collective::report_refusal(
        error.what(), error.kind(), [&] { print(error.what()); }, arguments.machine);
    throw collective::PeerFailed(error.what(), error.kind());
  }
}

}  // namespace

int run_train(const TrainArguments& arguments, const ErrorPrinter& print) {
  collective::hide_run_key();  // before any other program is started
  return reported(arguments, print, [&] { return train(arguments); });
}

int run_graph_capture(const TrainArguments& arguments, const CaptureArguments& captured,
                      const ErrorPrinter& print) {
  return reported(arguments, print, [&] { return capture(arguments, captured); });
}

}  // namespace tessera::app
