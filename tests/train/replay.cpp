// Steps that are recorded and replayed: the bits of steps that are taken as always, in every layout
// and with every option; and the text of programs.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera;
import tessera.graph;
import tessera.optim;
import tessera.parallel;
import tessera.passes;
import tessera.program;
import tessera.tensor;

#include "layouts.hpp"
#include "net.hpp"
#include "replayed_run.hpp"
#include "support.hpp"

using namespace tessera;
using namespace parallel_test;
using namespace train_test;

namespace {

std::vector<std::string> all_passes() {
  std::vector<std::string> names = graph::change_names();
  std::erase_if(names,
                [](const std::string& name) { return !graph::is_pass(graph::find_change(name)); });
  return names;
}

/// Twelve steps of which the last ones are replayed, against eager ones; then text, read in a
/// training that has taken no step of its own; then eager steps after replayed ones.
void replays_equal_eager(const Layouts& layout, const Options& options, std::int64_t recorded = 1) {
  INFO(layout.name);
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    set_seed(3);
    Run eager(mesh, layout.styles, options);
    std::vector<StepResult> expected;
    for (int i = 0; i < 14; ++i) {
      expected.push_back(eager.step());
    }
    const auto compare = [&](const StepResult& result, std::size_t i) {
      check(result.loss == expected[i].loss && result.grad_norm == expected[i].grad_norm &&
                result.lr == expected[i].lr,
            "step " + std::to_string(i + 1) + ": loss " + std::to_string(result.loss) +
                " instead of " + std::to_string(expected[i].loss));
    };
    set_seed(3);
    Run run(mesh, layout.styles, options);
    run.training.captured().set_enabled(true, {.passes = all_passes()});
    for (std::size_t i = 0; i < 14; ++i) {
      compare(run.step(), i);
    }
    const ReplayCounts& counts = run.training.captured().counts();
    check(counts.replayed == 13 - recorded && counts.recorded == recorded && counts.eager == 1,
          "replayed " + std::to_string(counts.replayed) + ": " + counts.refusal);
    same_state(run.training, eager.training, "after replayed steps");
    const std::string text = run.training.captured().program()->to_text();
    const Program parsed = Program::parse(text);
    check(parsed.to_text() == text, "the text is read back exactly");
    set_seed(3);
    Run other(mesh, layout.styles, options);
    other.training.captured().set_enabled(true, {.executor = "interpreter"});
    Program improved = parsed;
    const auto reports = graph::run_passes(improved, all_passes());
    for (const graph::PassReport& pass : reports) {
      check(pass.peak_after <= pass.peak_before, pass.name + " needs more memory");
    }
    other.training.captured().set_program(improved);
    for (std::size_t i = 0; i < 14; ++i) {
      if (i == 10) {
        other.training.captured().set_enabled(false);  // eager steps follow replayed ones
      }
      compare(other.step(), i);
      check(i >= 10 ||
                other.training.captured().counts().replayed == static_cast<std::int64_t>(i) + 1,
            "replayed from the first step: " + other.training.captured().counts().refusal);
    }
    same_state(other.training, eager.training, "after eager steps behind replayed ones");
  }));
}

}  // namespace

TEST_CASE("replayed steps have the bits of eager ones, from text too, in every layout") {
  for (const Layouts& layout : replayed_layouts()) {
    replays_equal_eager(layout, {});
  }
}

TEST_CASE("dropout, micro-batches, recomputation, frozen and tied parameters are replayed") {
  for (const char* name : {"one rank", "fully sharded", "hybrid"}) {
    const Layouts layout = layout_named(name);
    replays_equal_eager(layout, {.net = {.dropout = 0.3}});
    replays_equal_eager(layout, {.net = {.dropout = 0.3}, .micro_rows = 1});
    replays_equal_eager(layout, {.net = {.checkpointing = true, .dropout = 0.2}});
    replays_equal_eager(layout, {.net = {.frozen = {"blocks.0", "embed"}}});
    replays_equal_eager(layout, {.net = {.tied = true}, .groups = true});
    replays_equal_eager(layout, {.dtype = DType::f32});
  }
}

