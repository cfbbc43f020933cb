// Captured steps in which not every optimizer updates in every call, or not every parameter:
// results, parameters, state and counts of steps are those of calls that are taken as they are.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera;
import tessera.graph;
import tessera.program;
import tessera.parallel;
import tessera.passes;
import tessera.train;

#include "layouts.hpp"
#include "net.hpp"
#include "replayed_run.hpp"
#include "support.hpp"

using namespace tessera;
using namespace parallel_test;
using train_test::layout_named;
using train_test::Layouts;
using train_test::on_layout;
using train_test::replayed_layouts;

namespace {

constexpr std::int64_t rows = 8;

/// What a step of one or two models works on.
struct Parts {
  std::vector<std::unique_ptr<Planned>> models = {};
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers = {};

  void update(StepCall& call, std::size_t optimizer = 0) const {
    call.update(*optimizers[optimizer], call.number("lr" + std::to_string(optimizer)));
  }
  Tensor out(std::size_t model, StepCall& call) const {
    const Tensor& local = call.inputs()[0];
    parallel::ParallelPlan& plan = models[model]->plan;
    return (*models[model]->model)(
        from_local(local, plan.batch_layout(), Dims{local.size(0) * plan.batch_parts(), 3}));
  }
  Tensor whole(const Tensor& x) const {
    const NoGrad no_grad;
    return redistribute(x, Layout::replicated(models[0]->plan.mesh())).local();
  }
  const nn::ParameterPointer& parameter(const std::string& name) const {
    for (const nn::ParameterPointer& one : optimizers[0]->parameters()) {
      if (one->name == name) {
        return one;
      }
    }
    fail("no parameter " + name);
  }
};

/// A Net, and a layer that no step uses.
class WithUnused final : public nn::Module {
 public:
  WithUnused() : net_(add_child<Net>("net")) {
    add_child<nn::Linear>("pooler", 6, 6, true, 0.1, DType::f64);
    set_names();
  }
  std::string_view kind() const override { return "WithUnused"; }
  Tensors forward(const Tensors& inputs) override { return {(*net_)(inputs[0])}; }

 private:
  std::shared_ptr<Net> net_;
};

struct Case {
  std::function<void(Parts&, const DeviceMesh&, const Layouts&)> make;
  StepBody (*body)(Parts&);
  std::function<StepNumbers(int call)> numbers;
  std::function<void(Parts&, int call)> before = [](Parts&, int) {};
  int calls = 24;
  std::int64_t least_replayed = 4;
};

void add_model(Parts& parts, const DeviceMesh& mesh, const Layouts& layout, Device device = cpu) {
  set_seed(5);
  parts.models.push_back(
      std::make_unique<Planned>(std::make_shared<Net>(), mesh, layout.styles, device));
}

/// Losses, parameters, state and counts, after each call.
struct Seen {
  std::vector<Named> values = {};
  ReplayCounts counts = {};
};

Seen seen_of(const Case& one, const DeviceMesh& mesh, const Layouts& layout,
             const std::string& executor) {
  Parts parts;
  one.make(parts, mesh, layout);
  graph::ExecutionOptions execution;
  if (!executor.empty()) {
    execution = {.executor = executor, .passes = graph::default_passes()};
  }
  auto step = std::make_unique<CompiledStep>(one.body(parts), train_test::compiled_with(execution));
  Seen seen;
  for (int call = 0; call < one.calls; ++call) {
    if (executor.empty()) {  // never called often enough to be recorded
      step = std::make_unique<CompiledStep>(one.body(parts), CompileOptions());
    }
    one.before(parts, call);
    const Tensor tokens = distribute(net_tokens(rows, call), parts.models[0]->plan.batch_layout());
    const Tensors results = (*step)({ops::contiguous(tokens.local())}, one.numbers(call));
    Named& values = seen.values.emplace_back();
    for (std::size_t i = 0; i < results.size(); ++i) {
      values["result." + std::to_string(i)] = to_doubles(results[i]);
    }
    for (std::size_t m = 0; m < parts.models.size(); ++m) {
      for (const auto& [name, value] : values_of(*parts.models[m]->model)) {
        values[std::to_string(m) + "." + name] = value;
      }
    }
    for (std::size_t o = 0; o < parts.optimizers.size(); ++o) {
      const std::vector<std::int64_t> steps = parts.optimizers[o]->steps();
      values["steps." + std::to_string(o)] = {steps.begin(), steps.end()};
    }
  }
  seen.counts = step->counts();
  return seen;
}

void captured_as_eager(const Case& one) {
  for (const Layouts& layout : replayed_layouts()) {
    INFO(layout.name);
    REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
      const Seen eager = seen_of(one, mesh, layout, "");
      for (const char* const executor : {"planned", "interpreter"}) {
        const Seen captured = seen_of(one, mesh, layout, executor);
        for (int call = 0; call < one.calls; ++call) {
          const Named& expected = eager.values[static_cast<std::size_t>(call)];
          const Named& values = captured.values[static_cast<std::size_t>(call)];
          for (const auto& [name, value] : expected) {
            check(values.at(name) == value, std::string(executor) + ": call " +
                                                std::to_string(call) + ": " + name + ": " +
                                                to_string(captured.counts));
          }
        }
        check(captured.counts.replayed >= one.least_replayed, to_string(captured.counts));
      }
    }));
  }
}

