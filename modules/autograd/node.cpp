module;
#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.autograd;

import tessera.base;
import tessera.tensor;

namespace tessera {
namespace {

std::uint64_t next_sequence() {
  thread_local std::uint64_t counter = 0;
  return ++counter;
}

/// Adds a leaf's gradients up. It keeps the leaf alive; the leaf only watches it.
class Accumulate final : public Node {
 public:
  explicit Accumulate(Tensor leaf) : Node(1), leaf_(std::move(leaf)) {
    sequence = ~std::uint64_t{0};
  }
  std::string_view name() const override { return "accumulate"; }

  void backward(std::span<const Tensor> grads, std::span<Tensor>, bool create_graph) override {
    if (!grads[0]) {
      return;
    }
    GradState* const state = grad_state(leaf_);
    Tensor gradient = grads[0];
    for (const GradientHook& hook : state->leaf_hooks) {
      if (Tensor changed = hook(gradient)) {
        gradient = std::move(changed);
      }
    }
    Tensor& grad = leaf_.grad();
    if (!grad) {
      grad = create_graph ? gradient : detached(gradient);
    } else {
      grad = add_gradients(grad, gradient);
    }
    for (const auto& hook : state->post_accumulate_hooks) {
      hook(leaf_);
    }
  }

 private:
  Tensor leaf_;
};

class FunctionNode final : public Node {
 public:
  FunctionNode(std::string name, std::size_t results_count, FunctionBackward backward)
      : Node(results_count), name_(std::move(name)), backward_(std::move(backward)) {}
  std::string_view name() const override { return name_; }
  void backward(std::span<const Tensor> grads, std::span<Tensor> out, bool) override {
    if (!backward_) {
      fail(fmt::format(
          "backward: the graph of '{}' was freed by an earlier backward; pass retain_graph there",
          name_));
    }
    backward_(grads, out);
  }
  void release_saved() override { backward_ = nullptr; }

 private:
  std::string name_;
  FunctionBackward backward_;
};

GradState& state_of(const Tensor& x) {
  TensorImpl& impl = *x.impl();
  if (!impl.autograd) {
    impl.autograd = std::make_unique<GradState>();
  }
  return static_cast<GradState&>(*impl.autograd);
}

}  // namespace

Node::Node(std::size_t results_count) : results(results_count), sequence(next_sequence()) {}

Node::~Node() {
  // A long chain of steps would recurse as deep as it is long: take it apart in a loop.
  std::vector<std::shared_ptr<Node>> chain;
  for (Edge& edge : next) {
    chain.push_back(std::move(edge.node));
  }
  while (!chain.empty()) {
    const std::shared_ptr<Node> node = std::move(chain.back());
    chain.pop_back();
    if (node && node.use_count() == 1) {
      node->release_saved();
      for (Edge& edge : node->next) {
        chain.push_back(std::move(edge.node));
      }
    }
  }
}

void Node::release_saved() {}

GradState* grad_state(const Tensor& x) { return static_cast<GradState*>(x.impl()->autograd.get()); }

bool is_leaf(const Tensor& x) {
  const GradState* const state = grad_state(x);
  return state == nullptr || state->node == nullptr;
}

Node::Edge gradient_edge(const Tensor& x) {
  if (!x || !x.requires_grad()) {
    return {};
  }
  GradState& state = state_of(x);
  if (state.node) {
    return {state.node, state.result};
  }
  std::shared_ptr<Node> accumulator = state.accumulator.lock();
  if (!accumulator) {
    accumulator = std::make_shared<Accumulate>(x);
    state.accumulator = accumulator;
  }
  return {std::move(accumulator), 0};
}

void set_history(const Tensor& x, std::shared_ptr<Node> node, int result) {
  GradState& state = state_of(x);
  state.node = std::move(node);
  state.result = result;
  x.impl()->keys |= requires_grad_key;
}

void record_function(std::string name, std::span<const Tensor> inputs,
                     std::span<const Tensor> outputs, FunctionBackward backward, bool always) {
  bool needed = always;
  for (const Tensor& input : inputs) {
    needed = needed || (input && input.requires_grad());
  }
  if (!needed || !grad_enabled()) {
    return;
  }
  const auto node =
      std::make_shared<FunctionNode>(std::move(name), outputs.size(), std::move(backward));
  for (const Tensor& input : inputs) {
    node->next.push_back(gradient_edge(input));
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] && is_floating(outputs[i].dtype())) {
      set_history(outputs[i], node, static_cast<int>(i));
    }
  }
}

}  // namespace tessera