TEST_CASE("the steps of all optimizers are replayed, with what in them depends on the step") {
  const Layouts layout = layout_named("fully sharded");
  for (const std::string& name : optim::built_in_rules()) {
    INFO(name);
    replays_equal_eager(layout, {.rule = name});
  }
  for (const auto& [name, options] : std::vector<std::pair<std::string, std::string>>{
           {"sgd", R"({"momentum": 0.9})"},
           {"adamw", R"({"amsgrad": true})"},
           {"nadam", R"({"decoupled_weight_decay": true})"},
           {"rmsprop", R"({"momentum": 0.9, "centered": true, "eps": 0.1})"},
           {"asgd", R"({"t0": 4})"}}) {
    INFO(name << " " << options);
    replays_equal_eager(layout, {.rule = name, .rule_options = options});
  }
}

TEST_CASE("optimizers of plugins are replayed, with the numbers that they name") {
  for (const char* file : {TESSERA_LION, TESSERA_ADAFACTOR, TESSERA_MUON}) {
    plugin::host().load(file);
  }
  for (const char* name : {"one rank", "fully sharded", "hybrid"}) {
    const Layouts layout = layout_named(name);
    for (const char* rule : {"Lion", "adafactor", "muon"}) {
      INFO(name << " " << rule);
      replays_equal_eager(layout, {.groups = true, .rule = rule});
    }
  }
}

TEST_CASE("the clipping factor, the learning rate and the weight are variables") {
  const Layouts layout = layout_named("fully sharded");
  replays_equal_eager(layout, {.max_norm = 1e9});  // the factor is 1 in all steps
  replays_equal_eager(layout, {.max_norm = 0});
  replays_equal_eager(layout, {.more_weight = 3});
  // The norm falls below the bound only after the recording: a factor that was not followed would
  // be the recorded one.
  replays_equal_eager(layout, {.max_norm = 20, .first_weight = 4, .more_weight = 10});
}

TEST_CASE("validations, checkpoints and steps of another shape may come between replayed steps",
          "[unverified]") {
  const Options options{.net = {.dropout = 0.3}};
  for (const char* name : {"fully sharded", "hybrid"}) {
    const Layouts layout = layout_named(name);
    const Folder folder;
    INFO(layout.name);
    REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
      const auto other_rows = [](int at) { return at == 6 ? 2 * rows : rows; };
      set_seed(3);
      Run eager(mesh, layout.styles, options);
      std::vector<double> losses;
      for (int at = 0; at < 12; ++at) {
        losses.push_back(eager.step(other_rows(at)).loss);
        losses.push_back(at % 4 == 1 ? eager.evaluate() : 0);
      }
      set_seed(3);
      Run run(mesh, layout.styles, options);
      run.training.captured().set_enabled(true);
      std::vector<double> own;
      for (int at = 0; at < 12; ++at) {
        own.push_back(run.step(other_rows(at)).loss);
        reset_memory_peaks();
        const std::int64_t before = memory_statistics().total;
        own.push_back(at % 4 == 1 ? run.evaluate() : 0);
        check(at != 9 || memory_statistics().total_peak == before,
              "an evaluation is in the memory that the program has given back");
        const ReplayCounts& counts = run.training.captured().counts();
        check((at == 6) == (counts.refusal.find("another shape") != std::string::npos),
              "the step of another shape is taken as always: " + counts.refusal);
        if (at == 8) {
          run.training.checkpoints().save(folder / "run");
        }
      }
      check(own == losses, "the same losses");
      const ReplayCounts& counts = run.training.captured().counts();
      check(counts.eager == 2 && counts.recorded == 1 && counts.replayed == 9, "all are counted");
      same_state(run.training, eager.training, "at the end");
      set_seed(3);
      Run resumed(mesh, layout.styles, options);
      resumed.training.checkpoints().load(folder / "run");
      for (int at = 9; at < 12; ++at) {
        check(resumed.step().loss == losses[static_cast<std::size_t>(2 * at)], "resumed");
      }
      same_state(resumed.training, eager.training, "resumed from a checkpoint of replayed steps");
    }));
  }
}

