module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <queue>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>
module tessera.autograd;

import tessera.base;
import tessera.tensor;
import :pass;

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

struct Task {
  std::shared_ptr<Node> node;
  InlineVector<Tensor, 2> grads;
  int waits_for = 0;  // edges into it that have not arrived
};

/// A step whose gradients have all arrived. The one that was called last is next; leaves, which
/// have one sequence number, in the order in which they became ready: the same in every run, so
/// that steps can be recorded.
struct Ready {
  std::uint64_t sequence;
  std::uint64_t order;
  Node* node;

  friend bool operator<(const Ready& a, const Ready& b) {
    return a.sequence != b.sequence ? a.sequence < b.sequence : a.order > b.order;
  }
};

/// A tensor of the graph whose gradient is requested.
struct Wanted {
  Node* node;
  int result;
  std::size_t slot;
};

/// Where a pass over a part of the graph stops (gradients_between).
struct Ends {
  std::map<std::pair<const Node*, int>, std::size_t> slots;
  std::uint64_t first = 0;  // the part's first step
  std::string_view user;

  bool contains(const Node* node) const {
    const auto at = slots.lower_bound({node, std::numeric_limits<int>::min()});
    return at != slots.end() && at->first.first == node;
  }
};

class Pass {
 public:
  /// `found`: where requested gradients go, or null to add to the leaves' grad(). `ends`: null for
  /// the whole graph.
  Pass(BackwardOptions options, std::vector<Tensor>* found, const Ends* ends)
      : options_(options), found_(found), ends_(ends) {}

  void start(const Tensor& root, Tensor gradient) {
    Node::Edge edge = gradient_edge(root);
    if (!edge.node) {
      fail({.thing = "backward",
            .wrong = "the root does not depend on any tensor that requires a gradient"});
    }
    if (!is_end(*edge.node)) {
      discover(edge.node);
      roots_.push_back(edge.node.get());
    }
    deliver(edge, std::move(gradient));
  }

  void want(const Tensor& input, std::size_t slot) {
    const Node::Edge edge = gradient_edge(input);
    if (edge.node) {
      wanted_.push_back({edge.node.get(), edge.result, slot});
    }
  }

