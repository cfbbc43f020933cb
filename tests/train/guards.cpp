// Guards: values of the host that select the program of a step, declared before it or read within
// it. Every step has the bits of the eager one, whatever program it was taken by.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera;
import tessera.graph;
import tessera.parallel;
import tessera.passes;
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
        StepFunctions{
            .rows =
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
    run.training.captured().set_enabled(true,
                                        {.executor = executor, .passes = graph::default_passes()});
    for (int s = 0; s < steps; ++s) {
      const StepResult result = run.step();
      const auto at = static_cast<std::size_t>(s);
      check(result.loss == results[at].loss && result.grad_norm == results[at].grad_norm,
            "step " + std::to_string(s) + ": " + to_string(run.training.captured().counts()));
    }
    same_state(run.training, eager.training, "after all steps");
    if (current_rank() == 0) {
      counts = run.training.captured().counts();
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
      CHECK(counts.eager == 2);
      CHECK(counts.replayed == 20);
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
        const ReplayCounts counts =
            equals_eager(layout, {.net = {.dropout = 0.2}, .late_guard = late}, executor, 24);
        INFO(to_string(counts));
        CHECK(counts.captured == 2);
        CHECK(counts.given_up > 0);
        CHECK(counts.replayed >= 12);
        CHECK(counts.replayed + counts.recorded + counts.eager == 24);
      }
    }
  }
}

TEST_CASE("a guard among gathers of values that are made for them leaves nothing behind") {
  // The sources of these gathers are copies in f32, in memory of the step.
  Layouts layout = layout_named("fully sharded");
  layout.styles[0].options = R"({"param_dtype": "f32"})";
  for (const char* executor : {"interpreter", "planned"}) {
    const ReplayCounts counts = equals_eager(layout, {.late_guard = true}, executor, 60);
    INFO(to_string(counts));
    CHECK(counts.captured == 2);
    CHECK(counts.given_up > 5);
    CHECK(counts.replayed >= 50);
  }
}

TEST_CASE("guards of micro-batches, with recomputation, and a skipped kind of step") {
  const Layouts layout = layout_named("hybrid");
  for (const char* executor : {"interpreter", "planned"}) {
    const ReplayCounts counts = equals_eager(
        layout, {.net = {.checkpointing = true, .dropout = 0.2}, .micro_rows = 1}, executor, 40);
    INFO(to_string(counts));
    CHECK(counts.captured >= 2);  // two guards in each step, so up to four programs
    CHECK(counts.given_up > 0);
    CHECK(counts.replayed > 20);
  }
}

TEST_CASE("ranks that read different numbers at a guard get the error of different calls") {
  const Layouts layout = layout_named("fully sharded");
  std::string error;
  try {
    on_layout(layout, [&](const DeviceMesh& mesh) {
      Planned net(std::make_shared<Net>(), mesh, layout.styles);
      Training training(*net.model, net.plan, optim::adamw(nn::all_parameters(*net.model)),
                        {.lr = 0.01});
      training.captured().set_enabled(true);
      for (int s = 0; s < 12; ++s) {
        training.step({.rows = rows},
                      StepFunctions{.rows =
                                        [&](const BatchPart& m) {
                                          const int shift = s == 8 && current_rank() == 1 ? 100 : 0;
                                          Tensor x =
                                              ops::narrow(net_tokens(rows, 0), 0, m.first, m.rows);
                                          return Tensors{ops::contiguous(x), full({}, shift)};
                                        },
                                    .loss_sum =
                                        [&](const Tensors& given) {
                                          const Tensor tokens = from_local(
                                              given[0], net.plan.batch_layout(), Dims{rows, 3});
                                          const Tensor out = (*net.model)(tokens);
                                          const bool odd = guard("mine", ops::gt(given[1], 0)) > 0;
                                          return ops::sum(odd ? ops::exp(out) : ops::square(out));
                                        }});
      }
    });
    error = "no error";
  } catch (const Error& failed) {
    error = failed.what();
  }
  INFO(error);

  CHECK(error.find("calls differ") != std::string::npos);
  // What has led to it, on the rank that has found it.
  CHECK(error.find("the last decision: guard 'mine' is ") != std::string::npos);
}

