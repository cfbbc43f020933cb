// The training step: against a hand-written step on a plain model, in every layout and division
// into micro-batches; what it saves; what it refuses.
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera;
import tessera.parallel;

#include "layouts.hpp"
#include "net.hpp"
#include "support.hpp"

using namespace tessera;
using namespace parallel_test;
using train_test::Folder;
using train_test::layout_named;
using train_test::Layouts;
using train_test::on_layout;

namespace {

constexpr std::int64_t rows = 8;
const optim::Schedule schedule = {.lr = 0.05, .warmup = 2};
constexpr double max_norm = 0.7;

/// Which of three tokens of a row count: none of row 3, all of row 6.
Tensor masks() {
  std::vector<double> values;
  for (std::int64_t i = 0; i < rows * 3; ++i) {
    values.push_back(i / 3 == 6 || (i / 3 != 3 && i % (2 + i / 7) == 0) ? 1 : 0);
  }
  return from_values(std::span<const double>(values), {rows, 3});
}

Tensor masked_sum(const Tensor& logits, const Tensor& mask) {
  return ops::sum(ops::mul(ops::square(logits), ops::unsqueeze(mask, 2)));
}

std::unique_ptr<optim::Optimizer> optimizer_of(nn::Module& model) {
  return optim::adamw(nn::all_parameters(model), {}, {.weight_decay = 0.1});
}

/// A Net under a plan, and its training.
struct Run {
  Run(const DeviceMesh& mesh, const std::vector<parallel::StyleEntry>& styles,
      const NetOptions& options = {})
      : net(std::make_shared<Net>(options), mesh, styles),
        training(*net.model, net.plan, optimizer_of(*net.model), schedule, max_norm) {}

  /// The masked losses of the micro-batch's rows.
  Tensor sum(const BatchPart& m) {
    const Dims shape{micro ? m.rows * net.plan.batch_parts() : rows, 3};
    const auto part = [&](const Tensor& whole) {
      return from_local(ops::contiguous(ops::narrow(whole, 0, m.first, m.rows)),
                        net.plan.batch_layout(), shape);
    };
    return masked_sum((*net.model)(part(net_tokens(rows, static_cast<int>(m.step)))),
                      part(masks()));
  }
  StepResult step(std::int64_t micro_rows = 0) {
    micro = micro_rows != 0;
    const Tensor mine = distribute(masks(), net.plan.batch_layout()).local();
    const double weight = training.total(ops::sum(mine).item());
    return training.step({.rows = rows, .micro_rows = micro_rows, .weight = weight},
                         [&](const BatchPart& m) { return sum(m); });
  }

  Planned net;
  Training training;
  bool micro = false;  // micro-batches, whose parts are equal
};

/// Also those in which ranks have different numbers of rows.
std::vector<Layouts> layouts() {
  std::vector<Layouts> all = train_test::layouts();
  const parallel::StyleEntry sharded = fsdp({"blocks.*", "."});
  all.push_back({"unequal parts", {"shard"}, {3}, {sharded}});
  all.push_back({"a rank without rows", {"shard"}, {5}, {sharded}});
  return all;
}

/// 0, no micro-batches, to micro-batches of `most` rows, where the parts are equal.
std::vector<std::int64_t> divisions(const Layouts& layout, std::int64_t most) {
  std::vector<std::int64_t> found = {0};
  for (std::int64_t n = 1; n <= most && rows % layout.shape.back() == 0; ++n) {
    found.push_back(n);
  }
  return found;
}

}  // namespace

