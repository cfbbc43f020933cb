// What a captured step depends on besides values: what changes between two calls is noticed, and
// what a call changes besides values is refused. Each case compares with calls that are taken as
// they are.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera;
import tessera.autograd;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.tensor;
import tessera.train;

#include "net.hpp"
#include "support.hpp"

using namespace tessera;
using namespace parallel_test;

namespace {

struct TwoLayers : nn::Module {
  TwoLayers() {
    add_buffer("seen", std::make_shared<nn::Buffer>(full({4}, 0)));
    set_names();
  }
  std::string_view kind() const override { return "TwoLayers"; }
  Tensors forward(const Tensors& inputs) override {
    return {ops::mul_scalar((*second)((*first)(inputs[0])), factor)};
  }

  nn::Child first = add_child<nn::Linear>("first", 4, 6, true, 0.3);
  nn::Child second = add_child<nn::Linear>("second", 6, 2, true, 0.3);
  double factor = 1;
};

/// A model with its plan and optimizer, whose step is taken with changes between calls.
struct Subject {
  explicit Subject(const DeviceMesh& mesh, const std::vector<parallel::StyleEntry>& styles = {})
      : plan(*net, mesh, styles.empty() ? replicated() : styles, shipped_styles()) {
    set_seed(6);
    plan.materialize();
    nn::initialize(*net);
    make_optimizer();
  }
  static std::vector<parallel::StyleEntry> replicated() {
    return {{"Replicate", "d", {"."}, "{}", ""}};
  }
  void make_optimizer() { adamw = optim::adamw(nn::all_parameters(*net)); }
  nn::ParameterPointer weight() const { return (*net->first).parameter("weight"); }
  Tensor loss(const Tensor& x) {
    return ops::sum(ops::square(ops::add_scalar((*net)(from_local(x, plan.batch_layout())), -1)));
  }
  Tensors step(StepCall& call) {
    const Tensor sum = loss(call.inputs()[0]);
    if (sum.requires_grad()) {
      backward(sum);
      call.update(*adamw, 0.05);
    }
    return {full_tensor(detached(sum))};
  }
  std::vector<double> values() const {
    std::vector<double> all;
    for (const nn::ParameterPointer& parameter : nn::all_parameters(*net)) {
      const std::vector<double> more = to_doubles(local_of(parameter->value));
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }

  std::shared_ptr<TwoLayers> net = std::make_shared<TwoLayers>();
  parallel::ParallelPlan plan;
  std::unique_ptr<optim::Optimizer> adamw;
};

using Change = std::function<void(Subject&, int call)>;

/// Twelve calls; `change` comes before each of them. `captured`: programs in all.
void same_with_changes(const Change& change, std::int64_t captured,
                       const std::vector<parallel::StyleEntry>& styles = {}, int ranks = 1) {
  REQUIRE_NOTHROW(on_ranks(ranks, [&](int) {
    const DeviceMesh mesh = DeviceMesh::make({"d"}, {ranks});
    Subject eager(mesh, styles);
    Subject subject(mesh, styles);
    const auto body = [](Subject& of) -> StepBody {
      return [&of](StepCall& call) { return of.step(call); };
    };
    CompiledStep step = compile(body(subject));
    for (int call = 0; call < 12; ++call) {
      change(eager, call);
      change(subject, call);
      const Tensor x = full({3, 4}, 0.2 + 0.1 * call);
      const double expected = compile(body(eager))({x})[0].item();
      check(step({x})[0].item() == expected, "call " + std::to_string(call));
      check(eager.values() == subject.values(), "parameters after " + std::to_string(call));
    }
    check(step.counts().captured == captured, to_string(step.counts()));
    check(step.counts().replayed == 12 - 2 * captured, to_string(step.counts()));
  }));
}

GradientHook times(double factor) {
  return [factor](const Tensor& gradient) { return ops::mul_scalar(gradient, factor); };
}

}  // namespace

TEST_CASE("hooks on gradients that are added, replaced and removed are noticed") {
  same_with_changes(
      [](Subject& subject, int call) {
        const Tensor& weight = subject.weight()->value;
        if (call == 3) {
          add_gradient_hook(weight, times(0.5));
        } else if (call == 6 || call == 9) {
          std::erase_if(grad_state(weight)->leaf_hooks, [](const GradientHook& hook) {
            return hook.target_type() == times(1).target_type();
          });
          if (call == 6) {
            add_gradient_hook(weight, times(0.25));
          }
        }
      },
      3);
}

TEST_CASE("hooks of modules that are put in the place of others are noticed") {
  std::vector<nn::HookHandle> handles(2);
  const auto hook = [](double factor) {
    return [factor](nn::Module&, const Tensors&, Tensors& outputs) {
      outputs[0] = ops::mul_scalar(outputs[0], factor);
    };
  };
  std::size_t of = 0;
  same_with_changes(
      [&](Subject& subject, int call) {
        nn::HookHandle& handle = handles[of++ % 2];
        if (call == 0 || call == 6) {
          handle.remove();
          handle = subject.net->add_hook(hook(call == 0 ? 2 : 3));
        }
      },
      2);
}

TEST_CASE("attributes of modules are noticed where the module counts their changes") {
  same_with_changes(
      [](Subject& subject, int call) {
        if (call == 5) {
          subject.net->factor = 3;
          subject.net->note_change();
        }
      },
      2);
}

TEST_CASE("parameters that are frozen without an optimizer, and optimizers that are replaced") {
  same_with_changes(
      [](Subject& subject, int call) {
        if (call == 5) {
          subject.make_optimizer();
        }
      },
      2);
  REQUIRE_NOTHROW(on_ranks(1, [&](int) {
    const DeviceMesh mesh = DeviceMesh::make({"d"}, {1});
    Subject subject(mesh);
    CompiledStep step = compile([&](StepCall& call) -> Tensors {
      const Tensor sum = subject.loss(call.inputs()[0]);
      backward(sum);
      const Tensor gradient = subject.weight()->value.grad();
      return {gradient ? ops::clone(gradient.local()) : zeros({1})};
    });
    for (int call = 0; call < 8; ++call) {
      subject.weight()->value.set_requires_grad(call < 4);
      check(step({full({3, 4}, 1)})[0].numel() == (call < 4 ? 24 : 1), std::to_string(call));
    }
    check(step.counts().captured == 2, to_string(step.counts()));
  }));
}

TEST_CASE("low-rank updates that are switched off around calls are not trained") {
  std::vector<std::optional<nn::WithoutUpdatesScope>> off(2);
  std::size_t of = 0;
  same_with_changes(
      [&](Subject& subject, int call) {
        std::optional<nn::WithoutUpdatesScope>& scope = off[of++ % 2];
        if (call >= 8) {
          scope.reset();
          scope.emplace(*subject.net);
        }
        if (call == 11) {
          scope.reset();
        }
      },
      2,
      {{.style = "LoRA", .on = {"first"}, .options = R"({"rank": 2, "alpha": 4})"},
       {.style = "Replicate", .axis = "d", .on = {"."}}});
}

TEST_CASE("settings of sharded parameters are noticed, and copies are gathered in several groups") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    INFO(name_of(dtype));
    REQUIRE_NOTHROW(on_ranks(2, [&](int) {
      const DeviceMesh mesh = DeviceMesh::make({"d"}, {2});
      struct Sharded {
        explicit Sharded(const DeviceMesh& mesh, DType type)
            : handle(*net, mesh,
                     {.groups = {"first", "second"},
                      .precision = {.parameters = type, .outputs = DType::f32}},
                     shipped_styles()) {
          set_seed(6);
          handle.materialize();
          nn::initialize(*net);
          adamw = optim::adamw(nn::all_parameters(*net));
        }
        StepBody body() {
          return [this](StepCall& call) -> Tensors {
            const Tensor hidden =
                (*net->first)(from_local(call.inputs()[0], handle.batch_layout()));
            const Tensor loss = ops::sum(ops::square((*net->second)(hidden)));
            backward(loss);
            call.update(*adamw, 0.05);
            return {full_tensor(detached(loss))};
          };
        }
        std::shared_ptr<TwoLayers> net = std::make_shared<TwoLayers>();
        parallel::FullySharded handle;
        std::unique_ptr<optim::Optimizer> adamw;
      };
      Sharded eager(mesh, dtype);
      Sharded sharded(mesh, dtype);
      CompiledStep step = compile(sharded.body());
      for (int call = 0; call < 12; ++call) {
        for (Sharded* const one : {&eager, &sharded}) {
          if (call == 4) {
            one->handle.parameters().set_gradient_factor(0.5);
          } else if (call == 8) {
            one->handle.parameters().set_reduction_hook([](nn::Parameter&, Tensor& gradient) {
              gradient = ops::add_scalar(gradient, 0.125);
            });
          }
        }
        const Tensor x = full({3, 4}, 0.2 + 0.1 * call);
        check(step({x})[0].item() == compile(eager.body())({x})[0].item(),
              "call " + std::to_string(call));
      }
      check(step.counts().captured == 3 && step.counts().replayed == 6, to_string(step.counts()));
    }));
  }
}