void make_two(Parts& parts, const DeviceMesh& mesh, const Layouts& layout) {
  add_model(parts, mesh, layout);
  add_model(parts, mesh, layout);
  change_values(*parts.models[1]->model, 0.5, 0.01);
  for (const auto& model : parts.models) {
    parts.optimizers.push_back(optim::adamw(nn::all_parameters(*model->model)));
  }
}

void make_one(Parts& parts, const DeviceMesh& mesh, const Layouts& layout, Device device) {
  add_model(parts, mesh, layout, device);
  parts.optimizers.push_back(optim::adamw(nn::all_parameters(*parts.models[0]->model)));
}

void make_one_here(Parts& parts, const DeviceMesh& mesh, const Layouts& layout) {
  make_one(parts, mesh, layout, cpu);
}

Tensor loss_of(const Parts& parts, StepCall& call) {
  const Tensor loss = ops::sum(ops::square(parts.out(0, call)));
  backward(loss);
  return loss;
}

}  // namespace

TEST_CASE("an optimizer that updates in every third call only is captured") {
  captured_as_eager({.make = make_two,
                     .body = [](Parts& parts) -> StepBody {
                       return [&parts](StepCall& call) -> Tensors {
                         const Tensor x = parts.out(0, call);
                         const Tensor y = parts.out(1, call);
                         const Tensor loss = ops::sum(ops::square(ops::sub(x, y)));
                         backward(loss);
                         parts.update(call);
                         if (call.guard("turn") == 1) {
                           parts.update(call, 1);
                         }
                         return {parts.whole(loss)};
                       };
                     },
                     .numbers =
                         [](int call) {
                           return StepNumbers{.numbers = {{"lr0", 0.01 / (1 + call % 5)},
                                                          {"lr1", 0.02 / (1 + call % 7)}},
                                              .guards = {{"turn", call % 3 == 2 ? 1 : 0}}};
                         }});
}

TEST_CASE("one model with two optimizers that take turns is captured") {
  captured_as_eager({.make =
                         [](Parts& parts, const DeviceMesh& mesh, const Layouts& layout) {
                           add_model(parts, mesh, layout);
                           std::vector<nn::ParameterPointer> blocks;
                           std::vector<nn::ParameterPointer> others;
                           for (const auto& one : nn::all_parameters(*parts.models[0]->model)) {
                             (one->name.find("blocks") == 0 ? blocks : others).push_back(one);
                           }
                           parts.optimizers.push_back(optim::adamw(blocks));
                           parts.optimizers.push_back(optim::sgd(others, {.momentum = 0.9}));
                         },
                     .body = [](Parts& parts) -> StepBody {
                       return [&parts](StepCall& call) -> Tensors {
                         const Tensor loss = loss_of(parts, call);
                         parts.update(call, call.guard("turn") == 1 ? 1 : 0);
                         return {parts.whole(loss)};
                       };
                     },
                     .numbers =
                         [](int call) {
                           return StepNumbers{.numbers = {{"lr0", 0.01 / (1 + call % 5)},
                                                          {"lr1", 0.002 / (1 + call % 7)}},
                                              .guards = {{"turn", call % 3 == 2 ? 1 : 0}}};
                         }});
}

TEST_CASE("a parameter that is frozen at first, and then again, is captured") {
  captured_as_eager(
      {.make = make_one_here,
       .body = [](Parts& parts) -> StepBody {
         return [&parts](StepCall& call) -> Tensors {
           const Tensor loss = loss_of(parts, call);
           parts.update(call);
           return {parts.whole(loss)};
         };
       },
       .numbers = [](int call) { return StepNumbers{.numbers = {{"lr0", 0.01 / (1 + call % 5)}}}; },
       .before =
           [](Parts& parts, int call) {
             const bool trained = call >= 12 && call < 20;
             parts.parameter("head.weight")->value.set_requires_grad(trained);
           },
       .calls = 26,
       .least_replayed = 10});
}