TEST_CASE("steps of several shapes, and with other frozen parameters, have programs of their own") {
  const Options options{.net = {.dropout = 0.3}};
  for (const char* name : {"fully sharded", "hybrid", "replicated"}) {
    const Layouts layout = layout_named(name);
    INFO(layout.name);
    REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
      constexpr int steps = 36;
      // In turn after the first steps; every second one of 18 to 27 has a frozen parameter too.
      const auto other_rows = [](int at) { return at % 3 == 2 ? 2 * rows : rows; };
      const auto taken = [&](Run& run) {
        std::vector<double> losses;
        for (int at = 0; at < steps; ++at) {
          nn::all_parameters(*run.net.model)[0]->value.set_requires_grad(at < 18 || at > 27);
          losses.push_back(run.step(other_rows(at)).loss);
        }
        return losses;
      };
      set_seed(3);
      Run eager(mesh, layout.styles, options);
      const std::vector<double> expected = taken(eager);
      set_seed(3);
      Run run(mesh, layout.styles, options);
      run.training.captured().set_enabled(true);
      const std::vector<double> own = taken(run);
      for (std::size_t at = 0; at < expected.size(); ++at) {
        check(own[at] == expected[at], "the loss of step " + std::to_string(at));
      }
      same_state(run.training, eager.training, "at the end");
      const ReplayCounts& counts = run.training.captured().counts();
      // Two steps of each kind are not replayed. After the thaw all kinds are new: the parameter
      // has missed updates.
      check(counts.captured == 6, std::to_string(counts.captured) + " programs");
      check(counts.replayed == steps - 6 * 2, std::to_string(counts.replayed) + " replayed");
    }));
  }
}

TEST_CASE("only the last few programs are kept") {
  const Layouts layout = layout_named("fully sharded");
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    Run eager(mesh, layout.styles);
    Run run(mesh, layout.styles);
    run.training.captured().set_enabled(true);
    const auto steps = [&](int factor, int count) {
      for (int i = 0; i < count; ++i) {
        check(run.step(factor * rows).loss == eager.step(factor * rows).loss, "the same bits");
      }
    };
    for (int factor = 1; factor <= 17; ++factor) {
      steps(factor, 3);
    }
    steps(17, 3);
    steps(1, 5);
    const ReplayCounts& counts = run.training.captured().counts();
    check(counts.captured == 18, "the first one was dropped, and made again");
    check(counts.replayed == 17 + 3 + 4, std::to_string(counts.replayed) + " replayed");
  }));
}

