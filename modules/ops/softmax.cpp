// softmax and log_softmax. The kernels work on the last dim; another dim is brought there first.
module;
#include <cstdint>
#include <span>

#include "kernels/norm.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using rules::strategy;

int dim_of(const Call& call) {
  return wrap_dim(call.read().integer(), call.in[0].dims(), call.op.name.c_str());
}

void infer(const Call& call, ResultShapes& out) {
  dim_of(call);
  for (std::size_t i = 1; i < call.in.size(); ++i) {
    check_shape(call, i, call.in[0].shape());
  }
  check_one_type(call);
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

/// Rows along one dim: the operand with that dim last, contiguous.
Tensor with_dim_last(const Tensor& x, int dim) {
  return contiguous_operand(transposed_operand(x, dim, x.dims() - 1));
}

/// Calls kernel(rows, n, result) on a contiguous result with `dim` last, and puts it in place.
template <class Kernel>
void along(const Tensor& out, int dim, Kernel kernel) {
  const Tensor in_place = transposed_operand(out, dim, out.dims() - 1);
  const Tensor result =
      in_place.is_contiguous() ? in_place : empty(in_place.shape(), in_place.dtype());
  const std::int64_t n = result.shape().back();
  if (result.numel() != 0) {
    kernel(result.numel() / n, n, result);
  }
  if (!result.same_as(in_place)) {
    copy_into(in_place, result);
  }
}

template <bool logarithm>
void cpu(const Call& call, std::span<Tensor> out) {
  const int dim = dim_of(call);
  const Tensor x = with_dim_last(call.in[0], dim);
  along(out[0], dim, [&](std::int64_t rows, std::int64_t n, const Tensor& y) {
    visit_floating(x.dtype(), call.op.name, [&]<class T>(T) {
      if constexpr (logarithm) {
        kernels::log_softmax_forward(rows, n, pointer<T>(x), pointer<T>(y));
      } else {
        kernels::softmax_forward(rows, n, pointer<T>(x), pointer<T>(y));
      }
    });
  });
}

template <bool logarithm>
void grad_cpu(const Call& call, std::span<Tensor> out) {
  const int dim = dim_of(call);
  const Tensor dy = with_dim_last(call.in[0], dim);
  const Tensor y = with_dim_last(call.in[1], dim);
  along(out[0], dim, [&](std::int64_t rows, std::int64_t n, const Tensor& dx) {
    visit_floating(y.dtype(), call.op.name, [&]<class T>(T) {
      if constexpr (logarithm) {
        kernels::log_softmax_backward(rows, n, pointer<T>(dy), pointer<T>(y), pointer<T>(dx));
      } else {
        kernels::softmax_backward(rows, n, pointer<T>(dy), pointer<T>(y), pointer<T>(dx));
      }
    });
  });
}

/// Every dim but the one that is summed over.
void rule(const RuleContext& context, Strategies& strategies) {
  const int dim = dim_of(context.call);
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    if (d != dim) {
      rules::same_dim(context, strategies, d);
    }
  }
}

void grad_rule(const RuleContext& context, Strategies& strategies) {
  rule(context, strategies);
  pass_partial(context, strategies, 0b01);
}

void softmax_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out);
void log_softmax_backward(const BackwardContext& context, std::span<const Tensor> grads,
                          std::span<Tensor> out);

const Op& softmax_op = register_op({
    .schema = "softmax(x; dim: int)",
    .infer = infer,
    .cpu = cpu<false>,
    .rule = rule,
    .backward = softmax_backward,
    .saves_outputs = saves_all,
    .about = "exp(x) divided by its sum over a dim.",
});

const Op& log_softmax_op = register_op({
    .schema = "log_softmax(x; dim: int)",
    .infer = infer,
    .cpu = cpu<true>,
    .rule = rule,
    .backward = log_softmax_backward,
    .saves_outputs = saves_all,
    .about = "The logarithm of softmax.",
});

const Op& softmax_backward_op = register_op({
    .schema = "softmax_backward(dy, y; dim: int)",
    .infer = infer,
    .cpu = grad_cpu<false>,
    .rule = grad_rule,
    .about = "The gradient of softmax.",
});

const Op& log_softmax_backward_op = register_op({
    .schema = "log_softmax_backward(dy, y; dim: int)",
    .infer = infer,
    .cpu = grad_cpu<true>,
    .rule = grad_rule,
    .about = "The gradient of log_softmax.",
});

void softmax_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  out[0] = call_one(softmax_backward_op, {grads[0], context.out[0]}, context.attributes);
}

void log_softmax_backward(const BackwardContext& context, std::span<const Tensor> grads,
                          std::span<Tensor> out) {
  out[0] = call_one(log_softmax_backward_op, {grads[0], context.out[0]}, context.attributes);
}

}  // namespace

Tensor softmax(const Tensor& x, std::int64_t dim) {
  return call_one(softmax_op, {x}, Attributes().add(dim));
}

Tensor log_softmax(const Tensor& x, std::int64_t dim) {
  return call_one(log_softmax_op, {x}, Attributes().add(dim));
}

}  // namespace tessera::ops
