// Steps that leave their updates to the next one: the bits of eager steps, in every layout and with
// every option; and what is seen between two steps.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera;
import tessera.graph;
import tessera.optim;
import tessera.parallel;
import tessera.passes;

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
    run.training.captured().set_enabled(true, across(executor));
    for (std::size_t i = 0; i < steps; ++i) {
      const StepResult got = run.step();
      check(got.loss == expected[i].loss && got.grad_norm == expected[i].grad_norm &&
                got.lr == expected[i].lr,
            "step " + std::to_string(i + 1) + ": loss " + std::to_string(got.loss) +
                " instead of " + std::to_string(expected[i].loss));
    }
    const ReplayCounts& counts = run.training.captured().counts();
    check(counts.not_left == not_left, counts.not_left);
    check(counts.replayed == steps - 2 && counts.left == (not_left.empty() ? steps - 2 : 0),
          "left " + std::to_string(counts.left) + ": " + counts.refusal);
    check(run.training.captured().has_left_updates() == not_left.empty(), "the last one is left");
    same_state(run.training, eager.training, "after steps that leave their updates");
    check(!run.training.captured().has_left_updates(), "state() finishes updates");
  }));
}

}  // namespace

TEST_CASE("steps that leave their updates have the bits of eager ones in every layout",
          "[unverified]") {
  for (const Layouts& layout : replayed_layouts()) {
    for (const std::string& executor : graph::executor_names()) {
      leaves_equal_eager(layout, {}, executor);
    }
  }
}

TEST_CASE("updates are left with dropout, micro-batches, recomputation, frozen and tied weights",
          "[unverified]") {
  for (const char* name : {"one rank", "fully sharded", "hybrid"}) {
    const Layouts layout = layout_named(name);
    leaves_equal_eager(layout, {.net = {.dropout = 0.3}, .micro_rows = 1});
    leaves_equal_eager(layout, {.net = {.checkpointing = true, .dropout = 0.2}});
    leaves_equal_eager(layout, {.net = {.frozen = {"blocks.0", "embed"}}});
    leaves_equal_eager(layout, {.net = {.tied = true}, .groups = true});
    leaves_equal_eager(layout, {.dtype = DType::f32, .max_norm = 0});
  }
}

TEST_CASE("the updates of all optimizers are left", "[unverified]") {
  const Layouts layout = layout_named("fully sharded");
  for (const std::string& name : optim::built_in_rules()) {
    INFO(name);
    leaves_equal_eager(layout, {.rule = name});
  }
}

TEST_CASE("the updates of plugins' optimizers are left", "[unverified]") {
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

TEST_CASE("validations, checkpoints and steps of other shapes see finished updates") {
  const Options options{.net = {.dropout = 0.3}};
  for (const char* name : {"fully sharded", "hybrid"}) {
    const Layouts layout = layout_named(name);
    for (const bool told : {false, true}) {
      const Folder folder;
      INFO(layout.name << (told ? ", last steps are told" : ""));
      REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
        const auto other_rows = [](int at) { return at == 9 ? 2 * rows : rows; };
        set_seed(3);
        Run eager(mesh, layout.styles, options);
        std::vector<double> losses;
        for (int at = 0; at < 16; ++at) {
          losses.push_back(eager.step(other_rows(at)).loss);
          losses.push_back(at % 3 == 1 ? eager.evaluate() : 0);
        }
        set_seed(3);
        Run run(mesh, layout.styles, options);
        run.training.captured().set_enabled(true, across());
        std::vector<double> own;
        for (int at = 0; at < 16; ++at) {
          const bool is_last = at % 3 == 1 || at == 11;
          own.push_back(run.step(other_rows(at), told && is_last).loss);
          check(!told || !is_last || !run.training.captured().has_left_updates(),
                "the last one leaves nothing");
          own.push_back(at % 3 == 1 ? run.evaluate() : 0);
          if (at == 11) {
            told ? run.training.checkpoints().save(folder / "run")
                 : run.training.checkpoints().start(folder / "run");
          }
        }
        check(own == losses, "the same losses");
        run.training.checkpoints().wait();
        same_state(run.training, eager.training, "at the end");
        for (const bool goes_on : {false, true}) {  // the key is on, or off, in a resumed run
          set_seed(3);
          Run resumed(mesh, layout.styles, options);
          resumed.training.captured().set_enabled(goes_on, across());
          if (goes_on) {
            resumed.training.captured().set_program(*run.training.captured().program());
          }
          resumed.training.checkpoints().load(folder / "run");
          for (int at = 12; at < 16; ++at) {
            check(resumed.step().loss == losses[static_cast<std::size_t>(2 * at)], "resumed");
          }
          same_state(resumed.training, eager.training, "resumed from updates that were left");
        }
      }));
    }
  }
}

