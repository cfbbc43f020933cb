// Compiled steps: two models that train each other, each with an optimizer, against a plain loop,
// in every layout; models and optimizers that are found; steps of one rank that are placed on a
// mesh; changes by functions; and what such steps refuse.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera;
import tessera.graph;
import tessera.parallel;
import tessera.program;
import tessera.train;

#include "layouts.hpp"
#include "net.hpp"
#include "support.hpp"

using namespace tessera;
using namespace parallel_test;
using train_test::layout_named;
using train_test::Layouts;
using train_test::on_layout;

namespace {

constexpr std::int64_t rows = 8;

/// Two nets: the second learns what the first computes, and the first to be like the second.
struct Pair {
  explicit Pair(const Layouts& layout, const DeviceMesh& mesh, const NetOptions& options = {})
      : first(std::make_shared<Net>(options), mesh, layout.styles),
        second(std::make_shared<Net>(), mesh, layout.styles),
        adamw(optim::adamw(nn::all_parameters(*first.model))),
        sgd(optim::sgd(nn::all_parameters(*second.model), {.momentum = 0.9})) {
    change_values(*second.model, 0.5, 0.01);
  }

  Tensor tokens(const Tensor& local) const {
    return from_local(local, first.plan.batch_layout(),
                      Dims{local.size(0) * first.plan.batch_parts(), 3});
  }
  Tensor loss_of_second(const Tensor& x) {
    Tensor target;
    {
      const NoGrad no_grad;
      target = (*first.model)(x);
    }
    return ops::sum(ops::square(ops::sub((*second.model)(x), target)));
  }
  Tensor loss_of_first(const Tensor& x) {
    return ops::sum(ops::square(ops::sub((*first.model)(x), (*second.model)(x))));
  }
  Tensor whole(const Tensor& loss) const {
    return redistribute(loss, Layout::replicated(first.plan.mesh())).local();
  }

  Planned first;
  Planned second;
  std::unique_ptr<optim::Optimizer> adamw;
  std::unique_ptr<optim::Optimizer> sgd;
};

Tensor local_rows(const Pair& pair, int call, std::int64_t of = rows) {
  return ops::contiguous(distribute(net_tokens(of, call), pair.first.plan.batch_layout()).local());
}

double lr_of(int call) { return 0.0005 / (call % 7 + 1); }

/// One step as a program without capture writes it.
std::vector<double> plain(Pair& pair, int call, std::int64_t of = rows) {
  const auto update = [](Planned& net, optim::Optimizer& optimizer, double lr) {
    parallel::GradientFinisher().finish(optimizer.parameters());
    net.plan.before_optimizer();
    optimizer.step(lr);
    net.plan.after_optimizer();
    optimizer.zero_grad();
  };
  const Tensor x = pair.tokens(local_rows(pair, call, of));
  const Tensor second = pair.loss_of_second(x);
  backward(second);
  update(pair.second, *pair.sgd, 0.5 * lr_of(call));
  const Tensor first = pair.loss_of_first(x);
  backward(first);
  parallel::GradientFinisher().finish(pair.sgd->parameters());
  pair.sgd->zero_grad();
  update(pair.first, *pair.adamw, lr_of(call));
  const NoGrad no_grad;
  return {pair.whole(second).item(), pair.whole(first).item()};
}

StepBody body_of(Pair& pair) {
  return [&pair](StepCall& call) -> Tensors {
    const Tensor x = pair.tokens(call.inputs()[0]);
    const Tensor second = pair.loss_of_second(x);
    backward(second);
    call.update(*pair.sgd, call.number("second"));
    const Tensor first = pair.loss_of_first(x);
    backward(first);
    call.update(*pair.adamw, call.number("first"));
    const NoGrad no_grad;
    return {pair.whole(second), pair.whole(first), first};
  };
}

StepNumbers numbers_of(int call) {
  return {.numbers = {{"first", lr_of(call)}, {"second", 0.5 * lr_of(call)}}};
}

void same_values(Pair& a, Pair& b, const std::string& when) {
  check(values_of(*a.first.model) == values_of(*b.first.model), when + ": the first model");
  check(values_of(*a.second.model) == values_of(*b.second.model), when + ": the second model");
}

std::vector<Layouts> layouts() { return train_test::layouts(); }

}  // namespace

