// Captured steps that are also taken as they are written, from the same state: what is compared,
// and what an error says.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera;
import tessera.graph;
import tessera.optim;
import tessera.parallel;
import tessera.passes;
import tessera.tensor;
import tessera.train;

#include "layouts.hpp"
#include "net.hpp"
#include "replayed_run.hpp"
#include "support.hpp"

using namespace tessera;
using namespace parallel_test;
using namespace train_test;

namespace {

/// A linear layer with a running sum of its inputs, of which a factor is unknown to captures.
struct Scaled : nn::Module {
  Scaled() {
    add_buffer("seen", std::make_shared<nn::Buffer>(full({4}, 0)));
    set_names();
  }
  std::string_view kind() const override { return "Scaled"; }
  Tensors forward(const Tensors& inputs) override {
    {
      const NoGrad no_grad;
      ops::add_(buffer("seen")->value, ops::sum(inputs[0], {0}));
    }
    return {ops::mul_scalar((*layer)(inputs[0]), factor)};
  }

  nn::Child layer = add_child<nn::Linear>("layer", 4, 2, true, 0.3);
  double factor = 1;
};

struct Scale {
  Scale() {
    set_seed(4);
    nn::materialize(*net);
    nn::initialize(*net);
    adamw = optim::adamw(nn::all_parameters(*net));
  }
  Tensors step(StepCall& call) {
    const Tensor loss = ops::sum(ops::square((*net)(call.inputs()[0])));
    backward(loss);
    call.update(*adamw, 0.1);
    return {loss};
  }
  std::vector<double> values() const {
    std::vector<double> all = to_doubles(net->buffer("seen")->value);
    for (const nn::ParameterPointer& parameter : nn::all_parameters(*net)) {
      const std::vector<double> more = to_doubles(parameter->value);
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }

  std::shared_ptr<Scaled> net = std::make_shared<Scaled>();
  std::unique_ptr<optim::Optimizer> adamw;
};

Tensor input(int call) { return full({3, 4}, 0.25 * (1 + call)); }

}  // namespace

TEST_CASE("calls that are verified have the bits of others, and are counted") {
  Scale plain;
  Scale checked;
  CompiledStep one = compile([&](StepCall& call) { return plain.step(call); });
  CompiledStep two =
      compile([&](StepCall& call) { return checked.step(call); }, CompileOptions{.verify = 3});
  for (int call = 0; call < 12; ++call) {
    CHECK(to_doubles(one({input(call)})[0]) == to_doubles(two({input(call)})[0]));
    CHECK(plain.values() == checked.values());
  }
  CHECK(two.counts().replayed == 10);
  CHECK(two.counts().verified == 3);
  CHECK(contains(to_string(two.counts()), "; 3 verified"));
}

TEST_CASE("a call whose step has changed is found: operator, module, tensor, element, values") {
  Scale scale;
  CompiledStep step =
      compile([&](StepCall& call) { return scale.step(call); }, CompileOptions{.verify = 2});
  for (int call = 0; call < 6; ++call) {
    step({input(call)});
  }
  scale.net->factor = 2;
  step({input(6)});  // not verified
  const std::string error = error_of([&] { step({input(7)}); });
  INFO(error);
  CHECK(contains(error,
                 "verify: a replayed call differs from the call as it is written: 'output.0' "
                 "(f32[]) is "));
  CHECK(contains(error, " at [] by the program and "));
  CHECK(contains(error, "in the program: section 'step', instruction "));
  CHECK(contains(error, "= sum("));
  CHECK(contains(error, "mul_scalar("));  // the first other instruction
  CHECK(contains(error, "(value=1, then value=2)"));
}

TEST_CASE("a buffer that the host changes is found by its name") {
  Scale scale;
  int calls = 0;
  CompiledStep step = compile(
      [&](StepCall& call) {
        Tensors results = scale.step(call);
        if (++calls > 2) {
          const NoGrad no_grad;
          ops::fill_(scale.net->buffer("seen")->value, calls);
        }
        return results;
      },
      CompileOptions{.verify = 1});
  step({input(0)});
  step({input(1)});
  const std::string error = error_of([&] { step({input(2)}); });
  INFO(error);
  CHECK(contains(error, "'buffer.seen' (f32[4]) is "));
  CHECK(contains(error, " at [0] by the program and 3 as it is written"));
  CHECK(contains(error, "add_("));
}

TEST_CASE("what cannot be verified is refused") {
  const graph::Change doubles{.name = "doubles", .run = [](graph::Editor&) {}};
  const auto body = [](StepCall& call) { return call.inputs(); };
  CHECK(contains(error_of([&] { compile(body, {.changes = {doubles}, .verify = 1}); }),
                 "verify: change 'doubles' changes what steps compute"));
  CHECK(contains(error_of([&] { compile(body, {.verify = -1}); }), "expected 0 or more, got -1"));
  const StepFactory make = [&](Device) -> StepBody { return body; };
  CHECK(contains(error_of([&] {
                   compile(make, {.mode = graph::DataParallelMode::replicate,
                                  .mesh = DeviceMesh::make({"d"}, {1}),
                                  .verify = 1});
                 }),
                 "cannot be taken as it is written"));
}

TEST_CASE("steps of a training are verified in every layout, whatever they leave behind") {
  for (const Layouts& layout : replayed_layouts()) {
    INFO(layout.name);
    for (const bool across_steps : {false, true}) {
      REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
        const Options options{.net = {.dropout = 0.2}, .micro_rows = 1};
        set_seed(3);
        Run eager(mesh, layout.styles, options);
        std::vector<double> losses;
        for (int i = 0; i < 9; ++i) {
          losses.push_back(eager.step().loss);
        }
        set_seed(3);
        Run run(mesh, layout.styles, options);
        run.training.captured().set_enabled(
            true, {.passes = graph::default_passes(), .verify = 3, .across_steps = across_steps});
        for (const double loss : losses) {
          check(run.step().loss == loss, "the loss");
        }
        same_state(run.training, eager.training, "after verified steps");
        const ReplayCounts& counts = run.training.captured().counts();
        check(counts.replayed == 7 && counts.verified == 3, to_string(counts));
        check(counts.left == (across_steps ? 4 : 0), to_string(counts));
      }));
    }
  }
}