TEST_CASE(
    "a step is the hand-written step of a plain model, in every layout, in any micro-batches") {
  std::vector<double> losses;
  std::vector<double> norms;
  Named expected;
  on_ranks(1, [&](int) {
    const std::shared_ptr<nn::Module> model = plain(std::make_shared<Net>());
    const auto optimizer = optimizer_of(*model);
    for (int step = 0; step < 3; ++step) {
      const Tensor sum = masked_sum((*model)(net_tokens(rows, step)), masks());
      const Tensor loss = ops::mul_scalar(sum, 1 / ops::sum(masks()).item());
      backward(loss);
      double squares = 0;
      for (const auto& [name, values] : gradients_of(*model)) {
        for (const double g : values) {
          squares += g * g;
        }
      }
      losses.push_back(detached(loss).item());
      norms.push_back(std::sqrt(squares));
      optimizer->step(0.05 * std::min(1.0, (step + 1) / 2.0),
                      std::min(1.0, max_norm / (norms.back() + 1e-6)));
      optimizer->zero_grad();
    }
    expected = values_of(*model);
  });
  for (const Layouts& layout : layouts()) {
    for (const std::int64_t micro_rows : divisions(layout, 2)) {
      INFO(layout.name << ", micro-batches of " << micro_rows);
      REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
        Run run(mesh, layout.styles);
        for (std::size_t step = 0; step < 3; ++step) {
          const StepResult result = run.step(micro_rows);
          check(std::abs(result.loss - losses[step]) < 1e-12 * losses[step],
                "loss " + std::to_string(result.loss));
          check(std::abs(result.grad_norm - norms[step]) < 1e-9 * norms[step],
                "norm " + std::to_string(result.grad_norm));
          check(result.lr == schedule.at(static_cast<std::int64_t>(step)), "learning rate");
        }
        check(run.training.done() == 3, "three steps");
        check(difference(values_of(*run.net.model), expected) < 1e-9, "parameters");
        check(gradients_of(*run.net.model).empty(), "gradients are dropped");
      }));
    }
  }
}

TEST_CASE("dropout depends neither on the layout nor on the micro-batches") {
  std::vector<double> losses;
  for (const Layouts& layout : layouts()) {
    for (const std::int64_t micro_rows : divisions(layout, 1)) {
      double loss = 0;
      on_layout(layout, [&](const DeviceMesh& mesh) {
        Run run(mesh, layout.styles, {.dropout = 0.4});
        run.step(micro_rows);
        const double second = run.step(micro_rows).loss;
        if (current_rank() == 0) {
          loss = second;
        }
      });
      losses.push_back(loss);
    }
  }
  for (const double loss : losses) {
    CHECK(loss == Approx(losses[0]).epsilon(1e-12));
  }
}

TEST_CASE("a training continues bit by bit from what it has saved, and on another mesh") {
  const Folder folder;
  const NetOptions options{.tied = true, .dropout = 0.3, .frozen = {"blocks.0.norm"}};
  const Layouts sharded = layout_named("fully sharded");
  Named straight;
  on_layout(sharded, [&](const DeviceMesh& mesh) {
    Run run(mesh, sharded.styles, options);
    check(!run.training.checkpoints().resume(folder / "run"), "nothing is there yet");
    for (int i = 0; i < 5; ++i) {
      if (i == 2) {
        run.training.checkpoints().save(checkpoint_folder(folder / "run", 2),
                                        R"({"by": "a test"})");
      }
      run.step(2);
    }
    const Named values = values_of(*run.net.model);
    if (current_rank() == 0) {
      straight = values;
    }
  });
  on_layout(sharded, [&](const DeviceMesh& mesh) {
    Run run(mesh, sharded.styles, options);
    run.step();  // what it did before counts no more
    check(run.training.checkpoints().resume(folder / "run"), "a checkpoint");
    check(run.training.done() == 2, "its step");
    for (int i = 0; i < 3; ++i) {
      run.step(2);
    }
    check(values_of(*run.net.model) == straight, "the same bits");
  });
  const Layouts hybrid = layout_named("hybrid");
  on_layout(hybrid, [&](const DeviceMesh& mesh) {
    Run run(mesh, hybrid.styles, options);
    check(run.training.checkpoints().resume(folder / "run"), "a checkpoint");
    for (int i = 0; i < 3; ++i) {
      run.step();
    }
    check(difference(values_of(*run.net.model), straight) < 1e-9, "the same but for rounding");
  });
}