TEST_CASE("a step with two models and two optimizers is captured, in every layout") {
  for (const Layouts& layout : layouts()) {
    for (const char* executor : {"planned", "compiled", "interpreter"}) {
      INFO(layout.name << ", " << executor);
      REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
        set_seed(5);
        Pair expected(layout, mesh);
        set_seed(5);
        Pair pair(layout, mesh);
        CompiledStep step = compile(body_of(pair), {.execution = {.executor = executor}});
        Tensor kept;
        double value = 0;
        for (int call = 0; call < 10; ++call) {
          const std::vector<double> losses = plain(expected, call);
          const Tensors results = step({local_rows(pair, call)}, numbers_of(call));
          const std::string when = "call " + std::to_string(call);
          check(results.size() == 3 && results[0].item() == losses[0] &&
                    results[1].item() == losses[1],
                when + ": the losses");
          check(std::isfinite(losses[1]) && losses[1] != 0, when + ": a loss to compare");
          check(full_tensor(results[2]).item() == losses[1], when + ": a distributed result");
          check(!kept || kept.item() == value, when + ": the result of the call before");
          kept = results[0];
          value = losses[0];
          same_values(pair, expected, when);
        }
        check(step.counts().eager == 1 && step.counts().recorded == 1 &&
                  step.counts().replayed == 8 && step.counts().captured == 1,
              "eight calls are replayed: " + step.counts().refusal);
        check(pair.adamw->steps() == expected.adamw->steps() &&
                  pair.sgd->steps() == expected.sgd->steps(),
              "steps are counted");
        // Uncaptured steps may follow, and captured ones those.
        for (int call = 10; call < 14; ++call) {
          const std::vector<double> losses = plain(expected, call);
          const bool plainly = call % 2 == 0;
          step.release_memory();
          const double loss = plainly ? plain(pair, call)[1]
                                      : step({local_rows(pair, call)}, numbers_of(call))[1].item();
          check(loss == losses[1], "mixed call " + std::to_string(call));
          same_values(pair, expected, "mixed call " + std::to_string(call));
        }
      }));
    }
  }
}

TEST_CASE("calls of another form have a program of their own, and few are kept") {
  const Layouts layout = layout_named("fully sharded");
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    set_seed(5);
    Pair expected(layout, mesh);
    set_seed(5);
    Pair pair(layout, mesh);
    CompiledStep step = compile(body_of(pair), {.changes = {}});
    int call = 0;
    for (const std::int64_t of : {8, 4, 8, 4, 12, 16, 20, 24, 8}) {
      for (int i = 0; i < 5; ++i, ++call) {
        const std::vector<double> losses = plain(expected, call, of);
        const Tensors results = step({local_rows(pair, call, of)}, numbers_of(call));
        check(results[1].item() == losses[1], "call " + std::to_string(call));
      }
    }
    same_values(pair, expected, "after all calls");
    // 8 and 4 rows twice, then 12 to 24, then 8 again, which is still there.
    check(step.counts().captured == 6, std::to_string(step.counts().captured) + " captures");
    check(step.counts().replayed == 45 - 6 * 2, "the others are replayed");
    // Freezing changes the form too.
    nn::all_parameters(*pair.first.model)[0]->value.set_requires_grad(false);
    nn::all_parameters(*expected.first.model)[0]->value.set_requires_grad(false);
    for (int i = 0; i < 5; ++i, ++call) {
      check(step({local_rows(pair, call)}, numbers_of(call))[1].item() == plain(expected, call)[1],
            "frozen call " + std::to_string(call));
    }
    check(step.counts().captured == 7, "with a frozen parameter");
    same_values(pair, expected, "with a frozen parameter");
  }));
}