TEST_CASE("what changes the kind of steps finishes updates first") {
  const Layouts layout = layout_named("fully sharded");
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    constexpr int all = 40;
    const auto taken = [&](Run& run, bool replays) {
      std::vector<double> losses;
      for (int at = 0; at < all; ++at) {
        nn::all_parameters(*run.net.model)[0]->value.set_requires_grad(at < 18 || at > 27);
        if (replays && at >= 36) {
          run.training.captured().set_enabled(at % 2 == 1, across());
        }
        losses.push_back(run.step(at % 3 == 2 ? 2 * rows : rows).loss);
      }
      return losses;
    };
    set_seed(3);
    Run eager(mesh, layout.styles);
    const std::vector<double> expected = taken(eager, false);
    set_seed(3);
    Run run(mesh, layout.styles);
    run.training.captured().set_enabled(true, across());
    check(taken(run, true) == expected, "the same losses");
    same_state(run.training, eager.training, "at the end");
  }));
}

TEST_CASE("parameters that are changed while their update is left are an error, or finished before",
          "[unverified]") {
  const Layouts layout = layout_named("fully sharded");
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    const auto double_first = [](Run& run) {
      const NoGrad no_grad;
      const Tensor local = nn::all_parameters(*run.net.model)[0]->value.local();
      ops::add_(local, local);
    };
    set_seed(3);
    Run eager(mesh, layout.styles);
    set_seed(3);
    Run run(mesh, layout.styles);
    run.training.captured().set_enabled(true, across());
    for (int at = 0; at < 8; ++at) {
      if (at == 7) {
        double_first(eager);
        check(run.training.captured().has_left_updates(), "it is left");
        run.training.captured().finish_updates();
        double_first(run);
      }
      check(run.step().loss == eager.step().loss, "the same loss");
    }
    double_first(run);
    const std::string why = error_of([&] { run.step(); });
    check(why.find("was changed while its update was left to the next step") != std::string::npos,
          why);
  }));
}

TEST_CASE("an error before, after and in the update of the step before", "[unverified]") {
  const Layouts layout = layout_named("fully sharded");
  const Folder folder;
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    set_seed(3);
    Run eager(mesh, layout.styles);
    set_seed(3);
    Run run(mesh, layout.styles);
    run.training.captured().set_enabled(true, across());
    for (int at = 0; at < 6; ++at) {
      eager.step();
      run.step();
    }
    run.training.checkpoints().save(folder / "run");
    eager.step();
    run.step();
    // Rows that cannot be loaded: nothing has begun.
    const std::string rows_error = error_of([&] {
      run.training.step(
          {.rows = rows, .weight = 24},
          StepFunctions{.rows = [](const BatchPart&) -> Tensors { fail("no such file"); },
                        .loss_sum = {}});
    });
    check(rows_error == "no such file", rows_error);
    same_state(run.training, eager.training, "the update is made nevertheless");
    // A step that fails in the section that makes the update.
    eager.step();
    run.step();
    run.options.wrong_tokens = true;
    const std::string wrong = error_of([&] { run.step(); });
    check(wrong.find("embedding") != std::string::npos, wrong);
    const std::string interrupted = error_of([&] { run.training.checkpoints().state(); });
    check(interrupted.find("an error interrupted the update") != std::string::npos, interrupted);
    check(error_of([&] { run.step(); }).find("load a checkpoint") != std::string::npos, "no step");
    run.options.wrong_tokens = false;
    run.training.checkpoints().load(folder / "run");
    run.step();
    run.step();
    same_state(run.training, eager.training, "after the checkpoint was loaded");
  }));
}

TEST_CASE("a captured step of its own cannot leave its update") {
  const std::string why = error_of(
      [] { compile([](StepCall&) { return Tensors(); }, {.execution = {.across_steps = true}}); });
  CHECK(why.find("the update of a step cannot be left to the next call") != std::string::npos);
}
