module;
#include <functional>
#include <memory>
#include <utility>
module tessera.autograd;

import tessera.base;
import tessera.tensor;

namespace tessera {

void add_gradient_hook(const Tensor& x, GradientHook hook) {
  require(x && x.requires_grad(),
          "add_gradient_hook: the tensor does not require a gradient; set_requires_grad() first");
  const Node::Edge edge = gradient_edge(x);
  GradState& state = *grad_state(x);
  if (state.node) {
    edge.node->hooks.emplace_back(edge.result, std::move(hook));
  } else {
    state.leaf_hooks.push_back(std::move(hook));
  }
}

namespace {

GradState& state_of_leaf(const Tensor& leaf) {
  require(leaf && leaf.requires_grad() && is_leaf(leaf),
          "add_post_accumulate_hook: only a leaf that requires a gradient accumulates one");
  if (!leaf.impl()->autograd) {
    leaf.impl()->autograd = std::make_unique<GradState>();
  }
  return *grad_state(leaf);
}

}  // namespace

void add_post_accumulate_hook(const Tensor& leaf, std::function<void(Tensor& leaf)> hook) {
  state_of_leaf(leaf).post_accumulate_hooks.push_back(std::move(hook));
}

void add_final_accumulate_hook(const Tensor& leaf, std::function<void(Tensor& leaf)> hook) {
  state_of_leaf(leaf).final_accumulate_hooks.push_back(std::move(hook));
}

}  // namespace tessera