TEST_CASE("what a program is not right for is taken as always, or is an error that names it") {
  const Layouts layout = layout_named("fully sharded");
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    Run run(mesh, layout.styles);
    run.training.captured().set_enabled(true);
    for (int i = 0; i < 5; ++i) {
      run.step();
    }
    check(run.training.captured().counts().replayed == 3, "replayed steps");
    nn::all_parameters(*run.net.model)[0]->value.set_requires_grad(false);
    run.step();
    check(run.training.captured().counts().refusal ==
              "other parameters are frozen than when the step was recorded",
          run.training.captured().counts().refusal);
    check(run.training.captured().counts().eager == 2, "it is counted");
    const std::string one = error_of(
        [&] { run.training.step({.rows = rows}, [](const BatchPart&) { return full({}, 1); }); });
    check(one.find("pass StepFunctions") != std::string::npos, one);
    // A program of another model.
    Program program = *run.training.captured().program();
    Run tied(mesh, layout.styles, {.net = {.tied = true}});
    tied.training.captured().set_program(program);
    const std::string other = error_of([&] { tied.step(); });
    check(other == "replay: input 'optimizer.exp_avg.head.weight' is missing", other);
    program.rank = 7;
    const std::string rank = error_of([&] { tied.training.captured().set_program(program); });
    check(rank.find("the program is that of rank 7") != std::string::npos, rank);
    // A factor that the host computes from the step.
    Run scheduled(mesh, layout.styles);
    scheduled.training.captured().set_enabled(true, {.compares_recordings = true});
    std::string error;
    for (int i = 0; i < 3; ++i) {
      error = error_of([&] {
        scheduled.training.step(
            {.rows = rows},
            StepFunctions{
                .rows =
                    [&](const BatchPart& m) {
                      return Tensors{
                          ops::contiguous(ops::narrow(net_tokens(rows, 0), 0, m.first, m.rows))};
                    },
                .loss_sum =
                    [&](const Tensors& tensors) {
                      const Tensor tokens =
                          from_local(tensors[0], scheduled.net.plan.batch_layout(), Dims{rows, 3});
                      return ops::mul_scalar(ops::sum(ops::square((*scheduled.net.model)(tokens))),
                                             1.0 / (i + 3));
                    }});
      });
    }
    check(error.find("mul_scalar(") != std::string::npos &&
              error.find("differs from step to step") != std::string::npos &&
              error.find("grad_scale, loss_share, lr") != std::string::npos,
          error);
  }));
}

TEST_CASE("a program is not used for the late first update of a parameter") {
  const Layouts layout = replayed_layouts()[0];
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    Run early(mesh, layout.styles);
    early.training.captured().set_enabled(true);
    while (early.training.captured().program() == nullptr) {
      early.step();
    }
    const auto late_steps = [&](bool replayed) {
      set_seed(3);
      auto run = std::make_unique<Run>(mesh, layout.styles);
      Tensor& first = nn::all_parameters(*run->net.model)[0]->value;
      first.set_requires_grad(false);
      for (int i = 0; i < 3; ++i) {
        run->step();
      }
      first.set_requires_grad(true);
      if (replayed) {
        run->training.captured().set_program(*early.training.captured().program());
      }
      run->step();
      return run;
    };
    const auto run = late_steps(true);
    check(run->training.captured().counts().refusal.find("has missed 3 updates, and 0 when") !=
              std::string::npos,
          run->training.captured().counts().refusal);
    same_state(run->training, late_steps(false)->training, "the step is as always");
  }));
}

TEST_CASE("what a transformation adds to steps is the training's state, on all ranks") {
  const auto counts = [](graph::Editor& edit) {
    const TensorIndex steps = edit.state("steps", zeros({2}));
    edit.move_to(edit.program().sections.size() - 1, 0);
    edit.call("add_", {steps, edit.value("ones_like", {steps})}, "alpha=1");
  };
  for (const bool across : {false, true}) {  // the update may be left to the next step
    const graph::ExecutionOptions execution = {.transforms = {{.name = "Count", .run = counts}},
                                               .across_steps = across};
    const Layouts layout = layout_named("fully sharded");
    const Folder folder;
    REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
      Run eager(mesh, layout.styles);
      eager.training.captured().set_enabled(true);
      while (eager.training.captured().program() == nullptr) {
        eager.step();
      }
      const auto counted = [](Run& run) {
        return to_doubles(run.training.checkpoints().state().tensors.at("transform.steps").local());
      };
      Run run(mesh, layout.styles);
      run.training.captured().set_enabled(true, execution);
      const std::string none = error_of([&] { run.step(); });
      check(none.find("change 'Count': this step has no program that it could change (none "
                      "was set)") == 0,
            none);
      run.training.captured().set_program(*eager.training.captured().program());
      for (int i = 0; i < 3; ++i) {
        run.step();
      }
      check(counted(run) == std::vector<double>{3, 3}, "three steps are counted");
      run.training.checkpoints().save(folder / "run/three");
      run.step();
      Run other(mesh, layout.styles);
      other.training.captured().set_enabled(true, execution);
      other.training.checkpoints().load(folder / "run/three");
      other.training.captured().set_program(*eager.training.captured().program());
      other.step();
      check(counted(other) == std::vector<double>{4, 4}, "the count goes on");
      same_state(other.training, run.training, "after the fourth step");
      Run without(mesh, layout.styles);
      without.training.checkpoints().load(folder / "run/three");
      check(!without.training.checkpoints().state().tensors.contains("transform.steps"),
            "nothing has it");
      nn::all_parameters(*run.net.model)[0]->value.set_requires_grad(false);
      const std::string frozen = error_of([&] { run.step(); });
      check(frozen.find("could change (other parameters are frozen") != std::string::npos, frozen);
    }));
  }
}

