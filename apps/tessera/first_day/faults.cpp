module;
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/json.hpp>
#include <thread>
#include <utility>
#include <vector>
module tessera.app.first_day;

import tessera.base;
import tessera.app.base;
import :checks;
import :pack;
import :pack_runs;

// The part "faults".
namespace tessera::app::first_day {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

/// So many that something can happen meanwhile.
int long_steps(const MachineSetup& here) { return here.small ? 8 : 40; }

Outcome failed(std::string problem) { return {.status = "failed", .problem = std::move(problem)}; }

Words small_run(const MachineSetup& here, std::size_t number, const Words& further = {}) {
  Words words = gpu_words(here, style_runs()[number]);
  words.insert(words.end(), further.begin(), further.end());
  return words;
}

const Outcome without_nccl{.status = "absent",
                           .problem = "NCCL's library (libnccl.so.2) is not there"};

/// Registered memory, an abort of queued work, a member that never comes.
Outcome nccl_checks(const MachineSetup& here, double seconds) {
  if (!here.gpus.has_library("libnccl.so")) {
    return without_nccl;
  }
  const ProgramOutcome ran = run_words({here.pack.path("bin/tessera-tools"), "plugin", "check",
                                        here.pack.path("lib/tessera/plugins/nccl.so")},
                                       seconds);
  Outcome outcome = outcome_of(ran);
  outcome.facts = json_text(Json{{"text", ran.output.substr(0, 3000)}});
  return outcome;
}

/// A fully sharded step of one rank has the bits of one without a mesh.
Outcome nccl_steps(const MachineSetup& here, const Words& executor, double seconds) {
  if (!here.gpus.has_library("libnccl.so")) {
    return without_nccl;
  }
  constexpr std::size_t fully_sharded = 3;
  const Steps found = train(here, "nccl", small_run(here, fully_sharded, executor), 4, seconds / 2);
  const Steps wanted = train(here, "nccl-none", small_run(here, 0, executor), 4, seconds / 2);
  for (const Steps* steps : {&found, &wanted}) {
    if (!steps->ran.problem.empty()) {
      return outcome_of(steps->ran);
    }
  }
  return same_bits(found, wanted)
             ? Outcome{}
             : failed("steps with one rank of a mesh have other bits than steps without a mesh");
}

/// compute-sanitizer, or nothing.
std::string sanitizer() {
  const char* const path = std::getenv("PATH");
  const char* const home = std::getenv("CUDA_HOME");
  std::istringstream folders(fmt::format("{}:{}/bin:/usr/local/cuda/bin",
                                         path == nullptr ? "" : path,
                                         home == nullptr ? "/usr/local/cuda" : home));
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::error_code ignored;
    if (fs::exists(folder + "/compute-sanitizer", ignored)) {
      return folder + "/compute-sanitizer";
    }
  }
  return "";
}

Outcome sanitized(const MachineSetup& here, const std::string& tool, double seconds) {
  const std::string program = sanitizer();
  if (program.empty()) {
    return {.status = "absent",
            .problem = "compute-sanitizer is not there (it is part of the CUDA toolkit)"};
  }
  Words words = {program, "--tool",
                 tool,    "--error-exitcode",
                 "9",     "--target-processes",
                 "all",   here.pack.program(),
                 "train"};
  for (const std::string& word :
       small_run(here, 0,
                 {"model.layers=1", "train.steps=2", "optimizer.warmup=1",
                  "checkpoint.folder=", "log.metrics=", "log.sample=0"})) {
    words.push_back(word);
  }
  const ProgramOutcome ran = run_words(words, seconds);
  Outcome outcome = outcome_of(ran);
  const std::size_t summary = ran.output.find(" SUMMARY");
  if (outcome.status == "passed" && summary == std::string::npos) {
    return failed("compute-sanitizer has printed no summary");
  }
  if (summary != std::string::npos) {
    outcome.facts = json_text(Json{{"summary", ran.output.substr(summary + 1, 200)}});
  }
  return outcome;
}

/// Sends a signal to all processes of a run once it has taken some steps. Whether there was a run.
bool signal_run(const std::string& metrics, const std::string& process_file, std::size_t steps,
                int signal, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::error_code ignored;
    const auto bytes = fs::file_size(metrics, ignored);
    if (ignored || bytes == 0 || !fs::exists(process_file, ignored)) {
      continue;
    }
    const std::string text = read_input(metrics);
    if (static_cast<std::size_t>(std::ranges::count(text, '\n')) >= steps) {
      const pid_t process = std::atoi(read_input(process_file).c_str());
      return process > 1 && kill(-process, signal) == 0;
    }
  }
  return false;
}

/// A run whose processes get signals meanwhile: `interrupt` is called beside it.
template <class Interrupt>
Steps train_interrupted(const MachineSetup& here, const std::string& name, const Words& words,
                        double seconds, Interrupt interrupt) {
  const std::string process_file = here.scratch + "/" + name + ".process";
  std::error_code ignored;
  fs::remove(process_file, ignored);
  fs::remove(here.scratch + "/" + name + ".jsonl", ignored);
  setenv("TESSERA_FIRST_DAY_PROCESS", process_file.c_str(), 1);
  std::thread beside([&] { interrupt(here.scratch + "/" + name + ".jsonl", process_file); });
  Steps found = train(here, name, words, long_steps(here), seconds);
  unsetenv("TESSERA_FIRST_DAY_PROCESS");
  beside.join();
  return found;
}