TEST_CASE("a gradient that the step clears updates nothing") {
  captured_as_eager({.make = make_one_here,
                     .body = [](Parts& parts) -> StepBody {
                       return [&parts](StepCall& call) -> Tensors {
                         const Tensor loss = loss_of(parts, call);
                         if (call.guard("clears") == 1) {
                           parts.parameter("blocks.0.up.weight")->value.grad() = Tensor();
                         }
                         parts.update(call);
                         return {parts.whole(loss)};
                       };
                     },
                     .numbers =
                         [](int call) {
                           return StepNumbers{.numbers = {{"lr0", 0.01 / (1 + call % 5)}},
                                              .guards = {{"clears", call < 12 ? 1 : 0}}};
                         },
                     .least_replayed = 8});
}

TEST_CASE("a parameter that the step does not use is captured") {
  captured_as_eager(
      {.make =
           [](Parts& parts, const DeviceMesh& mesh, const Layouts& layout) {
             make_two(parts, mesh, layout);
             parts.optimizers.pop_back();
             std::vector<nn::ParameterPointer> both;
             for (const auto& model : parts.models) {
               for (const auto& one : nn::all_parameters(*model->model)) {
                 both.push_back(one);
               }
             }
             parts.optimizers[0] = optim::adamw(both);
           },
       .body = [](Parts& parts) -> StepBody {
         return [&parts](StepCall& call) -> Tensors {
           const Tensor loss = loss_of(parts, call);
           parts.update(call);
           return {parts.whole(loss)};
         };
       },
       .numbers =
           [](int call) { return StepNumbers{.numbers = {{"lr0", 0.01 / (1 + call % 5)}}}; }});
}

TEST_CASE("a gradient that is there before a call takes part in it") {
  captured_as_eager(
      {.make = make_one_here,
       .body = [](Parts& parts) -> StepBody {
         return [&parts](StepCall& call) -> Tensors {
           const Tensor loss = loss_of(parts, call);
           parts.update(call);
           return {parts.whole(loss)};
         };
       },
       .numbers = [](int call) { return StepNumbers{.numbers = {{"lr0", 0.01 / (1 + call % 5)}}}; },
       .before =
           [](Parts& parts, int call) {
             const Tensor& head = parts.parameter("head.weight")->value;
             if (call % 6 == 2) {
               const NoGrad no_grad;
               Tensor writable = head;
               writable.grad() = ops::mul_scalar(detached(head), 3);
             }
           },
       .least_replayed = 12});
}

TEST_CASE("state that a transformation removes stays as it is in a compiled step") {
  // The head is no longer updated.
  const auto freeze = [](graph::Editor& edit) {
    Program& program = edit.program();
    const TensorIndex head = program.inputs.at("parameter.head.weight").tensor;
    for (Instruction& i : program.sections.back().instructions) {
      const auto found = std::ranges::find(i.in, head);
      if (i.op == nullptr || i.op->name != "adamw_" || found == i.in.end()) {
        continue;
      }
      const std::size_t lists = i.op->counts.lists;
      const std::size_t count = i.in.size() / lists;
      const auto place = static_cast<std::size_t>(found - i.in.begin()) % count;
      for (std::size_t list = lists; list-- > 0;) {
        i.in.erase(i.in.begin() + static_cast<std::ptrdiff_t>(list * count + place));
      }
    }
    edit.remove_input("optimizer.exp_avg.head.weight");
    edit.remove_input("optimizer.exp_avg_sq.head.weight");
  };
  const Layouts layout = layout_named("one rank");
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    const Tensor tokens = net_tokens(rows, 1);
    const StepNumbers numbers{.numbers = {{"lr0", 0.01}}};
    std::vector<std::shared_ptr<Parts>> made;
    const auto make = [&](Device device) -> StepBody {
      const auto parts = std::make_shared<Parts>();
      made.push_back(parts);
      make_one(*parts, mesh, layout, device);
      return [parts](StepCall& call) -> Tensors {
        const Tensor loss = loss_of(*parts, call);
        parts->update(call);
        return {parts->whole(loss)};
      };
    };
    CompiledStep step = compile(make, {.changes = {{.name = "F", .run = freeze}}});
    const Parts& parts = *made.front();
    const Named before = values_of(*parts.models[0]->model);
    for (int i = 0; i < 3; ++i) {
      step({tokens}, numbers);
    }
    const Named after = values_of(*parts.models[0]->model);
    check(after.at("head.weight") == before.at("head.weight"), "the head stays as it is");
    check(after.at("embed.weight") != before.at("embed.weight"), "all else is trained");
    const std::vector<std::int64_t> steps = parts.optimizers[0]->steps();
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const bool is_head = parts.optimizers[0]->parameters()[i]->name == "head.weight";
      check(steps[i] == (is_head ? 0 : 3), "steps are counted of what is updated");
    }
  }));
}

