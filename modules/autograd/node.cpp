module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
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
import :pass;

namespace tessera {
namespace {

/// Memory that was allocated for a result of backward now belongs to a gradient.
void book_gradient(const Tensor& grad) {
  const Tensor& local = local_of(grad);
  local.impl()->storage->move_to(MemoryCategory::gradient);
}

/// Adds a leaf's gradients up. It keeps the leaf alive; the leaf only watches it.
class Accumulate final : public Node {
 public:
  explicit Accumulate(Tensor leaf) : Node(1), leaf_(std::move(leaf)) {
    sequence = ~std::uint64_t{0};
  }
  std::string_view name() const override { return "accumulate"; }

  void run_hooks(std::span<Tensor> grads) override {
    if (!leaf_.requires_grad()) {
      grads[0] = Tensor();  // frozen since the step that used it was recorded
      return;
    }
    for (const GradientHook& hook : grad_state(leaf_)->leaf_hooks) {
      if (grads[0]) {
        call_hook(hook, name(), grads[0]);
      }
    }
  }

  void backward(std::span<Tensor> grads, std::span<Tensor>, bool) override {
    if (!modes_installed()) [[likely]] {
      accumulate(grads[0]);
      return;
    }
    Action action{.kind = ActionKind::accumulate, .name = name(), .in = {std::move(grads[0])}};
    perform(action, [&] { accumulate(action.in[0]); });
  }

 private:
  void accumulate(Tensor& arrived) {
    Tensor& grad = leaf_.grad();
    grad = grad ? add_gradients(grad, arrived) : own_gradient(std::move(arrived));
    book_gradient(grad);
    const GradState& state = *grad_state(leaf_);
    for (const auto* hooks : {&state.post_accumulate_hooks, &state.final_accumulate_hooks}) {
      for (const auto& hook : *hooks) {
        hook(leaf_);
      }
    }
  }

  Tensor leaf_;
};

class FunctionNode final : public Node {
 public:
  FunctionNode(std::string name, std::size_t results_count, FunctionBackwardApart backward)
      : Node(results_count), name_(std::move(name)), backward_(std::move(backward)) {}
  std::string_view name() const override { return name_; }
  void backward(std::span<Tensor> grads, std::span<Tensor> out, bool) override {
    backward_apart(grads, out, std::vector<bool>(out.size(), false));
  }
  Rest backward_apart(std::span<Tensor> grads, std::span<Tensor> out,
                      const std::vector<bool>& later) override {
    if (!backward_) {
      fail({.thing = "backward",
            .wrong = fmt::format("the graph of '{}' was freed by an earlier backward", name_),
            .advice = "pass retain_graph there"});
    }
    const std::uint64_t before = versions_of(grads);
    Rest rest = backward_(grads, out, later);
    if (versions_of(grads) != before) {
      fail({.thing = "backward",
            .wrong = fmt::format(
                "'{}' wrote a gradient that it was given, which other steps may share", name_),
            .advice = "fill a new tensor"});
    }
    return rest;
  }
  void release_saved() override { backward_ = nullptr; }

 private:
  /// Changes when one of the tensors is written: versions only grow.
  static std::uint64_t versions_of(std::span<const Tensor> tensors) {
    std::uint64_t sum = 0;
    for (const Tensor& x : tensors) {
      sum += x ? local_of(x).storage().version() : 0;
    }
    return sum;
  }

  std::string name_;
  FunctionBackwardApart backward_;
};

GradState& state_of(const Tensor& x) {
  TensorImpl& impl = *x.impl();
  if (!impl.autograd) {
    impl.autograd = std::make_unique<GradState>();
  }
  return static_cast<GradState&>(*impl.autograd);
}

}  // namespace

Node::Node(std::size_t results_count) : results(results_count), sequence(++recorded_here().steps) {}

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

std::string Node::operand_name(std::size_t i) const { return fmt::format("operand {}", i); }

void Node::run_hooks(std::span<Tensor> grads) {
  for (const auto& [result, hook] : hooks) {
    Tensor& gradient = grads[static_cast<std::size_t>(result)];
    if (gradient) {
      call_hook(hook, name(), gradient);
    }
  }
}

Node::Rest Node::backward_apart(std::span<Tensor> grads, std::span<Tensor> out,
                                const std::vector<bool>&) {
  backward(grads, out, false);
  return {};
}

void Node::release_saved() {}

void Node::add_operand(const Tensor& x) {
  next.push_back(gradient_edge(x));
  operand_shapes.push_back(x ? x.shape() : Dims{});
  operand_dtypes.push_back(x ? x.dtype() : DType::f32);
  operand_specs.push_back(x ? x.spec() : SpecHandle());
}

bool GradState::is_computed() const { return node != nullptr; }

std::uint64_t next_step() { return recorded_here().steps + 1; }

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

SavedTensor::SavedTensor(Tensor x)
    : value_(std::move(x)), version_(value_ ? local_of(value_).storage().version() : 0) {}

const Tensor& SavedTensor::get_unfilled(std::string_view user) const {
  if (value_ && local_of(value_).storage().version() != version_) {
    fail({.thing = "backward",
          .wrong =
              fmt::format("a tensor that '{}' needs was changed in place after it was used ({})",
                          user, to_string(value_.shape())),
          .advice = "change a copy"});
  }
  return value_;
}

const Tensor& SavedTensor::get(std::string_view user) const {
  get_unfilled(user);
  if (value_ && !local_of(value_).storage().has_memory() && !value_.is_meta()) {
    fail({.thing = "backward",
          .wrong = fmt::format("the memory of a tensor that '{}' needs was released", user),
          .advice = "gather the parameter before its module's backward"});
  }
  return value_;
}

void record_function(std::string name, std::span<const Tensor> inputs,
                     std::span<const Tensor> outputs, FunctionBackward backward) {
  record_function_apart(
      std::move(name), inputs, outputs,
      [backward = std::move(backward)](std::span<const Tensor> grads, std::span<Tensor> out,
                                       const std::vector<bool>&) {
        backward(grads, out);
        return Node::Rest();
      });
}

void record_function_apart(std::string name, std::span<const Tensor> inputs,
                           std::span<const Tensor> outputs, FunctionBackwardApart backward) {
  const bool needed = std::any_of(inputs.begin(), inputs.end(),
                                  [](const Tensor& x) { return x && x.requires_grad(); });
  if (!needed || !grad_enabled()) {
    return;
  }
  if (CaptureScope* const capture = CaptureScope::current()) {
    capture->note(inputs);
    return;
  }
  const auto node =
      std::make_shared<FunctionNode>(std::move(name), outputs.size(), std::move(backward));
  for (const Tensor& input : inputs) {
    node->add_operand(input);
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] && is_floating(outputs[i].dtype())) {
      set_history(outputs[i], node, static_cast<int>(i));
    }
  }
}

}  // namespace tessera
