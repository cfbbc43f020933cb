module;
#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>
module tessera.autograd;

import tessera.base;
import tessera.tensor;
import :pass;

namespace tessera {

void check_operand_gradient(const Node& node, std::size_t i, const Tensor& gradient) {
  const GradientTarget target{node.operand_shapes[i], node.operand_dtypes[i],
                              node.operand_specs[i]};
  if (!fits(target, gradient)) [[unlikely]] {
    refuse_gradient(fmt::format("the gradient of {} of '{}'", node.operand_name(i), node.name()),
                    target, gradient, "correct the backward function that computes it");
  }
}

void DeferredGradients::call(const std::shared_ptr<Node>& node, std::span<Tensor> grads,
                             std::span<Tensor> out, std::vector<bool> later) {
  Step step{.node = node, .later = std::move(later), .computed = {}, .rest = {}};
  step.rest = node->backward_apart(grads, out, step.later);
  step.computed.resize(out.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (step.later[i]) {
      step.computed[i] = std::move(out[i]);
    }
  }
  if (!step.rest) {
    node->release_saved();
  }
  steps_.push_back(std::move(step));
}

void DeferredGradients::skip(const std::shared_ptr<Node>& node, std::vector<bool> later) {
  Step step{.node = node, .later = std::move(later), .computed = {}, .rest = {}};
  step.computed.resize(node->next.size());
  node->release_saved();
  steps_.push_back(std::move(step));
}

void DeferredGradients::compute(
    const std::function<void(const Node::Edge& edge, Tensor gradient)>& deliver,
    const std::function<void()>& passed) {
  for (Step& kept : steps_) {
    Step step = std::move(kept);
    Node& node = *step.node;
    const ModuleScope scope(node.module);
    try {
      if (step.rest) {
        const PermissionScope permissions(node.permissions);
        step.rest(step.computed);
        step.rest = {};
        node.release_saved();
      }
      for (std::size_t i = 0; i < step.later.size(); ++i) {
        if (step.later[i]) {
          if (step.computed[i]) {
            check_operand_gradient(node, i, step.computed[i]);
          }
          deliver(node.next[i], std::move(step.computed[i]));
        }
      }
      passed();
    } catch (const Error& error) {
      rethrow_in_module(error, node.module, true);
    }
  }
  steps_.clear();
}

}  // namespace tessera
