module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>
module tessera.app.run;

import tessera.base;
import tessera.tensor;
import tessera.dtensor;
import tessera.execute;
import tessera.parallel;
import tessera.runs;
import tessera.app.base;

namespace tessera::app {
namespace {

/// The communication of a step: a row for each mesh axis.
TableRows communication_rows(const Account& account) {
  struct Sum {
    std::vector<std::string> parts;
    std::int64_t bytes = 0;
  };
  std::map<std::string, Sum> axes;
  for (const auto& [key, work] : account.collectives) {
    Sum& sum = axes[key.first];
    sum.parts.push_back(fmt::format("{} {}", work.calls, key.second));
    sum.bytes += work.bytes;
  }
  TableRows rows;
  for (const auto& [axis, sum] : axes) {
    rows.push_back({"communication",
                    fmt::format("on '{}': {}; {} per rank and step", axis, join_words(sum.parts),
                                format_bytes(static_cast<std::uint64_t>(sum.bytes)))});
  }
  return rows;
}

std::string kernels_text(const graph::CompiledKernels& kernels) {
  return kernels.missing.empty()
             ? fmt::format("{} calls of {} compiled kernels for {} calls of operators",
                           kernels.chains, kernels.kernels, kernels.replaced)
             : "no kernels are compiled: " + kernels.missing;
}

/// Of the styles that the run's entries apply.
TableRows style_rows(const runs::Trial& trial) {
  TableRows rows;
  for (const parallel::StyleSummary& style : trial.styles) {
    rows.push_back(
        {"style", fmt::format("{}{}: {}, {} parameters{}{}", style.style,
                              style.axis.empty() ? "" : fmt::format(" on '{}'", style.axis),
                              count_text(style.modules, "module"),
                              format_count(static_cast<double>(style.parameters)),
                              style.decided.empty() ? "" : "; ", style.decided)});
  }
  return rows;
}

/// The text of a captured step.
std::string captured_text(const runs::RunSpec& config, const runs::CapturedFacts& step) {
  const auto bytes = [](auto count) { return format_bytes(static_cast<std::uint64_t>(count)); };
  std::string text =
      fmt::format("{} instructions, needs {}", step.instructions, bytes(step.needed));
  if (!config.graph.memory_budget.empty()) {
    text += " of " + config.graph.memory_budget;
  }
  if (step.kept_elsewhere > 0) {
    text += fmt::format(", {} of it kept elsewhere", bytes(step.kept_elsewhere));
  }
  if (step.pending >= 0) {
    text += fmt::format(", {} of it kept for the update, which the next step makes",
                        bytes(step.pending));
  }
  if (!config.graph.offload.empty()) {
    text += fmt::format("; keeps {} values ({}) in {}", step.values_in_files,
                        bytes(step.bytes_in_files), config.graph.offload);
  }
  if (runs::keeps_gathers(config.graph)) {
    text += fmt::format("; {} of {} gathers are made", step.gathers_made, step.gathers);
  }
  if (step.kernels) {
    text += "; " + kernels_text(*step.kernels);
  }
  return text + "; " +
         (step.reads.empty()
              ? "replayed from the first step on"
              : "recorded in steps 3 and 4, as the host reads values in " + step.reads);
}

/// "8 bytes of each trained parameter: 2 of itself, ..."; empty: nothing is trained, or this rank
/// has none of it.
std::string stored_text(const runs::Trial::StoredBytes& stored) {
  if (stored.elements == 0) {
    return "";
  }
  const auto each = [&](std::int64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(stored.elements);
  };
  return fmt::format(
      "{:.3g} bytes for each trained parameter: itself {:.3g}, its gradient {:.3g}, the "
      "optimizer's state {:.3g}",
      each(stored.values + stored.gradients + stored.state), each(stored.values),
      each(stored.gradients), each(stored.state));
}

/// What the ranks need: of each place of stages, and by category where it is most.
TableRows memory_rows(const runs::Trial& trial) {
  TableRows rows;
  for (std::size_t place = 0; place < trial.places.size(); ++place) {
    rows.push_back(
        {fmt::format("ranks {}", place), fmt::format("{}: {}", trial.places[place].stages,
                                                     format_bytes(static_cast<std::uint64_t>(
                                                         trial.places[place].memory.total_peak)))});
  }
  rows.push_back({"memory", fmt::format("per rank{}, estimated: {}",
                                        trial.places.empty() ? "" : " that needs most",
                                        runs::memory_text(trial.account.memory))});
  return rows;
}

/// Where the state is kept, with its bytes for each rank.
std::string healing_text(const runs::Run& run, std::size_t bytes) {
  const std::int64_t every = run.config.train.heal_every;
  const std::string when = every == 1 ? "step" : fmt::format("{} steps", every);
  if (!runs::has_second_home(run)) {
    return fmt::format("the state is kept in memory after every {}, twice: {} per rank", when,
                       format_bytes(bytes));
  }
  return fmt::format(
      "the state is kept in memory after every {}, twice, here and on the next machine: {} per "
      "rank; {} per rank are sent there each time",
      when, format_bytes(bytes),
      format_bytes(bytes / static_cast<std::size_t>(runs::kept_copies(run))));
}

/// What is known of the step besides its memory.
void add_work(const Account& account, TableRows& rows) {
  rows.push_back(
      {"work", fmt::format("{} per step; per rank {}, {} moved", format_flops(account.model_flops),
                           format_flops(account.flops()),
                           format_bytes(static_cast<std::uint64_t>(account.bytes())))});
  for (auto& row : communication_rows(account)) {
    rows.push_back(std::move(row));
  }
}

}  // namespace

TableRows fact_rows(const runs::Run& run, const runs::Facts& facts) {
  const runs::Trial& trial = facts.trial;
  TableRows rows = style_rows(trial);
  if (!trial.objective.empty()) {
    rows.push_back({"objective", trial.objective});
  }
  if (facts.layouts) {
    rows.push_back({"mode", runs::mode_text(run.config, *facts.layouts)});
  }
  if (trial.frozen_parameters > 0) {
    rows.push_back(
        {"frozen", fmt::format("{} of {} parameters",
                               format_count(static_cast<double>(trial.frozen_parameters)),
                               format_count(static_cast<double>(trial.parameters)))});
  }
  if (const std::string links = runs::links_text(run.config); !links.empty()) {
    rows.push_back({"links", links});
  }
  for (auto& row : memory_rows(trial)) {
    rows.push_back(std::move(row));
  }
  if (trial.kept_bytes > 0) {
    rows.push_back({"healing", healing_text(run, trial.kept_bytes)});
  }
  if (const std::string stored = stored_text(trial.stored); !stored.empty()) {
    rows.push_back({"stored", stored});
  }
  for (std::size_t place = 0; place < facts.captured.size(); ++place) {
    rows.push_back(
        {"captured step", (trial.places.empty() ? "" : fmt::format("ranks {}: ", place)) +
                              captured_text(run.config, facts.captured[place])});
  }
  if (trial.bytes_elsewhere > 0) {
    rows.push_back({"kept elsewhere", fmt::format("{} per rank, in other places than the device's "
                                                  "memory",
                                                  format_bytes(trial.bytes_elsewhere))});
  }
  add_work(trial.account, rows);
  return rows;
}

}  // namespace tessera::app
