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
  BackwardPart part = BackwardPart::whole;  // of the outermost one
  std::vector<std::function<void()>> final_callbacks;
  std::vector<std::function<void()>> for_second_half;
};

PassState& pass_state() {
  thread_local PassState state;
  return state;
}

/// Counts the nested passes of this thread; a pass that throws drops the callbacks that wait for
/// its end.
class PassScope {
 public:
  explicit PassScope(BackwardPart part = BackwardPart::whole) {
    PassState& state = pass_state();
    if (++state.depth == 1) {
      state.part = part;
    }
  }
  ~PassScope() {
    PassState& state = pass_state();
    if (--state.depth == 0) {
      state.part = BackwardPart::whole;
      state.final_callbacks.clear();
      state.for_second_half.clear();
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
struct ReadyNode {
  std::uint64_t sequence;
  std::uint64_t order;
  Node* node;

  friend bool operator<(const ReadyNode& a, const ReadyNode& b) {
    return a.sequence != b.sequence ? a.sequence < b.sequence : a.order > b.order;
  }
};

/// A tensor of the graph whose gradient is requested.
struct RequestedGradient {
  Node* node;
  int result;
  std::size_t slot;
};

/// Where a pass over a part of the graph stops (gradients_between).
struct StopPoints {
  std::map<std::pair<const Node*, int>, std::size_t> slots;
  std::uint64_t first = 0;  // the part's first step
  std::string_view user;
  const std::vector<bool>* later = nullptr;  // slots that may be left out

  bool contains(const Node* node) const {
    const auto at = slots.lower_bound({node, std::numeric_limits<int>::min()});
    return at != slots.end() && at->first.first == node;
  }
};

/// Calls the leaf's hooks with its gradient, and adds it to the leaf's grad().
void accumulate(Node& leaf, Tensor gradient) {
  InlineVector<Tensor, 2> grads;
  grads.push_back(std::move(gradient));
  leaf.run_hooks(grads);
  if (grads[0]) {
    const PermissionScope permissions(leaf.permissions);
    leaf.backward(grads, {}, false);
  }
}

}  // namespace

/// What the first half has left out.
struct LaterGradients::State {
  /// A leaf whose gradients from all steps have not arrived.
  struct Leaf {
    Tensor gradient = {};
    int waits_for = 0;
  };
  DeferredGradients left_out;
  std::unordered_map<Node*, Leaf> leaves;
  std::vector<std::shared_ptr<Node>> inputs;  // leaves that do not wait, during the first half
  std::vector<std::function<void()>> at_beginning;

  bool is_later(const Node& node) const {
    return node.next.empty() && std::ranges::none_of(inputs, [&](const std::shared_ptr<Node>& own) {
             return own.get() == &node;
           });
  }
  void compute();
};

void LaterGradients::State::compute() {
  std::vector<std::shared_ptr<Node>> complete;  // of the last step
  const auto deliver = [&](const Node::Edge& edge, Tensor gradient) {
    Leaf& leaf = leaves.at(edge.node.get());
    if (gradient) {
      leaf.gradient = leaf.gradient ? add_gradients(leaf.gradient, gradient) : std::move(gradient);
    }
    if (--leaf.waits_for == 0) {
      complete.push_back(edge.node);
    }
  };
  left_out.compute(deliver, [&] {
    for (const std::shared_ptr<Node>& leaf : std::exchange(complete, {})) {
      const ModuleScope scope(leaf->module);
      accumulate(*leaf, std::move(leaves.at(leaf.get()).gradient));
      leaves.erase(leaf.get());
    }
  });
}

namespace {

class Pass {
 public:
  /// `found`: where requested gradients go, or null to add to the leaves' grad(). `ends`: null for
  /// the whole graph.
  Pass(BackwardOptions options, std::vector<Tensor>* found, const StopPoints* ends)
      : options_(options), found_(found), ends_(ends) {}
  /// A pass that leaves out the gradients of leaves but its inputs.
  explicit Pass(LaterGradients::State& later) : left_out_(&later.left_out), later_(&later) {}
  /// A pass to `ends` that leaves out those which it marks.
  Pass(std::vector<Tensor>& found, const StopPoints& ends, DeferredGradients& left_out)
      : found_(&found), ends_(&ends), left_out_(&left_out) {}

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
        if (!edge.node) {
          continue;
        }
        if (later_ != nullptr && later_->is_later(*edge.node)) {
          ++later_->leaves[edge.node.get()].waits_for;
        } else if (!is_end(*edge.node)) {
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
      for (const RequestedGradient& w : wanted_) {
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
    const std::vector<bool> later = operands_left_out(node);
    const bool leaves_out = !later.empty();
    {
      const PermissionScope permissions(node.permissions);
      if (leaves_out && any) {
        left_out_->call(task.node, task.grads, out, later);
      } else if (leaves_out) {
        left_out_->skip(task.node, later);
      } else if (any) {
        node.backward(task.grads, out, options_.create_graph);
      }
    }
    if (!leaves_out && !options_.retain_graph && !options_.create_graph) {
      node.release_saved();
    }
    task.grads.clear();
    for (std::size_t i = 0; i < node.next.size(); ++i) {
      const Node::Edge& edge = node.next[i];
      if (!edge.node || (leaves_out && later[i])) {
        continue;
      }
      if (out[i]) {
        check_operand_gradient(node, i, out[i]);
      }
      deliver(edge, std::move(out[i]));
      if (!is_end(*edge.node)) {
        --tasks_[edge.node.get()].waits_for;
        push_if_ready(edge.node.get());
      }
    }
  }

  /// Which operands' gradients may be computed later; empty: none.
  std::vector<bool> operands_left_out(const Node& node) const {
    std::vector<bool> later;
    for (std::size_t i = 0; left_out_ != nullptr && i < node.next.size(); ++i) {
      if (node.next[i].node && is_left_out(node.next[i])) {
        later.resize(node.next.size(), false);
        later[i] = true;
      }
    }
    return later;
  }
  bool is_left_out(const Node::Edge& edge) const {
    if (later_ != nullptr) {
      return later_->is_later(*edge.node);
    }
    const auto end = ends_->slots.find({edge.node.get(), edge.result});
    return end != ends_->slots.end() && (*ends_->later)[end->second];
  }

  BackwardOptions options_ = {};
  std::vector<Tensor>* found_ = nullptr;
  const StopPoints* ends_ = nullptr;
  DeferredGradients* left_out_ = nullptr;   // null: nothing is left out
  LaterGradients::State* later_ = nullptr;  // of a pass whose leaves are left out
  std::unordered_map<Node*, Task> tasks_;
  std::priority_queue<ReadyNode> ready_;
  std::uint64_t ready_count_ = 0;
  std::vector<Node*> roots_;
  std::vector<RequestedGradient> wanted_;
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

/// `ended`: called at the end, before what hooks have queued is dropped.
void run_pass(Pass& pass, std::span<const Tensor> roots, std::span<const Tensor> grads,
              BackwardPart part = BackwardPart::whole, const std::function<void()>& ended = {}) {
  if (roots.size() != grads.size()) {
    fail({.thing = "backward",
          .wrong = "one gradient for each root is expected",
          .got = fmt::format("{} roots, {} gradients", roots.size(), grads.size())});
  }
  const PassScope scope(part);
  for (std::size_t i = 0; i < roots.size(); ++i) {
    require(roots[i].defined(), "backward: a root is undefined; pass a computed tensor");
    pass.start(roots[i], root_gradient(roots[i], grads[i]));
  }
  run_phase("backward", [&pass] {
    pass.run();
    PassScope::finish();
  });
  if (ended) {
    ended();
  }
}

/// Error: this thread is inside a backward.
void require_outside(const char* what) {
  require(!in_backward(),
          fmt::format("{}: called within a backward; call it after the backward", what));
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

LaterGradients::LaterGradients() = default;
LaterGradients::LaterGradients(std::unique_ptr<State> state) : state_(std::move(state)) {}
LaterGradients::LaterGradients(LaterGradients&& other) noexcept = default;
LaterGradients& LaterGradients::operator=(LaterGradients&& other) noexcept = default;
LaterGradients::~LaterGradients() = default;

void LaterGradients::compute() {
  const std::unique_ptr<State> state = std::exchange(state_, nullptr);
  if (!state) {
    return;
  }
  require_outside("gradients that were left out");
  const PassScope scope(BackwardPart::to_leaves);
  const NoGrad no_grad;
  run_phase("backward", [&] {
    for (const std::function<void()>& callback : state->at_beginning) {
      callback();
    }
    state->compute();
    PassScope::finish();
  });
}

LaterGradients backward_to_inputs(std::span<const Tensor> roots, std::span<const Tensor> grads,
                                  std::span<const Tensor> inputs) {
  require_outside("backward_to_inputs");
  auto state = std::make_unique<LaterGradients::State>();
  for (const Tensor& input : inputs) {
    require(input && is_leaf(input), "backward_to_inputs: an input is no leaf; detach it");
    state->inputs.push_back(gradient_edge(input).node);
  }
  Pass pass(*state);
  run_pass(pass, roots, grads, BackwardPart::to_inputs, [&] {
    state->at_beginning = std::exchange(pass_state().for_second_half, {});
    state->inputs.clear();
  });
  return LaterGradients(std::move(state));
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

namespace {

StopPoints ends_of(std::span<const Node::Edge> edges, std::uint64_t first, std::string_view user) {
  StopPoints stops{.slots = {}, .first = first, .user = user};
  for (std::size_t i = 0; i < edges.size(); ++i) {
    if (edges[i].node) {
      stops.slots.emplace(std::pair(edges[i].node.get(), edges[i].result), i);
    }
  }
  return stops;
}

}  // namespace

std::vector<Tensor> gradients_between(std::span<const Tensor> roots, std::span<const Tensor> grads,
                                      std::span<const Node::Edge> ends, std::uint64_t first,
                                      std::string_view user) {
  std::vector<Tensor> found(ends.size());
  const StopPoints stops = ends_of(ends, first, user);
  Pass pass({}, &found, &stops);
  run_pass(pass, roots, grads);
  return found;
}

Node::Rest gradients_between_apart(std::span<const Tensor> roots, std::span<const Tensor> grads,
                                   std::span<const Node::Edge> ends, std::uint64_t first,
                                   std::string_view user, const std::vector<bool>& later,
                                   std::vector<Tensor>& found) {
  found.assign(ends.size(), Tensor());
  auto stops = std::make_shared<StopPoints>(ends_of(ends, first, user));
  stops->later = &later;
  auto left_out = std::make_shared<DeferredGradients>();
  Pass pass(found, *stops, *left_out);
  run_pass(pass, roots, grads);
  stops->later = nullptr;
  if (left_out->empty()) {
    return {};
  }
  return [stops, left_out](std::span<Tensor> out) {
    left_out->compute(
        [&](const Node::Edge& edge, Tensor gradient) {
          Tensor& slot = out[stops->slots.at({edge.node.get(), edge.result})];
          if (gradient) {
            slot = slot ? add_gradients(slot, gradient) : std::move(gradient);
          }
        },
        [] {});
  };
}

void queue_final_callback(std::function<void()> callback) {
  if (pass_state().depth == 0) {
    callback();
    return;
  }
  pass_state().final_callbacks.push_back(std::move(callback));
}

bool in_backward() { return pass_state().depth > 0; }

BackwardPart backward_part() { return pass_state().part; }

void queue_for_second_half(std::function<void()> callback) {
  pass_state().for_second_half.push_back(std::move(callback));
}

}  // namespace tessera
