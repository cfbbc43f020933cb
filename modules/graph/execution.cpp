module;
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.graph;

import tessera.base;
import tessera.tensor;
import tessera.program;
import tessera.execute;
import tessera.passes;
import :across_steps;
import :anchor;

namespace tessera::graph {

std::vector<Change> default_changes() {
  std::vector<Change> changes;
  for (const std::string& name : default_passes()) {
    changes.push_back({.name = name});
  }
  return changes;
}

void add_changes(ExecutionOptions& options, std::span<const Change> changes) {
  std::vector<std::string> passes;
  std::vector<Change> others;
  for (const Change& given : changes) {
    const bool is_named = !given.run && !given.replacement;
    const Change change = is_named ? find_change(given.name) : given;
    if (change.replacement) {
      fail_input({.thing = fmt::format("change '{}'", shown(change.name)),
                  .wrong = "it replaces modules, and the step's are there already",
                  .advice = "use replace_modules where the model is made"});
    }
    check_facts(change);
    if (!is_named || !is_pass(change)) {
      others.push_back(change);
    } else if (others.empty()) {
      passes.push_back(change.name);
    } else {
      fail_input({.thing = fmt::format("pass '{}'", shown(change.name)),
                  .wrong = fmt::format("it comes after '{}'", others.back().name),
                  .advice = "put passes first"});
    }
  }
  options.passes.insert(options.passes.begin(), passes.begin(), passes.end());
  options.transforms.insert(options.transforms.begin(), others.begin(), others.end());
}

const Change* changes_bits(const ExecutionOptions& options) {
  const auto found = std::ranges::find_if(
      options.transforms, [](const Change& change) { return !change.facts.keeps_bits; });
  return found == options.transforms.end() ? nullptr : &*found;
}

ExecutionOptions without_changes(ExecutionOptions options) {
  options.transforms.clear();
  options.dump.clear();
  options.memory_budget = 0;
  options.passes = without_keeping(options.passes);
  return options;
}

std::vector<std::string> executor_names() { return {"compiled", "interpreter", "planned"}; }

void check(const ExecutionOptions& options) {
  const std::vector<std::string> names = executor_names();
  if (std::ranges::find(names, options.executor) == names.end()) {
    fail_input({.wrong = fmt::format("there is no executor '{}'", shown(options.executor)),
                .expected = "one of " + join_words(names)});
  }
  check_passes(options.passes);
  std::vector<std::string> before = options.passes;
  for (const Change& change : options.transforms) {
    check_facts(change);
    check_order(change, before);
    before.push_back(change.name);
  }
  const Change* const change = changes_bits(options);
  if (options.verify < 0 || (options.verify > 0 && change != nullptr)) {
    fail_input({.thing = "verify",
                .wrong = options.verify < 0 ? std::string("a number of steps is negative")
                                            : fmt::format("change '{}' changes what steps "
                                                          "compute, so they differ from steps as "
                                                          "they are written",
                                                          change->name),
                .expected = options.verify < 0 ? "0 or more" : "",
                .got = options.verify < 0 ? fmt::format("{}", options.verify) : "",
                .advice = "leave one of the two out"});
  }
}

std::int64_t verified_every(const ExecutionOptions& options) {
  if (options.verify > 0 || changes_bits(options) != nullptr) {
    return options.verify;
  }
  const char* const text = std::getenv("TESSERA_GRAPH_VERIFY");
  if (text == nullptr) {
    return 0;
  }
  std::int64_t every = 0;
  const std::string_view digits(text);
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), every);
  if (error != std::errc() || end != digits.end() || every < 0) {
    fail_input({.thing = "TESSERA_GRAPH_VERIFY",
                .wrong = "it is not a number of steps",
                .expected = "0 or more",
                .got = fmt::format("'{}'", shown(digits))});
  }
  return every;
}