TEST_CASE("a step of a training that has changed is found") {
  const Layouts layout = layout_named("fully sharded");
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    Run run(mesh, layout.styles);
    double factor = 1;
    run.training.captured().set_enabled(true, {.verify = 1});
    const auto step = [&] {
      run.training.step(
          {.rows = rows, .weight = 24},
          StepFunctions{.rows =
                            [&](const BatchPart& m) {
                              return Tensors{ops::contiguous(
                                  ops::narrow(net_tokens(rows, 0), 0, m.first, m.rows))};
                            },
                        .loss_sum =
                            [&](const Tensors& tensors) {
                              const Tensor tokens = from_local(
                                  tensors[0], run.net.plan.batch_layout(), Dims{rows, 3});
                              return StepSums(ops::mul_scalar(
                                  ops::sum(ops::square((*run.net.model)(tokens))), factor));
                            }});
    };
    for (int i = 0; i < 4; ++i) {
      step();
    }
    factor = 3;
    const std::string error = error_of(step);
    check(contains(error, "verify: a replayed call differs") || contains(error, "rank"), error);
  }));
}

TEST_CASE(
    "a training whose loss keeps a computed tensor is refused, one that keeps its rows is not") {
  const Layouts layout = layout_named("one rank");
  for (const bool keeps : {false, true}) {
    REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
      Run run(mesh, layout.styles);
      run.training.captured().set_enabled(true, {});
      std::vector<Tensors> kept_rows;
      Tensor kept;
      const StepFunctions functions{
          .rows =
              [&](const BatchPart& m) {
                kept_rows.push_back(
                    {ops::contiguous(ops::narrow(net_tokens(rows, 0), 0, m.first, m.rows))});
                return kept_rows.back();
              },
          .loss_sum =
              [&](const Tensors& tensors) {
                const Tensor tokens =
                    from_local(tensors[0], run.net.plan.batch_layout(), Dims{rows, 3});
                const Tensor squares = ops::square((*run.net.model)(tokens));
                kept = keeps ? squares : Tensor();
                return StepSums(ops::sum(squares));
              }};
      const auto step = [&] { run.training.step({.rows = rows, .weight = 24}, functions); };
      step();
      const std::string error = error_of(step);
      check(contains(error, "that 'square' has made") == keeps, error);
      if (!keeps) {
        step();
        step();
        check(run.training.captured().counts().replayed == 2, "replayed");
      }
    }));
  }
}
