// What autograd does on the path of every operator: call on, and record the call when it can be
// differentiated.
module;
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
module tessera.autograd;

import tessera.base;
import tessera.tensor;

namespace tessera {
namespace {

const Tensor& memory_of(const Tensor& x) { return x.is_distributed() ? x.local() : x; }

std::uint64_t version_of(const Tensor& x) { return memory_of(x).storage().version(); }

/// A tensor kept for backward, with its version at that time.
struct Saved {
  Tensor value;
  std::uint64_t version = 0;

  Saved() = default;
  explicit Saved(Tensor x) : value(std::move(x)), version(version_of(value)) {}

  void check(std::string_view op) const {
    if (version_of(value) != version) {
      fail(
          fmt::format("backward: a tensor that '{}' needs was changed in place after it was used "
                      "({}); change a copy",
                      op, to_string(value.shape())));
    }
    if (!memory_of(value).storage().has_memory() && !value.is_meta()) {
      fail(
          fmt::format("backward: the memory of a tensor that '{}' needs was released; gather the "
                      "parameter before "
                      "its module's backward",
                      op));
    }
  }
};

class OpNode final : public Node {
 public:
  OpNode(const Op& op, std::span<const Tensor> in, const Attributes& attributes,
         std::span<const Tensor> out)
      : Node(out.size()), op_(op), attributes_(attributes) {
    for (std::size_t i = 0; i < in.size(); ++i) {
      next.push_back(gradient_edge(in[i]));
      in_shapes_.push_back(in[i] ? in[i].shape() : Dims{});
      in_dtypes_.push_back(in[i] ? in[i].dtype() : DType::f32);
      const bool saved = in[i] && i < 64 && ((op.saves_inputs >> i) & 1U) != 0;
      in_.push_back(saved ? Saved(in[i]) : Saved());
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      // The result holds this step: the step keeps the result without its history, or neither would
      // ever be freed.
      const bool saved = i < 64 && ((op.saves_outputs >> i) & 1U) != 0;
      out_.push_back(saved ? Saved(detached(out[i])) : Saved());
    }
  }

  std::string_view name() const override { return op_.name; }

  void backward(std::span<const Tensor> grads, std::span<Tensor> result,
                bool create_graph) override {
    if (released_) {
      fail(fmt::format(
          "backward: the graph of '{}' was freed by an earlier backward; pass retain_graph there",
          op_.name));
    }
    Tensors in;
    Tensors out;
    for (const Saved& s : in_) {
      if (s.value) {
        s.check(op_.name);
      }
      in.push_back(s.value);
    }
    for (std::size_t i = 0; i < out_.size(); ++i) {
      if (out_[i].value) {
        out_[i].check(op_.name);
      }
      out.push_back(out_[i].value);
      if (create_graph && out.back()) {
        out.back() = detached(out.back());
        set_history(out.back(), self.lock(), static_cast<int>(i));
      }
    }
    BackwardContext context{op_, attributes_, in, out, in_shapes_, in_dtypes_, 0};
    for (std::size_t i = 0; i < next.size() && i < 64; ++i) {
      context.needed |= static_cast<std::uint64_t>(next[i].node != nullptr) << i;
    }
    if (next.size() > 64) {
      context.needed = ~std::uint64_t{0};
    }
    op_.backward(context, grads, result);
  }

  void release_saved() override {
    in_.clear();
    out_.clear();
    released_ = true;
  }

  std::weak_ptr<Node> self;

 private:
  const Op& op_;
  Attributes attributes_;
  InlineVector<Saved, 3> in_;
  InlineVector<Saved, 2> out_;
  InlineVector<Dims, 3> in_shapes_;
  InlineVector<DType, 4> in_dtypes_;
  bool released_ = false;
};

Tensors autograd_call(const Op& op, std::span<const Tensor> in, const Attributes& attributes) {
  if (op.in_place) {
    fail(
        fmt::format("{}: an operand that is written in place needs a gradient; use the form that "
                    "makes a new tensor, "
                    "or a NoGrad scope",
                    op.name));
  }
  Tensors out = call_below_autograd(op, in, attributes);
  if (op.backward == nullptr) {
    return out;  // results are constants for the gradient: integers, masks, and backward kernels
  }
  const auto node = std::make_shared<OpNode>(op, in, attributes, out);
  node->self = node;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (is_floating(out[i].dtype())) {
      set_history(out[i], node, static_cast<int>(i));
    }
  }
  return out;
}

[[maybe_unused]] const bool installed = [] {
  set_autograd_slot(&autograd_call);
  return true;
}();

}  // namespace
}  // namespace tessera
