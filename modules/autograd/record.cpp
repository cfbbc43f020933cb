// Autograd's place on the path of every operator: calls the next layer, and records the call when
// it can be differentiated.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
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

class OpNode final : public Node {
 public:
  OpNode(const Op& op, std::span<const Tensor> in, const Attributes& attributes,
         std::span<const Tensor> out)
      : Node(out.size()), op_(op), attributes_(attributes) {
    for (std::size_t i = 0; i < in.size(); ++i) {
      add_operand(in[i]);
      const bool saved = in[i] && i < 64 && ((op.saves_inputs >> i) & 1U) != 0;
      in_.push_back(saved ? SavedTensor(in[i]) : SavedTensor());
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      // The result holds this step: the step keeps the result without its history, or neither would
      // ever be freed.
      const bool saved = i < 64 && ((op.saves_outputs >> i) & 1U) != 0;
      out_.push_back(saved ? SavedTensor(detached(out[i])) : SavedTensor());
    }
  }

  std::string_view name() const override { return op_.name; }

  std::string operand_name(std::size_t i) const override {
    const Op::OperandPlace place = op_.place_of(i, next.size());
    return place.operand < op_.operands.size()
               ? fmt::format("operand {} ('{}')", i, op_.operands[place.operand].name)
               : Node::operand_name(i);
  }

  void backward(std::span<Tensor> grads, std::span<Tensor> result, bool create_graph) override {
    compute(grads, result, needed_but({}), create_graph, &SavedTensor::get);
  }

  Rest backward_apart(std::span<Tensor> grads, std::span<Tensor> result,
                      const std::vector<bool>& later) override {
    if (!op_.gradients_apart || next.size() > 64) {
      return Node::backward_apart(grads, result, later);
    }
    const std::uint64_t all = needed_but({});
    const std::uint64_t now = needed_but(later);
    if (now != 0) {
      compute(grads, result, now, false, &SavedTensor::get);
    }
    // Parameters may be in no memory then; their own gradients do not read them.
    return [node = self.lock(), kept = std::vector<Tensor>(grads.begin(), grads.end()),
            left = all & ~now](std::span<Tensor> out) {
      node->compute(kept, out, left, false, &SavedTensor::get_unfilled);
    };
  }

  void release_saved() override {
    in_.clear();
    out_.clear();
    released_ = true;
  }

  std::weak_ptr<OpNode> self;

 private:
  /// Operands that need a gradient, without those that are marked.
  std::uint64_t needed_but(const std::vector<bool>& marked) const {
    if (next.size() > 64) {
      return ~std::uint64_t{0};
    }
    std::uint64_t needed = 0;
    for (std::size_t i = 0; i < next.size(); ++i) {
      const bool counts = next[i].node != nullptr && (marked.empty() || !marked[i]);
      needed |= static_cast<std::uint64_t>(counts) << i;
    }
    return needed;
  }

  using Get = const Tensor& (SavedTensor::*)(std::string_view user) const;
  void compute(std::span<const Tensor> grads, std::span<Tensor> result, std::uint64_t needed,
               bool create_graph, Get get) {
    if (released_) {
      fail({.thing = "backward",
            .wrong = fmt::format("the graph of '{}' was freed by an earlier backward", op_.name),
            .advice = "pass retain_graph there"});
    }
    if (op_.constant_outputs != saves_none) {
      check_constant_results(grads);
    }
    Tensors in;
    Tensors out;
    for (const SavedTensor& saved : in_) {
      in.push_back((saved.*get)(op_.name));
    }
    for (std::size_t i = 0; i < out_.size(); ++i) {
      out.push_back((out_[i].*get)(op_.name));
      if (create_graph && out.back()) {
        out.back() = detached(out.back());
        set_history(out.back(), self.lock(), static_cast<int>(i));
      }
    }
    const BackwardContext context{op_,   attributes_, in, out, operand_shapes, operand_dtypes,
                                  needed};
    op_.backward(context, grads, result);
  }

  /// Error: a gradient has arrived for a result that has none.
  void check_constant_results(std::span<const Tensor> grads) const {
    for (std::size_t i = 0; i < grads.size() && i < 64; ++i) {
      if (grads[i] && ((op_.constant_outputs >> i) & 1U) != 0) {
        fail({.thing = op_.name,
              .wrong = fmt::format("result {} has no gradient", i),
              .expected = "gradients of other results only",
              .advice = "detach() it before it is used"});
      }
    }
  }