namespace {

std::ptrdiff_t collectives_of(const Program& program) {
  std::ptrdiff_t calls = 0;
  for (const Section& section : program.sections) {
    calls += std::ranges::count_if(section.instructions, is_collective);
  }
  return calls;
}

/// Those after which a program that is within its budget still is: what moves may pack worse. What
/// changes communication stays, because all ranks must decide alike.
std::vector<std::string> within_budget(Program program, std::span<const std::string> names,
                                       std::int64_t budget, const Agree& agree) {
  std::vector<std::string> kept;
  for (const std::string& name : names) {
    Program changed = program;
    run_checked(changed, {&name, 1}, {}, agree);
    if (planned_bytes(changed) <= budget || collectives_of(changed) != collectives_of(program)) {
      kept.push_back(name);
      program = std::move(changed);
    }
  }
  return kept;
}

/// Error (input): the program needs more than its budget.
void check_budget(const Program& program, const ExecutionOptions& options, const std::string& wrong,
                  const std::string& advice) {
  if (const std::int64_t needed = planned_bytes(program); needed > options.memory_budget) {
    fail_input({.thing = "graph.memory_budget",
                .wrong = wrong,
                .expected = fmt::format(
                    "at most {}", format_bytes(static_cast<std::uint64_t>(options.memory_budget))),
                .got = format_bytes(static_cast<std::uint64_t>(needed)),
                .advice = advice});
  }
}

/// Bytes that a step keeps until the next one. Error (input): that alone is more than the budget.
std::int64_t kept_bytes(const Program& program, const ExecutionOptions& options) {
  const std::int64_t kept = options.across_steps ? split_across_steps(program).pending_bytes : 0;
  if (kept >= options.memory_budget) {
    fail_input(
        {.thing = "graph.memory_budget",
         .wrong = "the gradients that are kept until the next step alone need more",
         .expected = fmt::format("more than {}", format_bytes(static_cast<std::uint64_t>(kept))),
         .got = format_bytes(static_cast<std::uint64_t>(options.memory_budget)),
         .advice = "raise it, or set graph.across_steps=false"});
  }
  return kept;
}

FitOptions fit_options(const ExecutionOptions& options, std::int64_t kept) {
  FitOptions fit{.computing = options.computing, .kept = kept};
  if (options.elsewhere != nullptr) {
    fit.offloading = options.offloading;
  }
  return fit;
}

/// Passes before and after the program is fitted into its budget.
void improve(Program& program, const ExecutionOptions& options) {
  const std::string dump =
      options.dump.empty() ? std::string() : fmt::format("{}/rank-{}", options.dump, program.rank);
  const std::span<const std::string> all = options.passes;
  if (options.memory_budget == 0) {
    if (!all.empty() || !dump.empty()) {
      run_passes(program, all, dump, options.agree);
    }
    return;
  }
  const auto last = std::ranges::find_if(all.rbegin(), all.rend(), [](const std::string& name) {
    return find_change(name).facts.ends_lifetimes;
  });
  const auto before = static_cast<std::size_t>(all.rend() - last);
  run_checked(program, all.first(before), dump, options.agree);
  const std::int64_t kept = kept_bytes(program, options);
  fit_memory(program, options.memory_budget, fit_options(options, kept));
  const std::int64_t budget = options.memory_budget - kept;
  const std::span<const std::string> names = all.subspan(before);
  for (const std::string& name : names) {
    const std::optional<PartialPass> keeps = find_change(name).keeps;
    if (!keeps) {
      continue;
    }
    if (options.kept_gathers < 0) {
      keeps->within(program, budget);
    } else {
      keeps->spare(program, options.kept_gathers);
      check_budget(program, options, "the step needs more with the gathers that it keeps",
                   "leave room for what ranks with larger shards need");
    }
  }
  const std::vector<std::string> rest =
      within_budget(program, without_keeping(names), budget, options.agree);
  run_checked(program, rest, dump.empty() ? dump : dump + "/within-budget", options.agree);
}

}  // namespace

void transform(Program& program, const ExecutionOptions& options, AddedState& added) {
  for (const Change& change : options.transforms) {
    run_change(change, program, added, options.agree);
  }
  if (!options.keeps_anchors) {
    check_no_anchors(program);
  }
  if (options.memory_budget == 0 || options.transforms.empty()) {
    return;
  }
  check_budget(program, options, "the step needs more with its changes",
               "leave room for what they add");
}

AcrossSteps across_steps(const Program& program, const ExecutionOptions& options) {
  AcrossSteps parts = split_across_steps(program);
  if (!parts.refusal.empty()) {
    return parts;
  }
  std::vector<std::string> names;  // of the options' passes, what only moves communication
  std::ranges::copy_if(options.passes, std::back_inserter(names), [](const std::string& name) {
    return find_change(name).facts.moves_communication;
  });
  for (Program* const part : {&parts.first, &parts.middle, &parts.last}) {
    if (options.memory_budget == 0) {
      run_checked(*part, names, {});
    } else {
      run_checked(*part, within_budget(*part, names, options.memory_budget, options.agree), {});
      check_budget(*part, options, "the step needs more when its update is left to the next one",
                   "leave room for it, or set graph.across_steps=false");
    }
  }
  return parts;
}

namespace {

/// Why the program's kernels are not compiled; "": they may be.
std::string over_budget(const Program& program, const ExecutionOptions& options) {
  return options.memory_budget == 0 || planned_bytes(program, true) <= options.memory_budget
             ? std::string()
             : "with them, the step would need more than its budget of memory";
}

}  // namespace

std::optional<CompiledKernels> compile_kernels(const Program& program,
                                               const ExecutionOptions& options) {
  if (options.executor != "compiled" || options.kind != DeviceType::cpu) {
    return std::nullopt;
  }
  if (std::string why = over_budget(program, options); !why.empty()) {
    return CompiledKernels{.missing = std::move(why)};
  }
  return CompiledChains(program).summary();
}

std::unique_ptr<Executor> make_executor(Program program, const ExecutionOptions& options,
                                        AddedState* added) {
  check(options);
  improve(program, options);
  AddedState unused;
  transform(program, options, added != nullptr ? *added : unused);
  return executor_of(std::move(program), options);
}

std::unique_ptr<Executor> executor_of(Program program, const ExecutionOptions& options) {
  if (options.executor == "interpreter") {
    return std::make_unique<Replay>(std::move(program), options.elsewhere);
  }
  const bool compiled = options.executor == "compiled" && over_budget(program, options).empty();
  return std::make_unique<PlannedExecutor>(std::move(program), compiled, options.elsewhere,
                                           options.device_graphs, options.kind);
}

}  // namespace tessera::graph
