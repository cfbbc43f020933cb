// Modules that captured steps have others of: the numbers of a model that is written with them, in
// every layout; what becomes of state that they do not use; and what is refused.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"

import tessera;
import tessera.device;
import tessera.graph;
import tessera.parallel;
import tessera.passes;
import tessera.program;
import tessera.tensor;
import tessera.train;

#include "layouts.hpp"
#include "net.hpp"
#include "support.hpp"

using namespace tessera;
using namespace parallel_test;
using train_test::Folder;
using train_test::layout_named;
using train_test::layouts;
using train_test::on_layout;

namespace {

constexpr std::int64_t width = 4;

void like_first(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

const Op& block = graph::register_anchor(
    {.schema = "test_scaled(x, w)", .infer = like_first, .about = "Marks a scaling."});

/// x * weight + shift, or without the shift, or with an anchor for the product.
enum class Form { shifted, scaled, anchored };

class Scale final : public nn::Module {
 public:
  explicit Scale(Form form) : form_(form) {
    const nn::Initialization normal{nn::Initialization::Kind::normal, 0.5};
    add_parameter("weight", std::make_shared<nn::Parameter>(Dims{width}, DType::f64, normal));
    if (form == Form::shifted) {
      add_parameter("shift", std::make_shared<nn::Parameter>(
                                 Dims{width}, DType::f64,
                                 nn::Initialization{nn::Initialization::Kind::zeros}));
    }
  }
  std::string_view kind() const override { return "Scale"; }
  Tensors forward(const Tensors& inputs) override {
    const Tensor& x = input(inputs, 0);
    const Tensor weight = parameter("weight")->use();
    if (form_ == Form::anchored) {
      const Layout rows = x.layout();
      Layout terms = weight.layout();
      for (int axis = 0; axis < rows.ndim(); ++axis) {
        terms = rows.placement(axis).is_shard() ? terms.with_placement(axis, Partial()) : terms;
      }
      LocalMapOptions options;
      options.in = {rows, weight.layout()};
      options.in_gradients = {rows, terms};
      options.out = {rows};
      options.out_shapes = {x.shape()};
      const Tensors in = {x, weight};
      return local_map([](std::span<const Tensor> all) { return tessera::call(block, all, {}); },
                       in, options);
    }
    const Tensor scaled = ops::mul(x, weight);
    return {form_ == Form::shifted ? ops::add(scaled, parameter("shift")->use()) : scaled};
  }

 private:
  Form form_;
};

class Model final : public nn::Module {
 public:
  explicit Model(Form form)
      : first_(add_child<Scale>("first", form)), second_(add_child<Scale>("second", form)) {}
  std::string_view kind() const override { return "Model"; }
  Tensors forward(const Tensors& inputs) override {
    return {(*second_)(ops::tanh((*first_)(input(inputs, 0))))};
  }

 private:
  nn::Child first_, second_;
};

/// Puts the products in the place of the anchors; the gradient of the weight is a sum of rows.
void put_products(graph::Editor& edit) {
  while (const auto place = edit.find("test_scaled")) {
    edit.replace(*place, [&](const std::vector<TensorIndex>& in) {
      return std::vector<TensorIndex>{edit.value("mul", in)};
    });
  }
  while (const auto place = edit.find("test_scaled_backward")) {
    edit.replace(*place, [&](const std::vector<TensorIndex>& in) {
      const TensorIndex terms = edit.value("mul", {in[2], in[0]});
      return std::vector<TensorIndex>{edit.value("mul", {in[2], in[1]}),
                                      edit.value("sum", {terms}, "dims=[0], keepdim=false")};
    });
  }
}

graph::Change replaced_by(Form form) {
  return {
      .name = "Test",
      .run = form == Form::anchored ? put_products : std::function<void(graph::Editor&)>(),
      .replacement = [form](const std::string& name, const std::shared_ptr<nn::Module>& module) {
        return module->kind() == "Scale" && name != "third" ? std::make_shared<Scale>(form)
                                                            : std::shared_ptr<nn::Module>();
      }};
}

constexpr std::int64_t rows = 8;

struct Run {
  /// `on`: the meta device, or the CPU.
  Run(Form form, const DeviceMesh& mesh, std::vector<parallel::StyleEntry> styles, Device on = cpu,
      const graph::Change* replaced = nullptr)
      : device(on), model(std::make_shared<Model>(form)) {
    for (parallel::StyleEntry& style : styles) {
      style.on = {"."};
    }
    model->set_names();
    if (replaced != nullptr) {
      names = replace_modules(*model, *replaced);
    }
    plan = std::make_unique<parallel::ParallelPlan>(*model, mesh, styles, plugin::host());
    if (device == cpu) {
      plan->materialize();
      nn::initialize(*model);
      plan->initialized();
    }
    training = std::make_unique<Training>(*model, *plan, optim::adamw(nn::all_parameters(*model)),
                                          optim::Schedule{.lr = 0.05}, 1.0);
  }

  StepResult step() {
    return training->step(
        {.rows = rows, .weight = rows},
        StepFunctions{
            .rows =
                [&](const BatchPart& part) {
                  Tensor x = empty({part.rows, width}, DType::f64, device);
                  for (std::int64_t i = 0; device == cpu && i < x.numel(); ++i) {
                    x.data<double>()[i] =
                        static_cast<double>((part.step * 31 + part.first * width + i) % 17) / 8.5 -
                        1;
                  }
                  return Tensors{x};
                },
            .loss_sum =
                [&](const Tensors& local) {
                  const Tensor x = from_local(local[0], plan->batch_layout(), Dims{rows, width});
                  return ops::sum(ops::square(ops::sub((*model)(x), ops::neg(x))));
                }});
  }

  Device device;
  std::vector<std::string> names;
  std::shared_ptr<nn::Module> model;
  std::unique_ptr<parallel::ParallelPlan> plan;
  std::unique_ptr<Training> training;
};

/// What the host reads is 1 on the meta device.
class ReadsOne final : public Mode {
 public:
  void perform(Action& action, NextAction& next) override {
    if (action.kind == ActionKind::read) {
      action.values.assign(static_cast<std::size_t>(action.in[0].numel()), 1);
    } else {
      next(action);
    }
  }
};

/// The program of a step in which modules are replaced.
Program captured(const graph::Change& change, const DeviceMesh& mesh,
                 const std::vector<parallel::StyleEntry>& styles) {
  Run run(Form::shifted, mesh, styles, meta, &change);
  check(run.names == std::vector<std::string>{"first", "second"}, "both are replaced");
  ReadsOne reads;
  const ModeScope scope(ModeLevel::below_distribution, reads);
  const PlannedMemoryScope planned;
  run.training->captured().set_enabled(true, {.executor = "interpreter", .keeps_anchors = true});
  while (run.training->captured().program() == nullptr) {
    run.step();
  }
  return *run.training->captured().program();
}

void same(const StepResult& a, const StepResult& b, const std::string& when) {
  check(a.loss == b.loss && a.grad_norm == b.grad_norm,
        when + ": loss " + std::to_string(a.loss) + " instead of " + std::to_string(b.loss));
}

std::vector<double> values(const Run& run, const std::string& name) {
  return to_doubles(run.training->checkpoints().state().tensors.at(name).local());
}

}  // namespace

TEST_CASE("replaced modules train as a model that is written with them, in every layout") {
  for (const train_test::Layouts& layout : layouts()) {
    for (const Form form : {Form::scaled, Form::anchored}) {
      INFO(layout.name << (form == Form::anchored ? ", anchored" : ""));
      const graph::Change replaced = replaced_by(form);
      const graph::ExecutionOptions execution = {.passes = graph::default_passes(),
                                                 .transforms = {replaced}};
      const Folder folder;
      REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
        const Program program = captured(replaced, mesh, layout.styles);
        const auto begun = [&] {
          set_seed(5);
          auto run = std::make_unique<Run>(Form::shifted, mesh, layout.styles);
          run->training->captured().set_enabled(true, execution);
          return run;
        };
        set_seed(5);
        Run written(Form::scaled, mesh, layout.styles);
        const auto run = begun();
        run->training->optimizer().prepare_state();
        run->training->captured().check_inputs(program);
        run->training->captured().set_program(program);
        compare_programs(collective::World::current(), run->training->captured().program());
        for (int i = 0; i < 4; ++i) {
          same(run->step(), written.step(), "step " + std::to_string(i + 1));
        }
        check(run->training->captured().counts().replayed == 4, "every step is replayed");
        for (const char* name :
             {"model.first.weight", "model.second.weight", "optimizer.exp_avg_sq.first.weight"}) {
          check(values(*run, name) == values(written, name), name);
        }
        // What is not used stays as it was, and is saved.
        for (const char* name : {"model.first.shift", "optimizer.exp_avg.second.shift"}) {
          const std::vector<double> all = values(*run, name);
          check(std::ranges::all_of(all, [](double x) { return x == 0; }), name);
        }
        run->training->checkpoints().save(folder / "run/four");
        const auto other = begun();
        other->training->checkpoints().load(folder / "run/four");
        other->training->captured().set_program(program);
        for (int i = 4; i < 6; ++i) {
          same(other->step(), written.step(), "resumed, step " + std::to_string(i + 1));
        }
      }));
    }
  }
}

