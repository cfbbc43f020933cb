module;
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>
module tessera.conformance;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;

// Runs cases, plain or on thread ranks.
namespace tessera::conformance {
namespace {

bool differentiable(const CallSample& sample) {
  return sample.op->backward != nullptr && !sample.op->in_place &&
         std::any_of(sample.output_gradients.begin(), sample.output_gradients.end(),
                     [](const Tensor& g) { return g.defined(); });
}

/// Values that differ from element to element.
Tensor weights(const Dims& shape, DType dtype) {
  const Tensor x = empty(shape, DType::f64);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<double>()[i] = std::sin(1 + 0.7 * static_cast<double>(i));
  }
  return ops::cast(x, dtype);
}

/// Tensors that have a gradient's path, and what comes back to them.
struct Roots {
  std::vector<Tensor> tensors;
  std::vector<Tensor> gradients;
};

/// The gradients of `wanted` (undefined ones in their places).
std::vector<Tensor> differentiate(const Roots& roots, std::span<const Tensor> wanted,
                                  bool create_graph) {
  std::vector<Tensor> present;
  for (const Tensor& x : wanted) {
    if (x && x.requires_grad()) {
      present.push_back(x);
    }
  }
  const std::vector<Tensor> found =
      gradients(roots.tensors, roots.gradients, present, {.create_graph = create_graph});
  std::vector<Tensor> all(wanted.size());
  for (std::size_t i = 0, next = 0; i < wanted.size(); ++i) {
    all[i] = wanted[i] && wanted[i].requires_grad() ? found[next++] : Tensor();
  }
  return all;
}

/// `gradient(whole, x)` makes of its whole value what comes back to x; `backward_scope()` is held
/// while gradients are formed.
template <class F, class S>
CallResult call_once(const CallSample& sample, std::span<const Tensor> operands, int order,
                     F gradient, S backward_scope) {
  CallResult result;
  const bool differentiates = differentiable(sample);
  for (Tensor x : operands) {
    if (x && differentiates && is_floating(x.dtype())) {
      x.set_requires_grad();
    }
  }
  Tensors out;
  try {
    out = call(*sample.op, operands, sample.attributes);
  } catch (const Error& error) {
    result.error = error.what();
    result.refusal = true;
    return result;
  } catch (const std::exception& error) {
    result.error = error.what();
    return result;
  }
  for (const Tensor& x : out) {
    result.out.push_back(detached(x));
  }
  if (sample.op->in_place) {
    for (const Tensor& x : operands) {
      result.written.push_back(x ? detached(x) : x);
    }
  }
  if (!differentiates) {
    return result;
  }
  try {
    [[maybe_unused]] const auto scope = backward_scope();
    Roots roots;
    for (std::size_t i = 0; i < sample.output_gradients.size(); ++i) {
      if (sample.output_gradients[i] && out[i].requires_grad()) {
        roots.tensors.push_back(out[i]);
        roots.gradients.push_back(gradient(sample.output_gradients[i], out[i]));
      }
    }
    for (int i = 1; i <= order && !roots.tensors.empty(); ++i) {
      const std::vector<Tensor> found = differentiate(roots, operands, i < order);
      result.gradients.clear();
      roots = {};
      for (const Tensor& g : found) {
        result.gradients.push_back(g ? detached(g) : g);
        if (g && g.requires_grad()) {
          roots.tensors.push_back(g);
          roots.gradients.push_back(gradient(weights(g.shape(), g.dtype()), g));
        }
      }
      if (i < order) {
        result.gradients.assign(operands.size(), {});
      }
    }
  } catch (const std::exception& error) {
    result.backward_error = error.what();
    return result;
  }
  return result;
}

Tensor operand_of(const Case& one, const Tensor& whole, const Layout& layout) {
  const Tensor x = make_operand(whole, layout);
  return one.place ? make_distributed(one.place(x.local()), x.spec()) : x;
}

std::vector<Tensor> operands_of(const Case& one) {
  const CallSample& sample = *one.sample;
  std::vector<Tensor> operands;
  for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
    operands.push_back(sample.inputs[i] ? operand_of(one, sample.inputs[i], one.layouts[i])
                                        : Tensor());
  }
  return operands;
}

int no_scope() { return 0; }

CallResult call_case(const Case& one) {
  const CallSample& sample = *one.sample;
  const CommunicationReport report;
  const auto gradient = [&](const Tensor& value, const Tensor& x) {
    const Layout natural = gradient_layout(x.layout());
    const Layout whole = Layout::replicated(x.layout().mesh());
    return operand_of(one, value, one.form == GradientForm::natural ? natural : whole);
  };
  CallResult result = call_once(sample, operands_of(one), one.order, gradient, no_scope);
  if (!result.backward_error.empty()) {
    const CallResult again = call_once(sample, operands_of(one), one.order, gradient,
                                       [] { return std::make_unique<AllowRedistribution>(); });
    result.gradients = again.gradients;
    result.communicating_error = again.error + again.backward_error;
    return result;
  }
  for (const Communication& c : report.entries()) {
    // Declared reductions are not counted: dtensor holds a strategy to them.
    if (c.operation != "all_reduce" || find_op(c.where).composed == nullptr) {
      result.communicated += c.operation + " in " + c.where + "; ";
    }
  }
  return result;
}

}  // namespace

CallResult call_plain(const CallSample& sample, int order) {
  std::vector<Tensor> operands;
  for (const Tensor& x : sample.inputs) {
    const NoGrad constant;
    operands.push_back(x ? ops::clone(x) : x);
  }
  return call_plain(sample, operands, [](const Tensor& value) { return value; }, order);
}

CallResult call_plain(const CallSample& sample, std::span<const Tensor> operands,
                      const std::function<Tensor(const Tensor&)>& gradient, int order) {
  return call_once(
      sample, operands, order, [&](const Tensor& value, const Tensor&) { return gradient(value); },
      no_scope);
}

std::vector<std::vector<CallResult>> run_cases(const DeviceMesh& mesh,
                                               std::span<const Case> cases) {
  std::vector<std::vector<CallResult>> results(static_cast<std::size_t>(mesh.size()));
  collective::LaunchOptions options;
  options.timeout_seconds = 30;
  collective::run_threads(
      mesh.size(),
      [&](collective::World& world) {
        std::vector<CallResult>& mine = results[static_cast<std::size_t>(world.rank())];
        for (const Case& one : cases) {
          mine.push_back(call_case(one));
        }
      },
      options);
  return results;
}

}  // namespace tessera::conformance