TEST_CASE("copies in codes, and of layers with low-rank updates, are gathered in several groups") {
  struct Wide : nn::Module {
    Wide() { set_names(); }
    std::string_view kind() const override { return "Wide"; }
    Tensors forward(const Tensors& inputs) override {
      return {(*second)(ops::relu((*first)(inputs[0])))};
    }
    nn::Child first = add_child<nn::Linear>("first", 16, 32, false, 0.3);
    nn::Child second = add_child<nn::Linear>("second", 32, 16, false, 0.3);
  };
  const std::vector<parallel::StyleEntry> before = {
      {.style = "Float8", .on = {"first", "second"}, .options = R"({"all_gather": true})"},
      {.style = "LoRA", .on = {"first", "second"}, .options = R"({"rank": 2, "alpha": 4})"}};
  for (const parallel::StyleEntry& style : before) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      INFO(style.style << ' ' << name_of(dtype));
      REQUIRE_NOTHROW(on_ranks(2, [&](int) {
        struct Trained {
          Trained(const parallel::StyleEntry& style, DType type) {
            parallel::set_precision(*net, {.parameters = type, .outputs = DType::f32});
            plan = std::make_unique<parallel::ParallelPlan>(
                *net, DeviceMesh::make({"d"}, {2}),
                std::vector<parallel::StyleEntry>{
                    style, {.style = "FSDP", .axis = "d", .on = {"first", "second"}}},
                shipped_styles());
            set_seed(6);
            plan->materialize();
            nn::initialize(*net);
            adamw = optim::adamw(nn::all_parameters(*net));
          }
          Tensors step(StepCall& call) {
            const Tensor x = from_local(call.inputs()[0], plan->batch_layout());
            const Tensor loss = ops::sum(ops::square(ops::add_scalar((*net)(x), -1)));
            backward(loss);
            call.update(*adamw, 0.05);
            return {full_tensor(detached(loss))};
          }
          std::shared_ptr<Wide> net = std::make_shared<Wide>();
          std::unique_ptr<parallel::ParallelPlan> plan;
          std::unique_ptr<optim::Optimizer> adamw;
        };
        Trained eager(style, dtype);
        Trained captured(style, dtype);
        CompiledStep step = compile([&](StepCall& call) { return captured.step(call); });
        double first = 0;
        for (int call = 0; call < 6; ++call) {
          const Tensor x = full({16, 16}, 0.2 + 0.1 * call);
          const double loss =
              compile([&](StepCall& one) { return eager.step(one); })({x})[0].item();
          check(step({x})[0].item() == loss, "call " + std::to_string(call));
          check(call == 0 || loss != first, "nothing is trained");
          first = call == 0 ? loss : first;
        }
        check(step.counts().replayed == 4, to_string(step.counts()));
      }));
    }
  }
}