TEST_CASE("programs are evicted, and counted") {
  const Layouts layout = layout_named("one rank");
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    Planned net(std::make_shared<Net>(), mesh, layout.styles);
    auto adamw = optim::adamw(nn::all_parameters(*net.model));
    CompiledStep step = compile([&](StepCall& call) -> Tensors {
      const Tensor tokens = from_local(call.inputs()[0], net.plan.batch_layout());
      const Tensor loss =
          ops::mul_scalar(ops::sum(ops::square((*net.model)(tokens))), call.guard("scale"));
      backward(loss);
      call.update(*adamw, call.number("lr"));
      return {loss};
    });
    for (int scale = 1; scale <= 18; ++scale) {
      for (int i = 0; i < 5; ++i) {
        step({net_tokens(rows, i)}, {.numbers = {{"lr", 0.01}}, .guards = {{"scale", scale}}});
      }
    }
    const ReplayCounts& counts = step.counts();
    check(counts.captured == 18 && counts.evicted == 2 && counts.replayed == 54, to_string(counts));
    check(counts.reasons.at("guard 'scale' is 6, was 5") == 1, to_string(counts));
    check(to_string(counts).find("18 programs, 2 of them dropped for newer ones: ") !=
              std::string::npos,
          to_string(counts));
    const std::string missing =
        error_of([&] { step({net_tokens(rows, 0)}, {.numbers = {{"lr", 0.01}}}); });
    check(missing.find("the call has no guard 'scale'") != std::string::npos, missing);
  }));
}

namespace {

/// A step of a program's own, which a function builds on any device.
struct Own {
  Own(const DeviceMesh& mesh, const Layouts& layout, Device device)
      : net(std::make_shared<Branching>(NetOptions{.dropout = 0.1})),
        plan(*net, mesh, layout.styles, shipped_styles()) {
    set_seed(5);
    if (!(device == meta)) {
      plan.materialize();
      nn::initialize(*net);
    }
    adamw = optim::adamw(nn::all_parameters(*net));
  }

  StepBody body() {
    return [this](StepCall& call) -> Tensors {
      const Tensor& given = call.inputs()[0];
      const Tensor tokens =
          from_local(given, plan.batch_layout(), Dims{given.size(0) * plan.batch_parts(), 3});
      const Tensor loss =
          ops::mul_scalar(ops::sum(ops::square((*net)(tokens))), call.number("weight"));
      backward(loss);
      call.update(*adamw, call.number("lr"));
      const NoGrad no_grad;
      return {redistribute(loss, Layout::replicated(plan.mesh())).local(), loss};
    };
  }
  Tensor local_rows(int call) const {
    return ops::contiguous(distribute(net_tokens(rows, call), plan.batch_layout()).local());
  }
  static StepNumbers numbers(int call) {
    return {.numbers = {{"lr", 0.01 / (call % 3 + 1)}, {"weight", 1.0 / (call + 2)}}};
  }

  std::shared_ptr<nn::Module> net;
  parallel::ParallelPlan plan;
  std::unique_ptr<optim::Optimizer> adamw;
};

/// Makes the step on a device; `made` gets the first of those that it trains.
StepFactory factory_of(const DeviceMesh& mesh, const Layouts& layout, std::shared_ptr<Own>& made) {
  return [&](Device device) -> StepBody {
    const auto own = std::make_shared<Own>(mesh, layout, device);
    made = made == nullptr ? own : made;
    return [own](StepCall& call) { return own->body()(call); };
  };
}

}  // namespace