TEST_CASE("what a step refuses changes nothing: no parameter, no gradient, no step") {
  const Layouts sharded = layout_named("fully sharded");
  REQUIRE_NOTHROW(on_layout(sharded, [&](const DeviceMesh& mesh) {
    Run run(mesh, sharded.styles);
    run.step();
    const Named before = values_of(*run.net.model);
    const auto refused = [&](const StepBatch& batch, const LossSum& loss, std::string_view why) {
      const std::string error = error_of([&] { run.training.step(batch, loss); });
      check(error.find(why) != std::string::npos, error + " instead of: " + std::string(why));
      check(values_of(*run.net.model) == before, "parameters stay");
      check(gradients_of(*run.net.model).empty(), "gradients are dropped");
      check(run.training.done() == 1, "no step is counted");
    };
    const LossSum good = [&](const BatchPart& m) { return run.sum(m); };
    const StepBatch whole{.rows = rows};
    refused({.rows = 0}, good, "a step has no rows (expected at least 1, got 0)");
    refused({.rows = 7, .micro_rows = 1}, good, "micro-batches of 1 (expected a multiple of 2");
    refused({.rows = rows, .micro_rows = 3}, good, "cannot be divided equally into micro-batches");
    refused({.rows = rows, .micro_rows = -1}, good, "micro-batches of -1");
    refused(whole, [](const BatchPart&) { return Tensor(); }, "got no tensor");
    refused(whole, [](const BatchPart&) { return full({}, 1); }, "got a plain tensor of shape []");
    refused(
        whole, [&](const BatchPart& m) { return ops::mul_scalar(run.sum(m), NAN); },
        "the loss is nan");
    refused(
        whole,
        [&](const BatchPart& m) {  // finite, but with a gradient that overflows
          const Tensor sum = run.sum(m);
          const Tensor zero = ops::sub(sum, detached(sum));
          return ops::add(sum, ops::mul_scalar(ops::mul_scalar(zero, 1e200), 1e200));
        },
        "the gradient norm ");
    int calls = 0;
    refused(
        {.rows = rows, .micro_rows = 1},
        [&](const BatchPart& m) {
          run.micro = true;
          if (++calls == 3) {
            fail("a broken data file");
          }
          return run.sum(m);
        },
        "a broken data file");
    run.step();
    check(run.training.done() == 2, "it goes on");
    check(run.net.model->is_training(), "in training mode");
    const std::string error = error_of([&] {
      run.training.evaluate(1, {.rows = rows}, [](const BatchPart&) { return Tensor(); });
    });
    check(error.find("got no tensor") != std::string::npos, error);
    check(run.net.model->is_training(), "also after an evaluation that threw");
  }));
}

TEST_CASE("a step or an evaluation without a counted token is named as that") {
  REQUIRE_NOTHROW(on_layout(layout_named("fully sharded"), [](const DeviceMesh& mesh) {
    Run run(mesh, layout_named("fully sharded").styles);
    const auto sum = [&](const BatchPart& part) { return run.sum(part); };
    for (const double weight : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
      const StepBatch batch{.rows = rows, .weight = weight};
      const std::string step = error_of([&] { run.training.step(batch, sum); });
      const std::string evaluation = error_of([&] { run.training.evaluate(1, batch, sum); });
      for (const std::string& error : {step, evaluation}) {
        check(error.find(weight == 0 ? "training: no token counts" : "divided by is not one") !=
                  std::string::npos,
              error);
        check(error.find("learning rate") == std::string::npos, error);
      }
    }
    check(run.training.done() == 0, "no step was taken");
  }));
}

TEST_CASE("a learning rate is advised only where one was used") {
  REQUIRE_NOTHROW(on_layout(layout_named("fully sharded"), [](const DeviceMesh& mesh) {
    Run run(mesh, layout_named("fully sharded").styles);
    const auto infinite = [&](const BatchPart& part) {
      return ops::mul_scalar(run.sum(part), std::numeric_limits<double>::infinity());
    };
    const StepBatch batch{.rows = rows};
    const std::string first = error_of([&] { run.training.step(batch, infinite); });
    check(first.find("no update was made before") != std::string::npos, first);
    run.step();
    const std::string second = error_of([&] { run.training.step(batch, infinite); });
    check(second.find("a smaller learning rate or a longer warm-up may help") != std::string::npos,
          second);
  }));
}

TEST_CASE("an evaluation is the mean without dropout, and leaves no trace") {
  for (const Layouts& layout : layouts()) {
    INFO(layout.name);
    REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
      Run with(mesh, layout.styles, {.dropout = 0.5});
      Run without(mesh, layout.styles);
      const auto mean = [&](Run& run, std::int64_t micro_rows, double weight = 2 * rows) {
        run.micro = micro_rows != 0;
        return run.training.evaluate(2, {.rows = rows, .micro_rows = micro_rows, .weight = weight},
                                     [&](const BatchPart& m) { return run.sum(m); });
      };
      const double expected = mean(without, 0);
      check(mean(with, 0) == expected, "dropout is off");
      check(mean(without, 0, 4 * rows) == expected / 2, "it is divided by the weight");
      if (divisions(layout, 1).size() > 1) {
        check(std::abs(mean(with, 1) - expected) < 1e-12 * expected, "in micro-batches");
      }
      check(gradients_of(*with.net.model).empty() && with.training.done() == 0, "no trace");
    }));
  }
}