TEST_CASE("a hook on a gradient that never runs is an error") {
  REQUIRE_NOTHROW(on_ranks(2, [&](int) {
    const DeviceMesh mesh = DeviceMesh::make({"d"}, {2});
    Subject subject(mesh, {{"FSDP", "d", {"first", "second"}, "{}", ""}});
    add_gradient_hook(subject.weight()->value, times(0.5));
    const std::string error = error_of([&] { backward(subject.loss(full({3, 4}, 1))); });
    check(contains(error, "parameter 'first.weight' has a hook on its gradient that never runs"),
          error);
    check(contains(error, "set_reduction_hook()"), error);
  }));
}

TEST_CASE("what a call changes besides values is refused when it is recorded") {
  REQUIRE_NOTHROW(on_ranks(1, [&](int) {
    const DeviceMesh mesh = DeviceMesh::make({"d"}, {1});
    const auto refused = [&](const std::function<void(Subject&, const Tensor& x)>& also,
                             const std::string& expected) {
      Subject subject(mesh);
      CompiledStep step = compile([&](StepCall& call) {
        Tensors results = subject.step(call);
        also(subject, call.inputs()[0]);
        return results;
      });
      step({full({3, 4}, 1)});
      const std::string error = error_of([&] { step({full({3, 4}, 2)}); });
      check(contains(error, expected), error);
    };
    refused(
        [](Subject& subject, const Tensor&) {
          subject.net->buffer("seen")->value =
              from_local(full({4}, 3), Layout::replicated(subject.plan.mesh()));
        },
        "record: buffer 'seen' has another tensor after the step than before it");
    refused(
        [](Subject& subject, const Tensor&) {
          Tensor& value = subject.weight()->value;
          value = detached(value);
          value.set_requires_grad();
        },
        "record: parameter 'first.weight' has another tensor");
  }));
  CompiledStep step = compile([](StepCall& call) -> Tensors {
    const Tensor loss = ops::sum(ops::square(call.inputs()[0]));
    backward(loss);
    return {detached(loss)};
  });
  const auto leaf = [] { return full({2}, 1).set_requires_grad(); };
  step({leaf()});
  CHECK(
      contains(error_of([&] { step({leaf()}); }), "record: input 0 has a gradient after the call"));
}