TEST_CASE("state that a transformation removes stays with the training") {
  const train_test::Layouts layout = layout_named("one rank");
  // The second shift is no longer updated, and its state is no input of the step.
  const auto freeze = [](graph::Editor& edit) {
    Program& program = edit.program();
    const TensorIndex shift = program.inputs.at("parameter.second.shift").tensor;
    for (Instruction& i : program.sections.back().instructions) {
      if (i.op == nullptr || !i.op->in_place) {
        continue;
      }
      const auto found = std::ranges::find(i.in, shift);
      const std::size_t lists = i.op->counts.lists;
      if (found == i.in.end() || lists == 0) {
        continue;
      }
      const std::size_t count = i.in.size() / lists;
      const auto place = static_cast<std::size_t>(found - i.in.begin()) % count;
      for (std::size_t list = lists; list-- > 0;) {
        i.in.erase(i.in.begin() + static_cast<std::ptrdiff_t>(list * count + place));
      }
    }
    for (const char* name :
         {"optimizer.exp_avg.second.shift", "optimizer.exp_avg_sq.second.shift"}) {
      edit.remove_input(name);
    }
  };
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    Run early(Form::shifted, mesh, layout.styles);
    early.training->captured().set_enabled(true);
    while (early.training->captured().program() == nullptr) {
      early.step();
    }
    Run run(Form::shifted, mesh, layout.styles);
    run.training->captured().set_enabled(true, {.transforms = {{.name = "Freeze", .run = freeze}}});
    run.training->captured().set_program(*early.training->captured().program());
    for (int i = 0; i < 3; ++i) {
      run.step();
    }
    const auto zero = [&](const char* name) {
      const std::vector<double> all = values(run, name);
      return std::ranges::all_of(all, [](double x) { return x == 0; });
    };
    check(!zero("model.first.shift"), "the first shift is trained");
    check(zero("model.second.shift"), "the second one is not");
    check(zero("optimizer.exp_avg.second.shift"), "and its state stays");
  }));
}

