// Runs cases, plain or on thread ranks.
#include <algorithm>
#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <vector>

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;

#include "conformance.hpp"

namespace tessera::testing {
namespace {

bool differentiable(const CallSample& sample) {
  return sample.op->backward != nullptr && !sample.op->in_place &&
         std::any_of(sample.output_gradients.begin(), sample.output_gradients.end(),
                     [](const Tensor& g) { return g.defined(); });
}

/// `gradient(i)` makes the gradient that comes to result i.
template <class F>
CallResult call_once(const CallSample& sample, std::span<const Tensor> operands, F gradient) {
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
    std::vector<Tensor> roots;
    std::vector<Tensor> gradients;
    for (std::size_t i = 0; i < sample.output_gradients.size(); ++i) {
      if (sample.output_gradients[i] && out[i].requires_grad()) {
        roots.push_back(out[i]);
        gradients.push_back(gradient(i, out[i]));
      }
    }
    if (!roots.empty()) {
      backward(roots, gradients);
    }
  } catch (const std::exception& error) {
    result.backward_error = error.what();
    return result;
  }
  for (const Tensor& x : operands) {
    result.gradients.push_back(x && x.grad() ? detached(x.grad()) : Tensor());
  }
  return result;
}

CallResult call_case(const Case& one) {
  const CallSample& sample = *one.sample;
  std::vector<Tensor> operands;
  for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
    operands.push_back(sample.inputs[i] ? make_operand(sample.inputs[i], one.layouts[i])
                                        : Tensor());
  }
  const CommunicationReport report;
  CallResult result = call_once(sample, operands, [&](std::size_t i, const Tensor& out) {
    const Layout natural = gradient_layout(out.layout());
    const Layout whole = Layout::replicated(out.layout().mesh());
    return make_operand(sample.output_gradients[i],
                        one.form == GradientForm::natural ? natural : whole);
  });
  for (const Communication& c : report.entries()) {
    // What a strategy declares, dtensor holds it to.
    if (c.operation != "all_reduce" || find_op(c.where).composed == nullptr) {
      result.communicated += c.operation + " in " + c.where + "; ";
    }
  }
  return result;
}

}  // namespace

CallResult call_plain(const CallSample& sample) {
  std::vector<Tensor> operands;
  for (const Tensor& x : sample.inputs) {
    const NoGrad constant;
    operands.push_back(x ? ops::clone(x) : x);
  }
  return call_once(sample, operands,
                   [&](std::size_t i, const Tensor&) { return sample.output_gradients[i]; });
}

std::vector<std::vector<CallResult>> run_cases(const DeviceMesh& mesh,
                                               std::span<const Case> cases) {
  std::vector<std::vector<CallResult>> results(static_cast<std::size_t>(mesh.size()));
  collective::LaunchOptions options;
  options.timeout_seconds = 30;
  collective::run_threads(
      mesh.size(),
      [&](collective::World& world) {
        set_current_rank(world.rank());
        std::vector<CallResult>& mine = results[static_cast<std::size_t>(world.rank())];
        for (const Case& one : cases) {
          mine.push_back(call_case(one));
        }
      },
      options);
  return results;
}

}  // namespace tessera::testing