TEST_CASE("every communication of a step is an operator, in every layout") {
  class Strict final : public Mode {
   public:
    Tensors call(const Call& call, NextCall& next) override {
      communicates = communicates || call.op.communicates != Communicates::none;
      return next(call);
    }
    void perform(Action& action, NextAction& next) override {
      if (action.kind == ActionKind::collective || action.kind == ActionKind::wait) {
        fail("a communicator is called outside of an operator: " + std::string(action.name));
      }
      next(action);
    }
    bool communicates = false;
  };
  for (const Layouts& layout : replayed_layouts()) {
    INFO(layout.name);
    REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
      Run run(mesh, layout.styles);
      for (int i = 0; i < 3; ++i) {
        Strict strict;
        const ModeScope scope(ModeLevel::below_distribution, strict);
        run.step();
        check(strict.communicates, "operators communicate");
      }
    }));
  }
}

TEST_CASE("a communication report has what replayed steps communicate", "[unverified]") {
  for (const char* name : {"replicated", "fully sharded", "hybrid"}) {
    const Layouts layout = layout_named(name);
    INFO(name);
    REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
      struct Sum {
        std::int64_t calls = 0;
        std::int64_t bytes = 0;
        std::int64_t backward = 0;
      };
      std::vector<std::map<std::string, Sum>> steps;
      Run run(mesh, layout.styles);
      run.training.captured().set_enabled(true, {.passes = graph::default_passes()});
      for (int i = 0; i < 6; ++i) {
        const CommunicationReport report;
        run.step();
        std::map<std::string, Sum>& sums = steps.emplace_back();
        for (const Communication& one : report.entries()) {
          Sum& sum = sums[one.operation];
          ++sum.calls;
          sum.bytes += one.bytes;
          sum.backward += one.backward ? 1 : 0;
        }
      }
      check(run.training.captured().counts().replayed == 4, "the last steps are replayed");
      const std::map<std::string, Sum>& replayed = steps[5];
      check(steps[1].size() == replayed.size(), "the same operations");
      for (const auto& [operation, eager] : steps[1]) {
        const auto found = replayed.find(operation);
        check(found != replayed.end(), operation + " is reported");
        const Sum& sum = found->second;
        const std::string numbers = operation + ": " + std::to_string(eager.calls) + " calls, " +
                                    std::to_string(eager.bytes) + " bytes, and replayed " +
                                    std::to_string(sum.calls) + ", " + std::to_string(sum.bytes);
        check(sum.calls == eager.calls, numbers);
        // FSDP counts the room of shards, which those of odd sizes do not fill.
        check(sum.bytes <= eager.bytes && 5 * sum.bytes >= 4 * eager.bytes, numbers);
        check(operation == "all_gather" || operation == "all_reduce" || sum.backward > 0,
              numbers + " in backward");
      }
    }));
  }
}