TEST_CASE("inputs that are one tensor, and inputs that are not contiguous") {
  const auto body = [](const Tensor& a, const Tensor& b) {
    ops::add_(a, b);
    return ops::mul(a, b);
  };
  CompiledStep step = compile(
      [&](StepCall& call) -> Tensors { return {body(call.inputs()[0], call.inputs()[1])}; });
  for (int call = 0; call < 9; ++call) {
    const auto inputs = [&] {
      const Tensor a = full({2, 3}, 1 + call);
      return call % 3 == 1   ? Tensors{a, a}
             : call % 3 == 2 ? Tensors{ops::transpose(full({3, 2}, 5), 0, 1), full({2, 3}, call)}
                             : Tensors{a, full({2, 3}, 2)};
    };
    const Tensors given = inputs();
    const Tensors plain = inputs();
    INFO(call);
    CHECK(to_doubles(step(given)[0]) == to_doubles(body(plain[0], plain[1])));
    CHECK(to_doubles(given[0]) == to_doubles(plain[0]));
  }
  CHECK(step.counts().captured == 2);
  CHECK(step.counts().replayed == 5);
  // Views of one memory: apart, and in common where nobody writes them.
  CompiledStep sums = compile([&](StepCall& call) -> Tensors {
    return {ops::add(call.inputs()[0], ops::mul_scalar(call.inputs()[1], 2))};
  });
  for (int call = 0; call < 5; ++call) {
    const Tensor whole = from_values<float>({1.F + static_cast<float>(call), 2, 3, 4}, {4});
    const Tensor first = ops::narrow(whole, 0, 0, 2);
    CHECK(to_doubles(sums({first, ops::narrow(whole, 0, 2, 2)})[0])[0] == 7 + call);
    CHECK(to_doubles(sums({first, ops::narrow(whole, 0, 1, 2)})[0])[0] == 5 + call);
  }
  CHECK(sums.counts().captured == 1);
  const Tensor whole = full({3, 3}, 1);
  CHECK(contains(
      error_of([&] { step({ops::narrow(whole, 0, 0, 2), ops::narrow(whole, 0, 1, 2)}); }),
      "inputs 0 and 1 are different views of one memory, and the step writes one of them"));
}