TEST_CASE("a captured step takes numbers, draws random ones, and recomputes") {
  const Layouts layout = layout_named("hybrid");
  const NetOptions options = {.checkpointing = true, .dropout = 0.3};
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    const auto run = [&](bool captured) {
      set_seed(5);
      auto pair = std::make_unique<Pair>(layout, mesh, options);
      const StepBody body = [&](StepCall& call) -> Tensors {
        const Tensor x = pair->tokens(call.inputs()[0]);
        const Tensor loss =
            ops::mul_scalar(ops::sum(ops::square((*pair->first.model)(x))), call.number("weight"));
        backward(loss);
        call.update(*pair->adamw, call.number("lr"));
        const NoGrad no_grad;
        return {pair->whole(loss)};
      };
      CompiledStep step = compile(body);
      std::vector<double> losses;
      for (int call = 0; call < 8; ++call) {
        const Tensors inputs = {local_rows(*pair, call)};
        const StepNumbers numbers{.numbers = {{"lr", 0.01}, {"weight", 1.0 / (call + 2)}}};
        // One that is new is never called often enough to be recorded.
        losses.push_back(
            (captured ? step(inputs, numbers) : compile(body)(inputs, numbers))[0].item());
      }
      check(step.counts().replayed == (captured ? 6 : 0), "replayed: " + step.counts().refusal);
      return losses;
    };
    check(std::isfinite(run(true).back()), "losses are finite");
    check(run(true) == run(false), "the same losses");
  }));
}

TEST_CASE("a number that did not differ before the recording may differ later") {
  const Layouts layout = layout_named("one rank");
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    Pair pair(layout, mesh);
    CompiledStep step = compile(
        [&](StepCall& call) -> Tensors {
          return {ops::mul_scalar(
              pair.whole(ops::sum((*pair.first.model)(pair.tokens(call.inputs()[0])))),
              call.number("weight"))};
        },
        {.changes = {}});
    const auto loss = [&](double weight) {
      return step({local_rows(pair, 0)}, {.numbers = {{"weight", weight}}})[0].item();
    };
    const double one = loss(1);
    for (int i = 0; i < 5; ++i) {
      check(loss(1) == one, "the same");
    }
    check(step.counts().replayed == 4, "replayed");
    check(loss(2) == 2 * one, "another number");
    check(loss(1) == one && step.counts().replayed == 6,
          "replayed with both: " + step.counts().refusal);
    check(step.program()->to_text().find("{value=$number.weight}") != std::string::npos,
          "the program says what follows from it");
  }));
}

