// Guards: values of the host that select the program of a step, declared before it or read within
// it. Every step has the bits of the eager one, whatever program it was taken by.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
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
using train_test::same_state;

namespace {

constexpr std::int64_t rows = 8;

struct Options {
  NetOptions net = {};
  std::int64_t micro_rows = 0;
  bool late_guard = false;  // after the first of two blocks, where FSDP has gathers under way
  bool stages = false;      // declared guards
  std::int64_t switch_at = 1000;
};

/// Whether most tokens of the whole batch are large, as one number that all ranks have.
Tensor decision_of(const Tensor& tokens) {
  const NoGrad no_grad;
  const Tensor mean = ops::mean(ops::cast(tokens, DType::f64));
  return ops::gt(redistribute(mean, Layout::replicated(mean.layout().mesh())), 5);
}

/// A Net whose second block sees other activations where most tokens are large.
class Branching final : public nn::Module {
 public:
  explicit Branching(const NetOptions& options) {
    embed_ = add_child<nn::Embedding>("embed", Net::vocabulary, 6, 0.5, DType::f64);
    for (const char* name : {"blocks.0", "blocks.1"}) {
      blocks_.push_back(add_child<NetBlock>(name, options.dropout));
    }
    head_ = add_child<nn::Linear>("head", 6, Net::vocabulary, false, 0.5, DType::f64);
    set_names();
  }
  std::string_view kind() const override { return "Branching"; }
  Tensors forward(const Tensors& inputs) override {
    Tensor x = (*blocks_[0])((*embed_)(inputs[0]));
    const bool large = guard("large", decision_of(inputs[0])) > 0;
    return {(*head_)((*blocks_[1])(large ? ops::tanh(x) : ops::mul(x, x)))};
  }

 private:
  std::shared_ptr<nn::Embedding> embed_;
  std::vector<std::shared_ptr<NetBlock>> blocks_;
  std::shared_ptr<nn::Linear> head_;
};

std::shared_ptr<nn::Module> net_of(const Options& options) {
  if (options.late_guard) {
    return std::make_shared<Branching>(options.net);
  }
  return std::make_shared<Net>(options.net);
}

struct Run {
  Run(const DeviceMesh& mesh, const Layouts& layout, Options all)
      : options(std::move(all)),
        net(net_of(options), mesh, layout.styles),
        training(*net.model, net.plan, optim::adamw(nn::all_parameters(*net.model)), {.lr = 0.01},
                 0.7) {}

  StepResult step() {
    const auto stage = static_cast<double>(training.done() / 6 % 2);
    return training.step(
        {.rows = rows, .micro_rows = options.micro_rows, .weight = 24},
        StepFunctions{.rows =
                          [&](const BatchPart& m) {
                            const Tensor all = net_tokens(rows, static_cast<int>(m.step));
                            return Tensors{ops::contiguous(ops::narrow(all, 0, m.first, m.rows))};
                          },
                      .loss_sum = [&, stage](const Tensors& given) { return loss(given[0], stage); },
                      .guards = options.stages ? StepGuards{{"stage", stage}} : StepGuards()});
  }

  Tensor loss(const Tensor& given, double stage) {
    const std::int64_t of =
        options.micro_rows == 0 ? rows : options.micro_rows * net.plan.batch_parts();
    const Tensor tokens = from_local(given, net.plan.batch_layout(), Dims{of, 3});
    const Tensor out = (*net.model)(tokens);
    if (options.stages) {
      return ops::sum(stage > 0 ? ops::square(out) : ops::mul_scalar(ops::exp(out), 2 + stage));
    }
    const bool large = !options.late_guard && guard("large", decision_of(tokens)) > 0;
    return ops::sum(large ? ops::square(out) : ops::exp(out));
  }

  Options options;
  Planned net;
  Training training;
};

/// `steps` steps in a layout, with each executor, against eager ones.
ReplayCounts equals_eager(const Layouts& layout, const Options& options, const char* executor,
                          int steps) {
  ReplayCounts counts;
  INFO(layout.name << ", " << executor);
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    set_seed(5);
    Run eager(mesh, layout, options);
    std::vector<StepResult> results;
    for (int s = 0; s < steps; ++s) {
      results.push_back(eager.step());
    }
    set_seed(5);
    Run run(mesh, layout, options);
    run.training.set_replay(true, {.executor = executor, .passes = graph::default_passes()});
    for (int s = 0; s < steps; ++s) {
      const StepResult result = run.step();
      const auto at = static_cast<std::size_t>(s);
      check(result.loss == results[at].loss && result.grad_norm == results[at].grad_norm,
            "step " + std::to_string(s) + ": " + to_string(run.training.replays()));
    }
    same_state(run.training, eager.training, "after all steps");
    if (current_rank() == 0) {
      counts = run.training.replays();
    }
  }));
  return counts;
}

}  // namespace

TEST_CASE("a declared guard selects the program of a step") {
  for (const Layouts& layout : train_test::layouts()) {
    for (const char* executor : {"interpreter", "planned", "compiled"}) {
      const ReplayCounts counts = equals_eager(layout, {.stages = true}, executor, 24);
      CHECK(counts.captured == 2);
      CHECK(counts.eager == 4);
      CHECK(counts.replayed == 16);
      CHECK(counts.given_up == 0);
      CHECK(counts.reasons == std::map<std::string, std::int64_t>{
                                  {"the first", 1}, {"guard 'stage' is 1, was 0", 1}});
    }
  }
}

TEST_CASE("a guard that is read within a step selects its program, with the bits of eager steps") {
  for (const Layouts& layout : train_test::layouts()) {
    for (const bool late : {false, true}) {
      for (const char* executor : {"interpreter", "planned", "compiled"}) {
        const ReplayCounts counts = equals_eager(
            layout, {.net = {.dropout = 0.2}, .late_guard = late}, executor, 24);
        INFO(to_string(counts));
        CHECK(counts.captured == 2);
        CHECK(counts.given_up > 0);
        CHECK(counts.replayed >= 12);
        CHECK(counts.replayed + counts.recorded + counts.eager == 24);
      }
    }
  }
}
