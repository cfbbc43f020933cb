// The captured step of every config, changed by each pass, by all passes and by random ones in the
// orders that they allow.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.dtensor;
import tessera.program;
import tessera.passes;
import tessera.capture;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.train;
import tessera.app.config;
import tessera.runs;

#include "small_run.hpp"
#include "support.hpp"

using namespace tessera;
using namespace tessera::app;
using namespace parallel_test;

namespace {

using Passes = std::vector<std::string>;

/// Every config, small.
std::vector<std::pair<std::string, runs::Run>> all_runs() {
  use_shipped_plugins();
  std::vector<std::pair<std::string, runs::Run>> all;
  for (const std::string& name : shipped_configs()) {
    all.emplace_back(
        name, small_run(name, {},
                        {"model.dim=64", "model.ffn_dim=96", "data.seq_len=16", "train.steps=40",
                         "optimizer.warmup=2", "train.micro_batch=2"}));
  }
  return all;
}

Passes every_pass() {
  Passes names;
  for (const graph::Change& pass : graph::built_in_passes()) {
    names.push_back(pass.name);
  }
  names.insert(names.end(), {"buckets", "split_lists", "join_lists"});
  return names;
}

/// Adds a pass after what must precede it.
void add(const std::string& name, Passes& into) {
  const graph::Change pass = graph::find_change(name);
  for (const std::string& before : pass.facts.after) {
    if (std::ranges::find(into, before) == into.end()) {
      add(before, into);
    }
  }
  into.push_back(name);
}

std::vector<Passes> alone_and_together() {
  std::vector<Passes> all;
  Passes together;
  for (const std::string& name : every_pass()) {
    add(name, all.emplace_back());
    add(name, together);
  }
  all.push_back(together);
  return all;
}

/// Some passes in any order, some of them twice.
Passes random_passes(std::mt19937& random) {
  Passes names = every_pass();
  std::ranges::shuffle(names, random);
  names.resize(1 + random() % names.size());
  Passes passes;
  for (const std::string& name : names) {
    add(name, passes);
  }
  return passes;
}

std::string in_words(const Passes& passes) {
  std::string text;
  for (const std::string& name : passes) {
    text += " " + name;
  }
  return text;
}

/// A section's instructions with the places that they had.
using Order = std::vector<std::pair<PlaceIndex, Instruction>>;

/// Where instruction `at` and what prepares its operands go: before all that they do not need.
Order moved_up(const Order& order, std::size_t at, const graph::Analysis& known) {
  const auto needs = [&](const auto& later, const auto& earlier) {
    return known.conflict(earlier.first, later.first) ||
           std::ranges::any_of(earlier.second.out, [&](TensorIndex tensor) {
             return tensor.exists() &&
                    std::ranges::find(later.second.in, tensor) != later.second.in.end();
           });
  };
  Order moved = {order[at]};
  Order passed;
  std::size_t begin = at;
  for (; begin > 0; --begin) {
    const auto& earlier = order[begin - 1];
    const bool is_needed =
        std::ranges::any_of(moved, [&](const auto& later) { return needs(later, earlier); });
    const auto kind = earlier.second.kind;
    if (is_needed && kind != Instruction::Kind::empty && kind != Instruction::Kind::alias) {
      break;
    }
    (is_needed ? moved : passed).push_back(earlier);
  }
  Order result(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(begin));
  result.insert(result.end(), moved.rbegin(), moved.rend());
  result.insert(result.end(), passed.rbegin(), passed.rend());
  result.insert(result.end(), order.begin() + static_cast<std::ptrdiff_t>(at) + 1, order.end());
  return result;
}

/// What early_issues must do, with the peak of memory computed anew for each move.
std::pair<Program, int> early_issues_by_trial(Program program) {
  const graph::Analysis known(program);
  int refused = 0;
  PlaceIndex place(0);
  for (Section& section : program.sections) {
    Order order;
    for (const Instruction& i : section.instructions) {
      order.emplace_back(place, i);
      ++place;
    }
    for (std::size_t at = 0; at < order.size(); ++at) {
      if (order[at].second.op == nullptr || !order[at].second.op->issues) {
        continue;
      }
      Order moved = moved_up(order, at, known);
      const std::vector<Instruction> before = section.instructions;
      section.instructions.clear();
      for (const auto& [old_place, i] : moved) {
        section.instructions.push_back(i);
      }
      if (graph::Analysis(program).peak_bytes() <= known.peak_bytes()) {
        order = std::move(moved);
      } else {
        section.instructions = before;
        ++refused;
      }
    }
  }
  return {program, refused};
}

}  // namespace

