// Steps that leave their updates to the next one: the bits of eager steps, in every layout and with
// every option; and what is seen between two steps.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera;

#include "layouts.hpp"
#include "net.hpp"
#include "replayed_run.hpp"
#include "support.hpp"

using namespace tessera;
using namespace parallel_test;
using namespace train_test;

namespace {

constexpr int steps = 12;

graph::ExecutionOptions across(const std::string& executor = "planned") {
  return {.executor = executor, .passes = graph::default_passes(), .across_steps = true};
}

/// Eager steps against those that leave their updates, by every executor.
void leaves_equal_eager(const Layouts& layout, const Options& options,
                        const std::string& executor = "planned", const std::string& not_left = "") {
  INFO(layout.name);
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    set_seed(3);
    Run eager(mesh, layout.styles, options);
    std::vector<StepResult> expected;
    for (int i = 0; i < steps; ++i) {
      expected.push_back(eager.step());
    }
    set_seed(3);
    Run run(mesh, layout.styles, options);
    run.training.set_replay(true, across(executor));
    for (std::size_t i = 0; i < steps; ++i) {
      const StepResult got = run.step();
      check(got.loss == expected[i].loss && got.grad_norm == expected[i].grad_norm &&
                got.lr == expected[i].lr,
            "step " + std::to_string(i + 1) + ": loss " + std::to_string(got.loss) +
                " instead of " + std::to_string(expected[i].loss));
    }
    const ReplayCounts& counts = run.training.replays();
    check(counts.not_left == not_left, counts.not_left);
    check(counts.replayed == steps - 4 && counts.left == (not_left.empty() ? steps - 4 : 0),
          "left " + std::to_string(counts.left) + ": " + counts.refusal);
    check(run.training.has_left_updates() == not_left.empty(), "the last one is left");
    same_state(run.training, eager.training, "after steps that leave their updates");
    check(!run.training.has_left_updates(), "state() finishes updates");
  }));
}

}  // namespace

TEST_CASE("steps that leave their updates have the bits of eager ones in every layout") {
  for (const Layouts& layout : replayed_layouts()) {
    for (const std::string& executor : graph::executor_names()) {
      leaves_equal_eager(layout, {}, executor);
    }
  }
}

TEST_CASE("updates are left with dropout, micro-batches, recomputation, frozen and tied weights") {
  for (const char* name : {"one rank", "fully sharded", "hybrid"}) {
    const Layouts layout = layout_named(name);
    leaves_equal_eager(layout, {.net = {.dropout = 0.3}, .micro_rows = 1});
    leaves_equal_eager(layout, {.net = {.checkpointing = true, .dropout = 0.2}});
    leaves_equal_eager(layout, {.net = {.frozen = {"blocks.0", "embed"}}});
    leaves_equal_eager(layout, {.net = {.tied = true}, .groups = true});
    leaves_equal_eager(layout, {.dtype = DType::f32, .max_norm = 0});
  }
}

TEST_CASE("the updates of all optimizers are left") {
  const Layouts layout = layout_named("fully sharded");
  for (const std::string& name : optim::built_in_rules()) {
    INFO(name);
    leaves_equal_eager(layout, {.rule = name});
  }
}

TEST_CASE("the updates of plugins' optimizers are left") {
  for (const char* file : {TESSERA_LION, TESSERA_ADAFACTOR, TESSERA_MUON}) {
    plugin::host().load(file);
  }
  for (const char* name : {"one rank", "fully sharded", "hybrid"}) {
    const Layouts layout = layout_named(name);
    for (const char* rule : {"Lion", "adafactor", "muon"}) {
      INFO(name << " " << rule);
      leaves_equal_eager(layout, {.groups = true, .rule = rule});
    }
  }
}
