module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>
module tessera.autograd;

import tessera.base;
import tessera.tensor;

namespace tessera {
namespace {

struct PassState {
  int depth = 0;
  std::vector<std::function<void()>> final_callbacks;
};

PassState& pass_state() {
  thread_local PassState state;
  return state;
}

/// Counts the nested passes of this thread; a pass that throws drops the callbacks that wait for
/// its end.
class PassScope {
 public:
  PassScope() { ++pass_state().depth; }
  ~PassScope() {
    if (--pass_state().depth == 0) {
      pass_state().final_callbacks.clear();
    }
  }
  PassScope(const PassScope&) = delete;
  PassScope& operator=(const PassScope&) = delete;
  static void finish() {
    PassState& state = pass_state();
    if (state.depth != 1) {
      return;
    }
    for (std::size_t i = 0; i < state.final_callbacks.size();
         ++i) {  // a callback may queue another
      const auto callback = std::move(state.final_callbacks[i]);
      callback();
    }
    state.final_callbacks.clear();
  }
};

bool only_here(const Tensor& x) {
  const Tensor& memory = x.is_distributed() ? x.local() : x;
  // A gradient may be a view of another one, or repeat its elements.
  return x.impl()->references == 1 && memory.impl()->references == 1 &&
         memory.storage().references() == 1 && memory.is_contiguous() && !x.requires_grad();
}

struct Task {
  std::shared_ptr<Node> node;
  InlineVector<Tensor, 2> grads;
  int waits_for = 0;  // edges into it that have not arrived
};

/// A tensor of the graph whose gradient is wanted as a value.
struct Wanted {
  Node* node;
  int result;
  std::size_t slot;
};

class Pass {
 public:
  explicit Pass(BackwardOptions options) : options_(options) {}

  void start(const Tensor& root, Tensor gradient) {
    Node::Edge edge = gradient_edge(root);
    if (!edge.node) {
      fail("backward: the root does not depend on any tensor that requires a gradient");
    }
    discover(edge.node);
    deliver(edge, std::move(gradient));
    roots_.push_back(edge.node.get());
  }

  void want(const Tensor& input, std::size_t slot) {
    const Node::Edge edge = gradient_edge(input);
    if (edge.node) {
      wanted_.push_back({edge.node.get(), edge.result, slot});
    }
  }

  void run(std::vector<Tensor>* found) {
    for (Node* root : roots_) {
      push_if_ready(root);
    }
    while (!ready_.empty()) {
      Node* const key = ready_.top().second;
      ready_.pop();
      const auto at = tasks_.find(key);
      if (at == tasks_.end()) {
        continue;  // a root that was pushed twice
      }
      Task task = std::move(at->second);
      tasks_.erase(at);
      const Node& node = *task.node;
      const ModuleScope scope(node.module);
      try {
        execute(task, found);
      } catch (const Error& error) {
        rethrow_in_module(error, node.module, true);
      }
    }
  }

 private:
  void discover(const std::shared_ptr<Node>& root) {
    std::vector<std::shared_ptr<Node>> stack;
    const auto visit = [&](const std::shared_ptr<Node>& node) {
      const auto [at, fresh] = tasks_.try_emplace(node.get());
      if (fresh) {
        at->second.node = node;
        at->second.grads.resize(node->results);
        stack.push_back(node);
      }
      return fresh;
    };
    visit(root);
    while (!stack.empty()) {
      const std::shared_ptr<Node> node = std::move(stack.back());
      stack.pop_back();
      for (const Node::Edge& edge : node->next) {
        if (edge.node) {
          visit(edge.node);
          ++tasks_[edge.node.get()].waits_for;
        }
      }
    }
  }

  void deliver(const Node::Edge& edge, Tensor gradient) {
    if (!gradient) {
      return;
    }
    Tensor& slot = tasks_[edge.node.get()].grads[static_cast<std::size_t>(edge.result)];
    slot = slot ? add_gradients(slot, gradient) : std::move(gradient);
  }

  void push_if_ready(Node* node) {
    if (tasks_[node].waits_for == 0) {
      ready_.emplace(node->sequence, node);
    }
  }