/// A process that stands still for two seconds, in the middle of its steps.
Outcome stopped_process(const MachineSetup& here, double seconds) {
  const Words words = small_run(here, 0);
  const Steps wanted = train(here, "not-stopped", words, long_steps(here), seconds / 2);
  if (!wanted.ran.problem.empty()) {
    return outcome_of(wanted.ran);
  }
  bool was_stopped = false;
  const Steps found =
      train_interrupted(here, "stopped", words, seconds / 2,
                        [&](const std::string& metrics, const std::string& process_file) {
                          was_stopped = signal_run(metrics, process_file, 2, SIGSTOP, seconds / 4);
                          std::this_thread::sleep_for(std::chrono::seconds(2));
                          signal_run(metrics, process_file, 0, SIGCONT, 1);
                        });
  if (!found.ran.problem.empty()) {
    return outcome_of(found.ran);
  }
  if (!was_stopped) {
    return failed("the run could not be stopped");
  }
  return same_bits(found, wanted) ? Outcome{}
                                  : failed("a run that was stopped and continued has other losses");
}

/// A process that is killed; the same command goes on from its last checkpoint.
Outcome killed_process(const MachineSetup& here, double seconds) {
  const std::string checkpoints = here.scratch + "/killed";
  std::error_code ignored;
  fs::remove_all(checkpoints, ignored);
  const Words words = small_run(here, 0);
  const Steps wanted = train(here, "not-killed", words, long_steps(here), seconds / 3);
  Words saving = words;
  saving.insert(saving.end(), {"checkpoint.folder=" + checkpoints, "checkpoint.every=1"});
  const Steps killed =
      train_interrupted(here, "killed", saving, seconds / 3,
                        [&](const std::string& metrics, const std::string& process_file) {
                          signal_run(metrics, process_file, 3, SIGKILL, seconds / 4);
                        });
  if (killed.ran.code == 0) {
    return failed("the run could not be killed");
  }
  const Steps found = train(here, "continued", saving, long_steps(here), seconds / 3);
  for (const Steps* steps : {&wanted, &found}) {
    // What continues writes fewer steps.
    if (steps->ran.code != 0) {
      return outcome_of(steps->ran);
    }
  }
  if (found.values.empty() || found.values.size() >= static_cast<std::size_t>(long_steps(here))) {
    return failed("the run did not go on from a checkpoint");
  }
  return found.values.back() == wanted.values.back()
             ? Outcome{}
             : failed("a run that goes on after a kill ends with another loss");
}

/// A model that fits nowhere is refused, with both numbers.
Outcome too_large_model(const MachineSetup& here, double seconds) {
  Words words = model_words(here, model_runs()[1]);
  words.insert(words.end(), {"train.device=cuda", "model.ffn_dim=16777216"});
  if (here.small) {
    words.emplace_back("model.dim=65536");
  }
  const Steps found = train(here, "too-large", words, 1, seconds);
  if (found.ran.late) {
    return outcome_of(found.ran);
  }
  const bool says = found.ran.output.find("memory") != std::string::npos;
  return found.ran.code == 2 || (found.ran.code == 1 && says)
             ? (says ? Outcome{.facts = json_text(Json{{"text", found.ran.problem}})}
                     : failed("the refusal does not mention memory: " + found.ran.problem))
             : failed(
                   fmt::format("a model that does not fit is not refused: {}", found.ran.problem));
}

}  // namespace

std::vector<Item> fault_items(const MachineSetup& here) {
  const Words planned = {"graph.capture=true", "graph.executor=planned"};
  const Words graphs = {"graph.capture=true", "graph.executor=planned", "graph.device_graphs=true"};
  std::vector<Item> items;
  const auto add = [&](const char* name, double seconds, std::function<Outcome(double)> run) {
    items.push_back({.name = name, .seconds = seconds, .run = std::move(run)});
  };
  add("NCCL", 20, [&here](double seconds) { return nccl_checks(here, seconds); });
  add("NCCL, steps", 12, [&here](double seconds) { return nccl_steps(here, {}, seconds); });
  add("NCCL, planned steps", 12,
      [&here, planned](double seconds) { return nccl_steps(here, planned, seconds); });
  add("NCCL, steps as graphs", 12,
      [&here, graphs](double seconds) { return nccl_steps(here, graphs, seconds); });
  add("a process that is stopped", 20,
      [&here](double seconds) { return stopped_process(here, seconds); });
  add("a process that is killed", 30,
      [&here](double seconds) { return killed_process(here, seconds); });
  add("too little memory", 15, [&here](double seconds) { return too_large_model(here, seconds); });
  add("compute-sanitizer memcheck", 40,
      [&here](double seconds) { return sanitized(here, "memcheck", seconds); });
  add("compute-sanitizer racecheck", 40,
      [&here](double seconds) { return sanitized(here, "racecheck", seconds); });
  return items;
}

}  // namespace tessera::app::first_day