TEST_CASE("a training replays steps that do not use a trained parameter") {
  for (const char* const name : {"one rank", "fully sharded", "replicated"}) {
    Layouts layout = layout_named(name);
    for (parallel::StyleEntry& style : layout.styles) {  // FSDP reduces a group as a whole
      style.on = style.style == "Replicate" ? style.on : std::vector<std::string>{"pooler", "."};
    }
    INFO(name);
    REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
      const auto taken = [&](bool replays) {
        set_seed(3);
        auto net = std::make_unique<Planned>(std::make_shared<WithUnused>(), mesh, layout.styles);
        auto training = std::make_unique<Training>(*net->model, net->plan,
                                                   optim::adamw(nn::all_parameters(*net->model)),
                                                   optim::Schedule{.lr = 0.01});
        training->captured().set_enabled(replays);
        std::vector<double> seen;
        for (int step = 0; step < 6; ++step) {
          const StepFunctions functions{
              .rows =
                  [&](const BatchPart& part) {
                    return Tensors{ops::contiguous(
                        ops::narrow(net_tokens(rows, step), 0, part.first, part.rows))};
                  },
              .loss_sum =
                  [&](const Tensors& given) {
                    const Tensor tokens =
                        from_local(given[0], net->plan.batch_layout(), Dims{rows, 3});
                    return ops::sum(ops::square((*net->model)(tokens)));
                  }};
          seen.push_back(training->step({.rows = rows, .weight = 24}, functions).loss);
        }
        for (const std::int64_t steps : training->optimizer().steps()) {
          seen.push_back(static_cast<double>(steps));
        }
        check(training->captured().counts().replayed == (replays ? 4 : 0), "replayed");
        for (const auto& [parameter, values] : values_of(*net->model)) {
          seen.insert(seen.end(), values.begin(), values.end());
        }
        return seen;
      };
      check(taken(true) == taken(false), "the same losses, counts and parameters");
    }));
  }
}

TEST_CASE("changes of modules between calls get programs of their own, and are named") {
  // Dropout by the training mode, and a hook that is there in some calls.
  const Layouts layout = layout_named("fully sharded");
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    const auto taken = [&](bool captured) {
      Parts parts;
      set_seed(5);
      parts.models.push_back(std::make_unique<Planned>(
          std::make_shared<Net>(NetOptions{.dropout = 0.3}), mesh, layout.styles));
      parts.optimizers.push_back(optim::adamw(nn::all_parameters(*parts.models[0]->model)));
      const StepBody body = [&parts](StepCall& call) -> Tensors {
        const Tensor loss = loss_of(parts, call);
        parts.update(call);
        return {parts.whole(loss)};
      };
      auto step = std::make_unique<CompiledStep>(body, CompileOptions());
      nn::Module& model = *parts.models[0]->model;
      nn::HookHandle hook;
      std::vector<double> losses;
      for (int call = 0; call < 18; ++call) {
        model.train(call < 12);
        if (call == 6) {
          hook = block_of(model, 1).add_hook(
              [](nn::Module&, const Tensors&, Tensors& out) { out[0] = ops::tanh(out[0]); });
        } else if (call == 9) {
          hook.remove();
        }
        if (!captured) {
          step = std::make_unique<CompiledStep>(body, CompileOptions());
        }
        const Tensor tokens =
            distribute(net_tokens(rows, call), parts.models[0]->plan.batch_layout());
        losses.push_back(
            (*step)({ops::contiguous(tokens.local())}, {.numbers = {{"lr0", 0.01}}})[0].item());
      }
      if (captured) {
        const ReplayCounts& counts = step->counts();
        check(counts.captured == 3 && counts.replayed == 4 + 1 + 3 + 4, to_string(counts));
        check(counts.reasons.contains("module '' has another training mode than when the step was "
                                      "recorded"),
              to_string(counts));
        check(counts.reasons.contains(
                  "module 'blocks.1' has other hooks than when the step was recorded"),
              to_string(counts));
      }
      return losses;
    };
    check(taken(true) == taken(false), "the same losses");
  }));
}