  void execute(Task& task, std::vector<Tensor>* found) {
    Node& node = *task.node;
    for (const auto& [result, hook] : node.hooks) {
      Tensor& gradient = task.grads[static_cast<std::size_t>(result)];
      if (gradient) {
        if (Tensor changed = hook(gradient)) {
          gradient = std::move(changed);
        }
      }
    }
    if (found != nullptr) {
      for (const Wanted& w : wanted_) {
        if (w.node == &node) {
          (*found)[w.slot] = task.grads[static_cast<std::size_t>(w.result)];
        }
      }
      if (node.next.empty()) {
        return;  // gradients() touches no leaf's grad()
      }
    }
    InlineVector<Tensor, 4> out(node.next.size());
    const bool any = std::any_of(task.grads.begin(), task.grads.end(),
                                 [](const Tensor& g) { return g.defined(); });
    if (any) {
      const NoGrad mode(options_.create_graph);
      node.backward(task.grads, out, options_.create_graph);
    }
    if (!options_.retain_graph && !options_.create_graph) {
      node.release_saved();
    }
    task.grads.clear();
    for (std::size_t i = 0; i < node.next.size(); ++i) {
      const Node::Edge& edge = node.next[i];
      if (edge.node) {
        deliver(edge, std::move(out[i]));
        --tasks_[edge.node.get()].waits_for;
        push_if_ready(edge.node.get());
      }
    }
  }

  BackwardOptions options_;
  std::unordered_map<Node*, Task> tasks_;
  std::priority_queue<std::pair<std::uint64_t, Node*>> ready_;
  std::vector<Node*> roots_;
  std::vector<Wanted> wanted_;
};

void run_pass(std::span<const Tensor> roots, std::span<const Tensor> grads,
              std::span<const Tensor> inputs, BackwardOptions options, std::vector<Tensor>* found) {
  if (roots.size() != grads.size()) {
    fail(
        fmt::format("backward: one gradient for each root is expected (got {} roots, {} gradients)",
                    roots.size(), grads.size()));
  }
  const PassScope scope;
  Pass pass(options);
  for (std::size_t i = 0; i < roots.size(); ++i) {
    Tensor gradient = grads[i];
    if (!gradient) {
      if (roots[i].numel() != 1) {
        fail(fmt::format("backward: only a root of one element needs no gradient (got shape {})",
                         to_string(roots[i].shape())));
      }
      gradient = call_one(find_op("ones_like"), {detached(roots[i])});
    } else if (!(gradient.shape() == roots[i].shape())) {
      fail(fmt::format("backward: the gradient of a root has its shape (expected {}, got {})",
                       to_string(roots[i].shape()), to_string(gradient.shape())));
    }
    pass.start(roots[i], std::move(gradient));
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    pass.want(inputs[i], i);
  }
  pass.run(found);
  PassScope::finish();
}

}  // namespace

Tensor add_gradients(Tensor& a, const Tensor& b) {
  static const Op& add = find_op("add");
  static const Op& add_in_place = find_op("add_");
  const Attributes alpha = Attributes().scalar(1.0);
  if (!grad_enabled() && only_here(a) && a.dtype() == b.dtype() && a.spec() == b.spec() &&
      !a.is_meta()) {
    return call_one(add_in_place, {a, b}, alpha);
  }
  return call_one(add, {a, b}, alpha);
}

void backward(std::span<const Tensor> roots, std::span<const Tensor> grads,
              BackwardOptions options) {
  run_pass(roots, grads, {}, options, nullptr);
}

void backward(const Tensor& root, BackwardOptions options) {
  const Tensor none;
  backward({&root, 1}, {&none, 1}, options);
}

std::vector<Tensor> gradients(std::span<const Tensor> roots, std::span<const Tensor> grads,
                              std::span<const Tensor> inputs, BackwardOptions options) {
  std::vector<Tensor> found(inputs.size());
  run_pass(roots, grads, inputs, options, &found);
  return found;
}

void queue_final_callback(std::function<void()> callback) {
  if (pass_state().depth == 0) {
    callback();
    return;
  }
  pass_state().final_callbacks.push_back(std::move(callback));
}

bool in_backward() { return pass_state().depth > 0; }

}  // namespace tessera