TEST_CASE("gradients are limited within an update, and models that no step calls are read") {
  REQUIRE_NOTHROW(on_ranks(2, [&](int) {
    const DeviceMesh mesh = DeviceMesh::make({"d"}, {2});
    Subject eager(mesh);
    Subject subject(mesh);
    TwoLayers average;
    nn::materialize(average);
    nn::initialize(average);
    CompiledStep step = compile([&](StepCall& call) -> Tensors {
      call.uses(average);
      const Tensor sum = subject.loss(call.inputs()[0]);
      backward(ops::mul_scalar(sum, 8));
      const Tensor norm = ops::mul_scalar(call.gradient_norm(*subject.adamw), 0.125);
      call.update(*subject.adamw, 0.05, {.max_norm = 0.5}, 0.125);
      const NoGrad no_grad;
      const Tensor slow = (*average.first).parameter("weight")->value;
      ops::copy_(slow, ops::add(ops::mul_scalar(slow, 0.5),
                                ops::mul_scalar(local_of(subject.weight()->value), 0.5)));
      return {norm, full_tensor(detached(sum))};
    });
    for (int call = 0; call < 6; ++call) {
      const Tensor x = full({3, 4}, 0.2 + 0.1 * call);
      const Tensors got = step({x});
      const Tensor sum = eager.loss(x);
      backward(ops::mul_scalar(sum, 8));
      parallel::GradientFinisher().finish(eager.adamw->parameters());
      const double norm = optim::global_gradient_norm(eager.adamw->parameters()) / 8;
      eager.adamw->step(0.05, optim::clip_factor(norm, 0.5) / 8);
      eager.adamw->zero_grad();
      check(got[0].item() == norm, "the norm");
      check(difference(subject.values(), eager.values()) < 1e-6, "the parameters");
    }
    check(step.counts().replayed == 4, to_string(step.counts()));
  }));
}

TEST_CASE("an error says what its step has written before it") {
  REQUIRE_NOTHROW(on_ranks(1, [&](int) {
    Subject subject(DeviceMesh::make({"d"}, {1}));
    CompiledStep step = compile([&](StepCall& call) {
      Tensors results = subject.step(call);
      if (call.guard("bad") == 1) {
        const NoGrad no_grad;
        ops::fill_(subject.net->buffer("seen")->value, 2);
        results[0] = ops::add(full({2}, 1), full({3}, 1));
      }
      return results;
    });
    const auto call = [&](double bad, std::int64_t columns) {
      return error_of([&] { step({full({3, columns}, 1)}, {.guards = {{"bad", bad}}}); });
    };
    for (int i = 0; i < 4; ++i) {
      check(call(0, 4) == "no error", "a good step");
    }
    const std::string late = call(1, 4);
    check(contains(late,
                   "before this error the step has written parameter 'first.weight' and 4 more"),
          late);
    const std::string early = call(0, 5);
    check(early != "no error" && !contains(early, "before this error"), early);
  }));
}