  void run() {
    for (Node* root : roots_) {
      push_if_ready(root);
    }
    while (!ready_.empty()) {
      Node* const key = ready_.top().node;
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
        execute(task);
      } catch (const Error& error) {
        rethrow_in_module(error, node.module, true);
      }
    }
  }

 private:
  /// Whether the pass stops at this step. Error: the step is outside of the part of the graph.
  bool is_end(const Node& node) const {
    if (ends_ == nullptr || (node.sequence >= ends_->first && !node.next.empty())) {
      return false;
    }
    if (!ends_->contains(&node)) {
      fail({.thing = std::string(ends_->user),
            .wrong = "when the function was called again for backward, it used a tensor that needs "
                     "a gradient and that its first call did not use",
            .advice = "the function must use the same tensors in each call"});
    }
    return true;
  }

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
        if (edge.node && !is_end(*edge.node)) {
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
    Tensor& slot = slot_of(edge);
    slot = slot ? add_gradients(slot, gradient) : std::move(gradient);
  }

  Tensor& slot_of(const Node::Edge& edge) {
    if (ends_ != nullptr) {
      const auto end = ends_->slots.find({edge.node.get(), edge.result});
      if (end != ends_->slots.end()) {
        return (*found_)[end->second];
      }
    }
    return tasks_[edge.node.get()].grads[static_cast<std::size_t>(edge.result)];
  }

  void push_if_ready(Node* node) {
    if (tasks_[node].waits_for == 0) {
      ready_.push({node->sequence, ++ready_count_, node});
    }
  }

  void execute(Task& task) {
    Node& node = *task.node;
    const NoGrad mode(options_.create_graph);
    node.run_hooks(task.grads);
    if (found_ != nullptr) {
      for (const Wanted& w : wanted_) {
        if (w.node == &node) {
          (*found_)[w.slot] = task.grads[static_cast<std::size_t>(w.result)];
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
      const PermissionScope permissions(node.permissions);
      node.backward(task.grads, out, options_.create_graph);
    }
    if (!options_.retain_graph && !options_.create_graph) {
      node.release_saved();
    }
    task.grads.clear();
    for (std::size_t i = 0; i < node.next.size(); ++i) {
      const Node::Edge& edge = node.next[i];
      if (!edge.node) {
        continue;
      }
      if (out[i]) {
        check_fits(node, i, out[i]);
      }
      deliver(edge, std::move(out[i]));
      if (!is_end(*edge.node)) {
        --tasks_[edge.node.get()].waits_for;
        push_if_ready(edge.node.get());
      }
    }
  }

  static void check_fits(const Node& node, std::size_t i, const Tensor& gradient) {
    const GradientTarget target{node.operand_shapes[i], node.operand_dtypes[i],
                                node.operand_specs[i]};
    if (!fits(target, gradient)) [[unlikely]] {
      refuse_gradient(fmt::format("the gradient of {} of '{}'", node.operand_name(i), node.name()),
                      target, gradient, "correct the backward function that computes it");
    }
  }

  BackwardOptions options_;
  std::vector<Tensor>* found_;
  const Ends* ends_;
  std::unordered_map<Node*, Task> tasks_;
  std::priority_queue<Ready> ready_;
  std::uint64_t ready_count_ = 0;
  std::vector<Node*> roots_;
  std::vector<Wanted> wanted_;
};

Tensor root_gradient(const Tensor& root, const Tensor& given) {
  if (!given) {
    if (root.numel() != 1) {
      fail({.thing = "backward",
            .wrong = "only a root of one element needs no gradient",
            .got = fmt::format("shape {}", to_string(root.shape()))});
    }
    return call_one(find_op("ones_like"), {detached(root)});
  }
  const GradientTarget target{root.shape(), root.dtype(), root.spec()};
  if (!fits(target, given)) {
    refuse_gradient("the gradient of a root", target, given, "pass one that fits the root");
  }
  return given;
}

void run_pass(Pass& pass, std::span<const Tensor> roots, std::span<const Tensor> grads) {
  if (roots.size() != grads.size()) {
    fail({.thing = "backward",
          .wrong = "one gradient for each root is expected",
          .got = fmt::format("{} roots, {} gradients", roots.size(), grads.size())});
  }
  const PassScope scope;
  for (std::size_t i = 0; i < roots.size(); ++i) {
    require(roots[i].defined(), "backward: a root is undefined; pass a computed tensor");
    pass.start(roots[i], root_gradient(roots[i], grads[i]));
  }
  run_phase("backward", [&pass] {
    pass.run();
    PassScope::finish();
  });
}

}  // namespace

void backward(std::span<const Tensor> roots, std::span<const Tensor> grads,
              BackwardOptions options) {
  Pass pass(options, nullptr, nullptr);
  run_pass(pass, roots, grads);
}

void backward(const Tensor& root, BackwardOptions options) {
  const Tensor none;
  backward({&root, 1}, {&none, 1}, options);
}

std::vector<Tensor> gradients(std::span<const Tensor> roots, std::span<const Tensor> grads,
                              std::span<const Tensor> inputs, BackwardOptions options) {
  std::vector<Tensor> found(inputs.size());
  Pass pass(options, &found, nullptr);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    require(inputs[i].defined(),
            "gradients: a tensor whose gradient is requested is undefined; pass a tensor of the "
            "computation");
    pass.want(inputs[i], i);
  }
  run_pass(pass, roots, grads);
  const NoGrad mode(options.create_graph);
  for (Tensor& gradient : found) {
    if (gradient) {
      gradient = own_gradient(std::move(gradient));
    }
  }
  return found;
}

std::vector<Tensor> gradients_between(std::span<const Tensor> roots, std::span<const Tensor> grads,
                                      std::span<const Node::Edge> ends, std::uint64_t first,
                                      std::string_view user) {
  std::vector<Tensor> found(ends.size());
  Ends stops{.slots = {}, .first = first, .user = user};
  for (std::size_t i = 0; i < ends.size(); ++i) {
    if (ends[i].node) {
      stops.slots.emplace(std::pair(ends[i].node.get(), ends[i].result), i);
    }
  }
  Pass pass({}, &found, &stops);
  run_pass(pass, roots, grads);
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
