// Steps of a program's own, captured: two models that train each other, each with an optimizer,
// against a plain loop, in every layout; and what such steps refuse.
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera;

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

  StepParts parts() {
    return {.modules = {first.model.get(), second.model.get()},
            .optimizers = {adamw.get(), sgd.get()},
            .plans = {&first.plan, &second.plan}};
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

CapturedStep::Body body_of(Pair& pair) {
  return [&pair](StepCall& call) -> Tensors {
    const Tensor x = pair.tokens(call.inputs()[0]);
    const Tensor second = pair.loss_of_second(x);
    backward(second);
    call.update(1);
    const Tensor first = pair.loss_of_first(x);
    backward(first);
    call.update(0);
    const NoGrad no_grad;
    return {pair.whole(second), pair.whole(first), first};
  };
}

StepNumbers numbers_of(int call) { return {.lr = {lr_of(call), 0.5 * lr_of(call)}}; }

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
        CapturedStep step(pair.parts(), body_of(pair),
                          {.executor = executor, .passes = graph::default_passes()});
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
    CapturedStep step(pair.parts(), body_of(pair));
    int call = 0;
    for (const std::int64_t of : {8, 4, 8, 4, 12, 16, 20, 24, 8}) {
      for (int i = 0; i < 5; ++i, ++call) {
        const std::vector<double> losses = plain(expected, call, of);
        const Tensors results = step({local_rows(pair, call, of)}, numbers_of(call));
        check(results[1].item() == losses[1], "call " + std::to_string(call));
      }
    }
    same_values(pair, expected, "after all calls");
    // 8 and 4 rows twice, then 12 to 24, which push them out, then 8 again.
    check(step.counts().captured == 7, std::to_string(step.counts().captured) + " captures");
    // The last 8 is a form again that was dropped: its first call is recorded.
    check(step.counts().replayed == 45 - 7 * 2 + 1, "the others are replayed");
    // Freezing changes the form too.
    nn::all_parameters(*pair.first.model)[0]->value.set_requires_grad(false);
    nn::all_parameters(*expected.first.model)[0]->value.set_requires_grad(false);
    for (int i = 0; i < 5; ++i, ++call) {
      check(step({local_rows(pair, call)}, numbers_of(call))[1].item() == plain(expected, call)[1],
            "frozen call " + std::to_string(call));
    }
    check(step.counts().captured == 8, "with a frozen parameter");
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
      const CapturedStep::Body body = [&](StepCall& call) -> Tensors {
        const Tensor x = pair->tokens(call.inputs()[0]);
        const Tensor loss =
            ops::mul_scalar(ops::sum(ops::square((*pair->first.model)(x))), call.number("weight"));
        backward(loss);
        call.update();
        const NoGrad no_grad;
        return {pair->whole(loss)};
      };
      CapturedStep step({.modules = {pair->first.model.get()},
                         .optimizers = {pair->adamw.get()},
                         .plans = {&pair->first.plan}},
                        body, {.passes = graph::default_passes()});
      std::vector<double> losses;
      for (int call = 0; call < 8; ++call) {
        std::unique_ptr<CapturedStep> fresh;  // never called often enough to be recorded
        if (!captured) {
          fresh = std::make_unique<CapturedStep>(StepParts{.modules = {pair->first.model.get()},
                                                           .optimizers = {pair->adamw.get()},
                                                           .plans = {&pair->first.plan}},
                                                 body);
        }
        losses.push_back(
            (captured ? step : *fresh)({local_rows(*pair, call)},
                                       {.lr = {0.01}, .others = {{"weight", 1.0 / (call + 2)}}})[0]
                .item());
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
    CapturedStep step(
        {.modules = {pair.first.model.get()}, .plans = {&pair.first.plan}},
        [&](StepCall& call) -> Tensors {
          return {ops::mul_scalar(
              pair.whole(ops::sum((*pair.first.model)(pair.tokens(call.inputs()[0])))),
              call.number("weight"))};
        });
    const auto loss = [&](double weight) {
      return step({local_rows(pair, 0)}, {.others = {{"weight", weight}}})[0].item();
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

TEST_CASE("what a captured step cannot be is an error, and the next call is right") {
  const Layouts layout = layout_named("one rank");
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    Pair pair(layout, mesh);
    const Tensors inputs = {local_rows(pair, 0)};
    const auto says = [](const std::string& error, const std::string& words) {
      check(error.find(words) != std::string::npos, error);
    };
    CapturedStep good(pair.parts(), body_of(pair));
    says(error_of([&] { good(inputs, {.lr = {0.1}}); }),
         "each optimizer needs a learning rate (expected 2, got 1)");
    CapturedStep twice(pair.parts(), [&](StepCall& call) -> Tensors {
      backward(pair.loss_of_second(pair.tokens(call.inputs()[0])));
      call.update(1);
      call.update(1);
      return {};
    });
    says(error_of([&] { twice(inputs, numbers_of(0)); }), "optimizer 1 was updated before");
    CapturedStep none(pair.parts(), [&](StepCall& call) -> Tensors {
      call.update(2);
      return {};
    });
    says(error_of([&] { none(inputs, numbers_of(0)); }), "expected a number below 2, got 2");
    CapturedStep unknown(pair.parts(), [&](StepCall& call) -> Tensors {
      return {full({}, call.number("x").value())};
    });
    says(error_of([&] { unknown(inputs, numbers_of(0)); }), "the call has no number 'x'");
    int calls = 0;
    CapturedStep reads(pair.parts(),
                       [&](StepCall& call) -> Tensors {
                         const Tensor loss = pair.loss_of_second(pair.tokens(call.inputs()[0]));
                         return {ops::mul_scalar(loss, pair.whole(loss).item() > 0 ? ++calls : 0)};
                       },
                       {.compares_recordings = true});
    std::string error;
    for (int i = 0; i < 4 && (error.empty() || error == "no error"); ++i) {
      error = error_of([&] { reads(inputs, numbers_of(0)); });
    }
    says(error, "mul_scalar(");
    const Tensor outside = full({}, 2, DType::f64);
    CapturedStep table(pair.parts(), [&](StepCall& call) -> Tensors {
      return {ops::mul(pair.whole(pair.loss_of_second(pair.tokens(call.inputs()[0]))), outside)};
    });
    error.clear();
    for (int i = 0; i < 4 && (error.empty() || error == "no error"); ++i) {
      error = error_of([&] { table(inputs, numbers_of(0)); });
    }
    says(error, "mul");
    const double first = good(inputs, numbers_of(0))[0].item();
    check(first > 0, "a call after errors");
    CapturedStep changed(pair.parts(), body_of(pair),
                         {.transforms = {{.name = "T", .run = [](graph::Editor&) {}}}});
    says(error_of([&] { changed(inputs, numbers_of(0)); }),
         "transformation 'T': this call has no program that it could change (none was set); "
         "capture the step ahead");
    says(error_of([&] { CapturedStep(pair.parts(), body_of(pair), {.executor = "fast"}); }),
         "there is no executor 'fast'");
  }));
}