TEST_CASE("what a compiled step cannot be is an error, and the next call is right") {
  const Layouts layout = layout_named("one rank");
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    Pair pair(layout, mesh);
    const Tensors inputs = {local_rows(pair, 0)};
    const auto says = [](const std::string& error, const std::string& words) {
      check(error.find(words) != std::string::npos, error);
    };
    const auto error_in_calls = [&](CompiledStep step) {
      std::string error;
      for (int i = 0; i < 4 && (error.empty() || error == "no error"); ++i) {
        error = error_of([&] { step(inputs, numbers_of(0)); });
      }
      return error;
    };
    CompiledStep good = compile(body_of(pair));
    says(error_of([&] { good(inputs, {.numbers = {{"first", 0.1}}}); }),
         "the call has no number 'second'; pass it in StepNumbers::numbers");
    says(error_in_calls(compile([&](StepCall& call) -> Tensors {
           backward(pair.loss_of_second(pair.tokens(call.inputs()[0])));
           call.update(*pair.sgd, 0.1);
           call.update(*pair.sgd, 0.1);
           return {};
         })),
         "the optimizer was updated before in this call");
    int calls = 0;
    says(error_in_calls(compile(
             [&](StepCall& call) -> Tensors {
               const Tensor loss = pair.loss_of_second(pair.tokens(call.inputs()[0]));
               return {ops::mul_scalar(loss, pair.whole(loss).item() > 0 ? ++calls : 0)};
             },
             {.execution = {.compares_recordings = true}})),
         "mul_scalar(");
    const auto by_value = [](StepCall& call) -> Tensors {
      return {ops::mul_scalar(ops::cast(call.inputs()[0], DType::f32),
                              2 * call.number("first").value())};
    };
    for (const bool ahead : {false, true}) {
      says(error_in_calls(ahead ? compile(StepFactory([&](Device) { return by_value; }))
                                : compile(StepBody(by_value))),
           "record: the step takes a plain number from number.first (Number::value()), which its "
           "program would keep as a constant");
    }
    const Tensor outside = full({}, 2, DType::f64);
    says(error_in_calls(compile([&](StepCall& call) -> Tensors {
           return {
               ops::mul(pair.whole(pair.loss_of_second(pair.tokens(call.inputs()[0]))), outside)};
         })),
         "mul");
    check(good(inputs, numbers_of(0))[0].item() > 0, "a call after errors");
    const graph::Change nothing{.name = "T", .run = [](graph::Editor&) {}};
    says(error_in_calls(compile(body_of(pair), {.changes = {nothing}})),
         "change 'T': this call has no program that it could change (none was set); "
         "capture the step ahead");
    says(error_of([&] { compile(body_of(pair), {.changes = {nothing, {.name = "dead"}}}); }),
         "pass 'dead': it comes after 'T'; put passes first");
    says(error_of([&] { compile(body_of(pair), {.changes = {{.name = "no such"}}}); }),
         "'no such'");
    says(error_of([&] { compile(body_of(pair), {.execution = {.executor = "fast"}}); }),
         "there is no executor 'fast'");
    says(error_of([&] {
           compile(body_of(pair), {.mode = graph::DataParallelMode::expand, .mesh = mesh});
         }),
         "a mode places a step that is captured before its first call");
    Net used_outside;
    says(error_in_calls(compile(StepFactory([&](Device) {
           return [&](StepCall& call) -> Tensors {
             return {used_outside({ops::cast(call.inputs()[0], DType::i64)})};
           };
         }))),
         "the step uses a module or an optimizer that its factory has not made");
  }));
}

TEST_CASE("a function that keeps bits is checked as a pass, and needs no capture before") {
  const Layouts layout = layout_named("one rank");
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    Pair pair(layout, mesh);
    const Tensors inputs = {local_rows(pair, 0)};
    int runs = 0;
    const graph::Change counts{
        .name = "counts", .facts = {.keeps_bits = true}, .run = [&](graph::Editor&) { ++runs; }};
    CompiledStep step = compile(body_of(pair), {.changes = {{.name = "dead"}, counts}});
    for (int call = 0; call < 4; ++call) {
      step(inputs, numbers_of(call));
    }
    check(runs == 1 && step.counts().replayed == 2, to_string(step.counts()));
    const graph::Change doubles{
        .name = "doubles", .facts = {.keeps_bits = true}, .run = [](graph::Editor& edit) {
          TensorIndex& loss = edit.program().outputs.at("output.0");
          edit.move_to(0, edit.program().sections[0].instructions.size());
          loss = edit.value("add", {loss, loss}, "alpha=1");
        }};
    CompiledStep wrong = compile(body_of(pair), {.changes = {doubles}});
    std::string error;
    for (int call = 0; call < 4 && (error.empty() || error == "no error"); ++call) {
      error = error_of([&] { wrong(inputs, numbers_of(call)); });
    }
    check(error.find("change 'doubles'") == 0, error);
  }));
}

