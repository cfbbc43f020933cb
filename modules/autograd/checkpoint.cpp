module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>
module tessera.autograd;

import tessera.base;
import tessera.tensor;
import :pass;

namespace tessera {
namespace {

/// The first call's tensors, and what the function needs to compute the same again.
struct Recomputation {
  CheckpointedFunction function;
  RandomPosition random;  // before the first call
  std::vector<SavedTensor> inputs;
  std::vector<bool> needed;           // whether the input's gradient is
  std::vector<SavedTensor> captured;  // tensors from outside that need a gradient
};

/// Calls the function again and differentiates that. `results`: of the inputs, then of what was
/// captured. Those that `later` marks are left to what is returned.
Node::Rest compute_again(const Recomputation& r, std::span<const Tensor> grads,
                         std::span<Tensor> results, const std::vector<bool>& later) {
  if (grad_enabled()) {
    fail({.thing = "checkpoint",
          .wrong = "its gradient cannot be differentiated again, as backward ends at the inputs "
                   "(requested by create_graph)",
          .advice = "call the function without checkpoint()"});
  }
  std::vector<Tensor> inputs;
  std::vector<Node::Edge> ends;
  const std::uint64_t first = next_step();
  for (std::size_t i = 0; i < r.inputs.size(); ++i) {
    const Tensor& saved = r.inputs[i].get_unfilled("checkpoint");
    inputs.push_back(saved ? detached(saved) : Tensor());
    if (r.needed[i]) {
      inputs.back().set_requires_grad();
    }
    ends.push_back(gradient_edge(inputs.back()));
  }
  for (const SavedTensor& captured : r.captured) {
    ends.push_back(gradient_edge(captured.get_unfilled("checkpoint")));
  }
  Tensors computed;
  {
    const NoGrad recording(true);
    const ReplayScope replay(r.random);
    run_phase("recomputation", [&] { computed = r.function(inputs); });
  }
  for (const SavedTensor& captured : r.captured) {
    captured.get_unfilled("checkpoint");  // a parameter may have been gathered again: other values
  }
  if (computed.size() != grads.size()) {
    fail({.thing = "checkpoint",
          .wrong =
              "the function returns another number of tensors when it is called again for backward",
          .expected = fmt::format("{}", grads.size()),
          .got = fmt::format("{}", computed.size())});
  }
  std::vector<Tensor> roots;
  std::vector<Tensor> root_grads;
  for (std::size_t i = 0; i < computed.size(); ++i) {
    if (grads[i] && computed[i] && computed[i].requires_grad()) {
      roots.push_back(computed[i]);
      root_grads.push_back(grads[i]);
    }
  }
  std::vector<Tensor> gradients;
  Node::Rest rest;
  if (std::ranges::find(later, true) == later.end()) {
    gradients = gradients_between(roots, root_grads, ends, first, "checkpoint");
  } else {
    rest = gradients_between_apart(roots, root_grads, ends, first, "checkpoint", later, gradients);
  }
  std::move(gradients.begin(), gradients.end(), results.begin());
  return rest;
}

}  // namespace

Tensors checkpoint(const CheckpointedFunction& function, std::span<const Tensor> inputs) {
  if (!grad_enabled() || CaptureScope::current() != nullptr) {
    return function(inputs);
  }
  auto r = std::make_shared<Recomputation>(Recomputation{function, random_position(), {}, {}, {}});
  std::vector<Tensor> plain;
  std::vector<Tensor> used(inputs.begin(), inputs.end());
  for (const Tensor& input : inputs) {
    plain.push_back(input ? detached(input) : Tensor());
    r->inputs.emplace_back(plain.back());
    r->needed.push_back(input && input.requires_grad());
  }
  Tensors out;
  {
    CaptureScope capture;
    out = function(plain);
    capture.note(out);  // a captured tensor may be returned as it is
    for (const Tensor& x : capture.captured()) {
      r->captured.emplace_back(x);
      used.push_back(x);
    }
  }
  for (Tensor& result : out) {
    if (result) {
      result = detached(result);
    }
  }
  record_function_apart(
      "checkpoint", used, out,
      [r](std::span<const Tensor> grads, std::span<Tensor> results,
          const std::vector<bool>& later) { return compute_again(*r, grads, results, later); });
  return out;
}

}  // namespace tessera