  const Op& op_;
  Attributes attributes_;
  InlineVector<SavedTensor, 3> in_;
  InlineVector<SavedTensor, 2> out_;
  bool released_ = false;
};

thread_local constinit TapeState recorded;

/// Makes the results of a call that needs gradients results of a recorded step.
void record(const Op& op, std::span<const Tensor> in, const Attributes& attributes,
            std::span<const Tensor> out) {
  const auto node = std::make_shared<OpNode>(op, in, attributes, out);
  node->self = node;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (is_floating(out[i].dtype())) {
      set_history(out[i], node, static_cast<int>(i));
    }
  }
}

/// Whether another tensor has x's memory: a view, or what an earlier step keeps.
bool shares_memory(const Tensor& x) {
  const Tensor& memory = local_of(x);
  return memory.storage().references() != 1 || !memory.storage().owns_memory() ||
         (x.is_distributed() && memory.impl()->references != 1);
}

/// Errors: the steps that are recorded would not describe what the written tensor, or others, hold.
void check_recorded_write(const Op& op, const Tensor& written) {
  const auto refuse = [&](const char* what) {
    fail({.thing = op.name,
          .wrong =
              fmt::format("operand '{}' cannot be written while gradients are recorded, because {}",
                          op.operand_name(0, op.operands.size()), what),
          .advice = "use the form that makes a new tensor, or a NoGrad scope"});
  };
  const Op* const form = op.form_of;
  if (form == nullptr || form->backward == nullptr || form->operands.size() != op.operands.size()) {
    refuse("this operator has no gradient");
  }
  if (written.requires_grad() && is_leaf(written)) {
    refuse("it is a leaf that requires a gradient");
  }
  if (recorded.capture != nullptr && written.requires_grad()) {
    refuse("it comes from outside of a checkpointed function, which runs again for backward");
  }
  if (shares_memory(written)) {
    refuse("other tensors share its memory: a view, or a result that a step keeps for backward");
  }
}

/// A copy of what x holds now, with x's history.
Tensor copy_with_history(const Tensor& x) {
  static const Op& clone = find_op("clone");
  Tensor copy;
  {
    const NoGrad unrecorded;
    copy = call_one(clone, {x});
  }
  if (x.requires_grad()) {
    Node::Edge edge = gradient_edge(x);
    set_history(copy, std::move(edge.node), edge.result);
  }
  return copy;
}

/// An in-place form of an operator: the written tensor becomes the result of a step whose operand
/// is what it held before. That is copied where the step needs it for backward.
Tensors call_in_place(const Op& op, std::span<const Tensor> in, const Attributes& attributes) {
  check_recorded_write(op, in[0]);
  if (recorded.capture != nullptr) [[unlikely]] {
    Tensors out = call_below_autograd(op, in, attributes);
    recorded.capture->note(in);
    return out;
  }
  const Op& form = *op.form_of;
  std::vector<Tensor> before(in.begin(), in.end());
  Tensor copy;
  for (std::size_t i = 0; i < in.size() && i < 64; ++i) {
    if (in[i].same_as(in[0]) && ((form.saves_inputs >> i) & 1U) != 0) {
      copy = copy ? copy : copy_with_history(in[0]);
      before[i] = copy;
    }
  }
  Tensors out = call_below_autograd(op, in, attributes);
  record(form, before, attributes, out);
  return out;
}

Tensors autograd_call(const Op& op, std::span<const Tensor> in, const Attributes& attributes) {
  if (op.in_place) {
    return call_in_place(op, in, attributes);
  }
  Tensors out = call_below_autograd(op, in, attributes);
  if (op.backward == nullptr) {
    return out;  // results are constants for the gradient: integers, masks, and backward kernels
  }
  if (recorded.capture != nullptr) [[unlikely]] {
    recorded.capture->note(in);
    return out;
  }
  record(op, in, attributes, out);
  return out;
}

[[maybe_unused]] const bool installed = [] {
  set_autograd_slot(&autograd_call);
  return true;
}();

}  // namespace

TapeState& recorded_here() { return recorded; }

CaptureScope::CaptureScope() : before_(std::exchange(recorded.capture, this)) {}
CaptureScope::~CaptureScope() { recorded.capture = before_; }
CaptureScope* CaptureScope::current() { return recorded.capture; }

void CaptureScope::note(std::span<const Tensor> used) {
  for (const Tensor& x : used) {
    if (x && x.requires_grad() &&
        std::none_of(captured_.begin(), captured_.end(),
                     [&](const Tensor& known) { return known.same_as(x); })) {
      captured_.push_back(x);
    }
  }
}

}  // namespace tessera