TEST_CASE("what replaces modules must fit the model as it is written") {
  const train_test::Layouts layout = layout_named("one rank");
  on_layout(layout, [&](const DeviceMesh& mesh) {
    // A model without the shift is captured with it.
    graph::Change shifted = replaced_by(Form::shifted);
    const Program program = captured(shifted, mesh, layout.styles);
    Run run(Form::scaled, mesh, layout.styles);
    run.training->optimizer().prepare_state();
    const std::string error = error_of([&] { run.training->captured().check_inputs(program); });
    check(
        error.find("input 'optimizer.exp_avg.first.shift': the model as it is written has none of "
                   "this name (got f64[4]); give what replaces a module parameters of the same") !=
            std::string::npos,
        error);
    graph::Change none = shifted;
    none.replacement = [](const std::string&, const std::shared_ptr<nn::Module>&) {
      return std::shared_ptr<nn::Module>();
    };
    Model model(Form::scaled);
    check(error_of([&] { replace_modules(model, none); }) ==
              "change 'Test': it replaces no module of this model; use it with a model that has "
              "what it replaces",
          "a change that replaces nothing");
    // What puts calls there is missing, so an anchor is left.
    graph::Change anchored = replaced_by(Form::anchored);
    anchored.run = {};
    Run left(Form::shifted, mesh, layout.styles);
    left.training->captured().set_enabled(true, {.transforms = {anchored}});
    const std::string anchor = error_of(
        [&] { left.training->captured().set_program(captured(anchored, mesh, layout.styles)); });
    check(anchor.find(
              "anchor 'test_scaled': nothing was put in its place in section 'gradients'") == 0 &&
              anchor.find("@ forward in first") != std::string::npos,
          anchor);
  });
}
