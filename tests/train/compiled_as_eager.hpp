// Calls of a compiled step against the same calls that are taken as they are. Include it after
// `import tessera`.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "layouts.hpp"
#include "net.hpp"
#include "support.hpp"

namespace features {

using namespace tessera;
using namespace parallel_test;
using train_test::layout_named;
using train_test::Layouts;
using train_test::on_layout;

inline constexpr std::int64_t rows = 8;
inline constexpr int calls = 9;

/// A Net with a running statistic and a slow copy of its head.
class Observed final : public nn::Module {
 public:
  explicit Observed(const NetOptions& options) : net_(add_child<Net>("net", options)) {
    for (const char* name : {"mean", "var"}) {
      add_buffer(name, std::make_shared<nn::Buffer>(
                           full({Net::vocabulary}, name[0] == 'v' ? 1 : 0, DType::f64)));
    }
    add_buffer("slow", std::make_shared<nn::Buffer>(full({Net::vocabulary, 6}, 0, DType::f64)));
    set_names();
  }
  std::string_view kind() const override { return "Observed"; }
  Tensors forward(const Tensors& inputs) override { return {(*net_)(inputs[0])}; }

 private:
  nn::Child net_;
};

/// One model with its optimizer, which a step trains.
struct Subject {
  Subject(const DeviceMesh& mesh, const Layouts& layout, const NetOptions& options, Device on)
      : device(on),
        net{std::make_shared<Observed>(options), mesh, styles_of(layout), on},
        adamw(optim::adamw(nn::all_parameters(*net.model))) {}

  struct Placed {
    Placed(std::shared_ptr<nn::Module> placed, const DeviceMesh& mesh,
           const std::vector<parallel::StyleEntry>& styles, Device on)
        : model(std::move(placed)), plan(*model, mesh, styles, shipped_styles()) {
      set_seed(5);
      plan.materialize(on);
      nn::initialize(*model);
    }
    std::shared_ptr<nn::Module> model;
    parallel::ParallelPlan plan;
  };

  /// The styles' patterns, below the child.
  static std::vector<parallel::StyleEntry> styles_of(const Layouts& layout) {
    std::vector<parallel::StyleEntry> styles = layout.styles;
    for (parallel::StyleEntry& style : styles) {
      for (std::string& on : style.on) {
        on = on == "." ? on : "net." + on;
      }
    }
    return styles;
  }
  void update(StepCall& call) const { call.update(*adamw, call.number("lr")); }
  nn::Module& model() { return *net.model; }
  nn::Module& child(const std::string& name) {
    for (nn::Module* const module : nn::all_modules(*net.model)) {
      if (module->name() == name) {
        return *module;
      }
    }
    fail("no module " + name);
  }
  Tensor tokens(const StepCall& call) const {
    const Tensor& x = call.inputs()[0];
    return from_local(x, net.plan.batch_layout(), Dims{x.size(0) * net.plan.batch_parts(), 3});
  }
  Tensor out(const StepCall& call) { return (*net.model)(tokens(call)); }
  Tensor whole(const Tensor& x) const {
    const NoGrad no_grad;
    return redistribute(x, Layout::replicated(net.plan.mesh())).local();
  }
  const nn::ParameterPointer& parameter(const std::string& name) const {
    for (const nn::ParameterPointer& parameter : adamw->parameters()) {
      if (parameter->name == name) {
        return parameter;
      }
    }
    fail("no parameter " + name + "; the first is " + adamw->parameters()[0]->name);
  }
  Named everything() {
    Named all = values_of(*net.model);
    for (const nn::BufferPointer& buffer : nn::all_buffers(*net.model)) {
      const Tensor& x = buffer->value;
      all["buffer." + buffer->name] = to_doubles(local_of(x));
    }
    for (const auto& [name, x] : adamw->state().tensors) {
      all["state." + name] = to_doubles(local_of(x));
    }
    for (const auto& [name, stream] : random_state()) {
      all["stream." + name] = {static_cast<double>(stream.offset)};
    }
    return all;
  }

  Device device;
  Placed net;
  std::unique_ptr<optim::Optimizer> adamw;
};

using Prepare = std::function<void(Subject&)>;
using SubjectStep = std::function<Tensors(Subject&, StepCall&)>;

inline Tensor rows_of(const Subject& subject, int call) {
  const Tensor tokens = distribute(net_tokens(rows, call), subject.net.plan.batch_layout());
  return ops::to_device(ops::contiguous(tokens.local()), subject.device);
}

struct Outcome {
  std::vector<std::vector<double>> results = {};
  Named state = {};
  ReplayCounts counts = {};
};

inline Outcome outcome_of(const DeviceMesh& mesh, const Layouts& layout, const NetOptions& options,
                          const Prepare& prepare, const SubjectStep& body,
                          const std::string& executor, Device device) {
  Subject subject(mesh, layout, options, device);
  prepare(subject);
  const StepBody one = [&](StepCall& call) { return body(subject, call); };
  graph::ExecutionOptions execution;
  if (!executor.empty()) {
    execution = {.executor = executor, .passes = graph::default_passes()};
  }
  auto step = std::make_unique<CompiledStep>(one, train_test::compiled_with(execution));
  Outcome outcome;
  for (int call = 0; call < calls; ++call) {
    if (executor.empty()) {  // never called often enough to be recorded
      step = std::make_unique<CompiledStep>(one, CompileOptions());
    }
    const Tensors results =
        (*step)({rows_of(subject, call)}, {.numbers = {{"lr", 0.01 / (1 + call % 3)}}});
    for (const Tensor& x : results) {
      outcome.results.push_back(to_doubles(local_of(x)));
    }
  }
  outcome.state = subject.everything();
  outcome.counts = step->counts();
  return outcome;
}

inline void captured_as_eager(
    const SubjectStep& body, const Prepare& prepare = [](Subject&) {},
    const NetOptions& options = {},
    const std::vector<std::string>& names = {"one rank", "fully sharded", "replicated", "hybrid"},
    const std::function<Device()>& device_of = [] { return cpu; }) {
  for (const std::string& name : names) {
    const Layouts layout = layout_named(name);
    INFO(name);
    REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
      const Outcome eager = outcome_of(mesh, layout, options, prepare, body, "", device_of());
      for (const std::string& executor : graph::executor_names()) {
        const Outcome captured =
            outcome_of(mesh, layout, options, prepare, body, executor, device_of());
        check(captured.counts.replayed == calls - 2, executor + ": " + to_string(captured.counts));
        check(captured.results == eager.results, executor + ": the results");
        check(captured.state.size() == eager.state.size(), executor + ": names");
        for (const auto& [one, values] : eager.state) {
          check(captured.state.at(one) == values, executor + ": " + one);
        }
      }
    }));
  }
}

}  // namespace features