TEST_CASE("a step of a program's own is captured before its first call") {
  for (const Layouts& layout : train_test::layouts()) {
    for (const char* executor : {"interpreter", "planned", "compiled"}) {
      INFO(layout.name << ", " << executor);
      REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
        Own expected(mesh, layout, cpu);
        std::vector<double> losses;
        for (int call = 0; call < 16; ++call) {  // none is called often enough to be recorded
          CompiledStep fresh = compile(expected.body());
          losses.push_back(fresh({expected.local_rows(call)}, Own::numbers(call))[0].item());
        }
        std::shared_ptr<Own> own;
        CompiledStep step =
            compile(factory_of(mesh, layout, own),
                    {.execution = {.executor = executor, .memory_budget = std::int64_t{1} << 20}});
        for (int call = 0; call < 16; ++call) {
          const Tensors results = step({own->local_rows(call)}, Own::numbers(call));
          const double loss = losses[static_cast<std::size_t>(call)];
          check(results[0].item() == loss && full_tensor(results[1]).item() == loss,
                "call " + std::to_string(call) + ": " + to_string(step.counts()));
        }
        check(step.reads().empty(), "nothing but guards is read: " + step.reads());
        check(values_of(*own->net) == values_of(*expected.net), "the same parameters");
        check(step.counts().reasons.at("before the first step") == 1 &&
                  step.counts().captured == 2 && step.counts().replayed >= 8 &&
                  step.counts().reasons.at("guard 'large' is 1, was 0") == 1,
              to_string(step.counts()));
      }));
    }
  }
}

TEST_CASE("transformations change every call of a step that is captured ahead") {
  const Layouts layout = layout_named("one rank");
  const auto counts = [](graph::Editor& edit) {
    const TensorIndex calls = edit.state("calls", zeros({}));
    edit.move_to(0, edit.program().sections[0].instructions.size());
    edit.call("add_", {calls, edit.value("ones_like", {calls})}, "alpha=1");
  };
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    std::shared_ptr<Own> own;
    CompiledStep step = compile(factory_of(mesh, layout, own),
                                {.changes = {{.name = "dead"}, {.name = "Count", .run = counts}}});
    std::string refused;
    int taken = 0;
    for (int call = 0; call < 16 && refused.empty(); ++call) {
      refused = error_of([&] {
        step({own->local_rows(call)}, Own::numbers(call));
        ++taken;
      });
      refused = refused == "no error" ? "" : refused;
    }
    check(step.added().at("transform.calls").item() == taken, "calls are counted");
    check(taken > 0 && refused.find("change 'Count': this call has no program that it "
                                    "could change (guard 'large'") == 0,
          std::to_string(taken) + " calls: " + refused);
  }));
}

TEST_CASE("a guard after a change is an error that names it; so is a value that is no guard") {
  const Layouts layout = layout_named("one rank");
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    Own own(mesh, layout, cpu);
    const auto error_after = [&](const StepBody& body) {
      CompiledStep step = compile(body, train_test::compiled_with({.compares_recordings = true}));
      std::string error;
      for (int call = 0; call < 5 && error.empty(); ++call) {
        error = error_of([&] { step({own.local_rows(call)}, {.numbers = {{"lr", 0.01}}}); });
        error = error == "no error" ? "" : error;
      }
      return error;
    };
    const auto loss_of = [&](StepCall& call) {
      return ops::sum((*own.net)(from_local(call.inputs()[0], own.plan.batch_layout())));
    };
    const std::string late = error_after([&](StepCall& call) -> Tensors {
      backward(loss_of(call));
      call.update(*own.adamw, call.number("lr"));
      return {full({}, guard("late", full({}, 1)))};
    });
    check(late.find("guard 'late': the step has changed 'parameter.") == 0, late);
    const std::string read = error_after([&](StepCall& call) -> Tensors {
      const double value = ops::sum(call.inputs()[0]).item();
      return {ops::mul_scalar(loss_of(call), value > 100 ? 2 : 1)};
    });
    check(read.find("the host reads a result of sum, which was host.check(") != std::string::npos &&
              read.find("is read by guard(\"name\", x)") != std::string::npos,
          read);
  }));
}

TEST_CASE("recordings of other branches are not compared with each other") {
  const Layouts layout = layout_named("fully sharded");
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    set_seed(5);
    Run eager(mesh, layout, {.late_guard = true});
    set_seed(5);
    Run run(mesh, layout, {.late_guard = true});
    run.training.captured().set_enabled(true, {.compares_recordings = true});
    for (int s = 0; s < 30; ++s) {
      check(run.step().loss == eager.step().loss, "step " + std::to_string(s));
    }
    check(run.training.captured().counts().captured == 2,
          to_string(run.training.captured().counts()));
    check(run.training.captured().counts().recorded == 4,
          to_string(run.training.captured().counts()));
  }));
}