namespace {

/// Compares the program of every config with what the passes make of it: each alone, all, and so
/// many random ones in random order.
void check_passes(int random_ones) {
  std::mt19937 random(7);
  for (auto& [name, run] : all_runs()) {
    INFO(name);
    run.config.graph.passes = {};
    const Program program = runs::capture_step(run);
    std::vector<Passes> all = alone_and_together();
    for (int i = 0; i < random_ones; ++i) {
      all.push_back(random_passes(random));
    }
    for (const Passes& passes : all) {
      INFO(in_words(passes));
      Program changed = program;
      REQUIRE_NOTHROW(graph::run_passes(changed, passes));
      graph::verify_same(program, changed);
    }
  }
}

}  // namespace

TEST_CASE("captured steps of every config are right after each pass, all, and random ones") {
  check_passes(8);
}

TEST_CASE("captured steps of every config are right after many random passes", "[.long]") {
  check_passes(50);
}

TEST_CASE("early_issues makes the moves that the peak of memory allows, one after the other") {
  int refused = 0;
  int changes = 0;
  for (auto& [name, run] : all_runs()) {
    INFO(name);
    run.config.graph.passes = {};
    Program program = runs::capture_step(run);
    graph::run_passes(program, Passes{"lifetimes"});
    const auto [expected, not_made] = early_issues_by_trial(program);
    refused += not_made;
    Program changed = program;
    graph::run_passes(changed, Passes{"lifetimes", "early_issues"});
    changes += changed.to_text() == program.to_text() ? 0 : 1;
    CHECK(changed.to_text() == expected.to_text());
    CHECK(graph::Analysis(changed).peak_bytes() <= graph::Analysis(program).peak_bytes());
  }
  CHECK(changes > 0);
  CHECK(refused > 0);
}

TEST_CASE("passes after the program was fitted into its budget leave it there", "[.long]") {
  int worse = 0;
  for (auto& [name, run] : all_runs()) {
    INFO(name);
    run.config.graph.passes = {};
    const Program recorded = runs::capture_step(run);
    const Passes before = {"dead", "views", "common", "lifetimes"};
    const Passes after = {"early_issues", "late_waits"};
    Passes all = before;
    all.insert(all.end(), after.begin(), after.end());
    Program improved = recorded;
    graph::run_passes(improved, before);
    const std::int64_t most = graph::planned_bytes(improved);
    for (const double part : {0.95, 0.85}) {
      const auto budget = static_cast<std::int64_t>(part * static_cast<double>(most));
      Program fitted = improved;
      try {
        graph::fit_memory(fitted, budget);
      } catch (const Error&) {  // less than the least
        continue;
      }
      const auto executor =
          graph::make_executor(recorded, {.passes = all, .memory_budget = budget});
      CHECK(graph::planned_bytes(executor->program()) <= budget);
      for (const std::string& pass : after) {
        graph::AddedState none;
        graph::run_change(graph::find_change(pass), fitted, none);
      }
      worse += graph::planned_bytes(fitted) > budget ? 1 : 0;
    }
  }
  CHECK(worse > 0);  // where a pass must be left out
}

TEST_CASE(
    "steps of every config, changed by each pass, all and random ones, have the bits of eager",
    "[.long]") {
  constexpr int steps = 20;
  std::mt19937 random(11);
  for (auto& [name, run] : all_runs()) {
    INFO(name);
    const auto ranks = static_cast<int>(run.config.ranks());
    using Results = std::vector<std::pair<double, double>>;  // loss and gradient norm
    std::vector<Results> eager(static_cast<std::size_t>(ranks));
    const bool mode = !run.config.graph.mode.empty();
    if (mode) {  // all of its steps have a program
      run.config.graph.passes = {};
      run.config.graph.executor = "interpreter";
    }
    const auto take = [&](int rank, const auto& each) {
      runs::Trainer trainer(run);
      for (int i = 0; i < steps; ++i) {
        const StepResult result = trainer.step();
        each(static_cast<std::size_t>(i), std::pair(result.loss, result.grad_norm));
      }
      static_cast<void>(rank);
      return trainer.replays().replayed;
    };
    on_ranks(ranks, [&](int rank) {
      take(rank, [&](std::size_t, const auto& result) {
        eager[static_cast<std::size_t>(rank)].push_back(result);
      });
    });
    run.config.graph.capture = true;
    run.config.graph.executor = "planned";
    std::vector<Passes> all = alone_and_together();
    for (int i = 0; i < 10; ++i) {
      all.push_back(random_passes(random));
    }
    for (const Passes& passes : all) {
      INFO(in_words(passes));
      run.config.graph.passes = passes;
      REQUIRE_NOTHROW(on_ranks(ranks, [&](int rank) {
        const std::int64_t replayed = take(rank, [&](std::size_t step, const auto& result) {
          check(result == eager[static_cast<std::size_t>(rank)][step],
                "step " + std::to_string(step + 1) + " differs");
        });
        check(replayed == (mode ? steps : steps - 2), "steps are replayed");
      }));
    }
  }
}