TEST_CASE("a branch whose model and optimizer were not seen before is captured when it was") {
  const Layouts layout = layout_named("fully sharded");
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    const auto run = [&](bool captured) {
      set_seed(5);
      auto pair = std::make_unique<Pair>(layout, mesh);
      const StepBody body = [&](StepCall& call) -> Tensors {
        const Tensor x = pair->tokens(call.inputs()[0]);
        if (call.guard("second") == 1) {
          const Tensor loss = pair->loss_of_second(x);
          backward(loss);
          call.update(*pair->sgd, call.number("second"));
          return {loss};
        }
        const Tensor loss = ops::sum(ops::square((*pair->first.model)(x)));
        backward(loss);
        call.update(*pair->adamw, call.number("first"));
        return {loss};
      };
      CompiledStep step = compile(body);
      std::vector<double> losses;
      for (int call = 0; call < 16; ++call) {
        StepNumbers numbers = numbers_of(call);
        numbers.guards = {{"second", call % 4 == 3 ? 1 : 0}};
        const Tensors inputs = {local_rows(*pair, call)};
        const Tensors results = captured ? step(inputs, numbers) : compile(body)(inputs, numbers);
        losses.push_back(full_tensor(results[0]).item());
      }
      check(!captured || (step.counts().captured >= 2 && step.counts().replayed >= 8),
            to_string(step.counts()));
      return losses;
    };
    check(run(true) == run(false), "the same losses");
  }));
}

namespace {

/// A step of one rank: a model without a plan, on plain tensors.
struct OneRank {
  explicit OneRank(Device device) : net(std::make_shared<Net>()) {
    set_seed(5);
    if (!(device == meta)) {
      nn::materialize(*net, device);
      nn::initialize(*net);
    }
    adamw = optim::adamw(nn::all_parameters(*net));
  }
  Tensors operator()(StepCall& call) {
    const Tensor loss = ops::sum(ops::square((*net)(call.inputs()[0])));
    backward(loss);
    call.update(*adamw, call.number("lr"));
    return {loss};
  }

  std::shared_ptr<Net> net;
  std::unique_ptr<optim::Optimizer> adamw;
};

}  // namespace

TEST_CASE("a step of one rank is placed on a mesh by a mode") {
  const auto losses_of = [](const DeviceMesh& mesh, std::optional<graph::DataParallelMode> mode,
                            std::shared_ptr<OneRank>& first) {
    CompiledStep step = compile(
        [&](Device device) -> StepBody {
          const auto made = std::make_shared<OneRank>(device);
          first = first == nullptr ? made : first;
          return [made](StepCall& call) { return (*made)(call); };
        },
        {.mode = mode, .mesh = mode ? mesh : DeviceMesh()});
    const Layout batch = Layout::replicated(mesh).with_placement(0, Shard(0));
    std::vector<double> losses;
    for (int call = 0; call < 6; ++call) {
      const Tensor all = net_tokens(rows, 0);
      const Tensor mine = mode ? ops::contiguous(distribute(all, batch).local()) : all;
      losses.push_back(step({mine}, {.numbers = {{"lr", 0.01 / (1 + call)}}})[0].item());
    }
    check(step.counts().replayed == 6, to_string(step.counts()));
    return losses;
  };
  for (const auto mode : {graph::DataParallelMode::expand, graph::DataParallelMode::replicate,
                          graph::DataParallelMode::fully_shard}) {
    collective::run_threads(2, [&](collective::World&) {
      const DeviceMesh mesh = DeviceMesh::make({"data"}, {2});
      std::shared_ptr<OneRank> alone;
      std::shared_ptr<OneRank> placed;
      const std::vector<double> expected = losses_of(mesh, std::nullopt, alone);
      const std::vector<double> losses = losses_of(mesh, mode, placed);
      for (std::size_t i = 0; i < losses.size(); ++i) {  // sums of ranks differ by rounding
        check(std::abs(losses[i] - expected[i]) <= 1e-9 * std::abs(expected[i]),
              "call " + std::to_string(i));
      }
      const Tensor& embed = nn::all_parameters(*placed->net)[0]->value;
      check(embed.is_distributed(), "parameters are placed");
      check(embed.layout().is_replicated() != (mode == graph::DataParallelMode::fully_shard),
            to_string(*embed.spec()));
      check(expected.back() < expected.front(), "the step trains");
    });
  }
}
