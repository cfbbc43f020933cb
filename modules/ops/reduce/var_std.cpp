// Reductions in double precision, some of them going over their elements twice: variance and
// deviation, log of the sum of exponentials.
module;
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <tessera/half.hpp>
module tessera.ops;

import tessera.base;
import tessera.tensor;

namespace tessera::ops {
namespace {

using operands::ReducedDims;

std::int64_t count_of(const Dims& shape, const Dims& dims) {
  std::int64_t count = 1;
  for (const std::int64_t d : dims) {
    count *= shape[static_cast<int>(d)];
  }
  return count;
}

void infer(const Call& call, ResultShapes& out) {
  const Tensor& x = call.in[0];
  operands::check_floating(call.op.name, x);
  const ReducedDims a = operands::reduced_dims(call);
  out.push_back({operands::reduced_shape(x.shape(), a.dims, a.keepdim), x.dtype()});
}

/// Calls f with a null pointer of the element type.
template <class F>
void with_floating(DType type, F&& f) {
  switch (type) {
    case DType::f64:
      return f(static_cast<double*>(nullptr));
    case DType::bf16:
      return f(static_cast<kernels::BFloat16*>(nullptr));
    case DType::f16:
      return f(static_cast<kernels::Half*>(nullptr));
    default:
      return f(static_cast<float*>(nullptr));
  }
}

/// result(at) for each result, where at(r) is its r-th element, as double.
template <class F>
void reduce_elements(const operands::ReducedOperand& r, Tensor& out, F&& result) {
  with_floating(out.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto* x = static_cast<const T*>(r.x.raw_data());
    auto* y = static_cast<T*>(out.raw_data());
    for (std::int64_t o = 0; o < r.outer; ++o) {
      for (std::int64_t i = 0; i < r.inner; ++i) {
        // No pointer to the first element: an empty tensor has none.
        y[o * r.inner + i] = static_cast<T>(result([&](std::int64_t at) {
          return static_cast<double>(x[(o * r.reduced + at) * r.inner + i]);
        }));
      }
    }
  });
}

void logsumexp_cpu(const Call& call, std::span<Tensor> out) {
  const operands::ReducedOperand r =
      operands::reduced_operand(call.in[0], operands::reduced_dims(call).dims);
  reduce_elements(r, out[0], [&](auto&& at) {
    double largest = -std::numeric_limits<double>::infinity();
    for (std::int64_t i = 0; i < r.reduced; ++i) {
      largest = std::isnan(at(i)) ? at(i) : std::max(largest, at(i));
    }
    if (!std::isfinite(largest)) {
      return largest;
    }
    double sum = 0;
    for (std::int64_t i = 0; i < r.reduced; ++i) {
      sum += std::exp(at(i) - largest);
    }
    return largest + std::log(sum);
  });
}

/// What stands behind dims and keepdim.
std::int64_t correction_of(AttributeReader read) {
  read.dims();
  read.flag();
  return read.integer();
}

template <bool root>
void var_cpu(const Call& call, std::span<Tensor> out) {
  const auto correction = static_cast<double>(correction_of(call.read()));
  const operands::ReducedOperand r =
      operands::reduced_operand(call.in[0], operands::reduced_dims(call).dims);
  const auto count = static_cast<double>(r.reduced);
  reduce_elements(r, out[0], [&](auto&& at) {
    double sum = 0;
    for (std::int64_t i = 0; i < r.reduced; ++i) {
      sum += at(i);
    }
    const double mean = sum / count;
    double squares = 0;
    for (std::int64_t i = 0; i < r.reduced; ++i) {
      squares += (at(i) - mean) * (at(i) - mean);
    }
    const double variance = squares / std::max(count - correction, 0.0);
    return root ? std::sqrt(variance) : variance;
  });
}

void kept_rule(const RuleContext& context, Strategies& strategies) {
  const ReducedDims a = operands::reduced_dims(context.call);
  rules::kept_dims(context, strategies, a.dims, a.keepdim);
}

/// Each element's share of the sum: exp(x - y).
void logsumexp_backward(const BackwardContext& context, std::span<const Tensor> grads,
                        std::span<Tensor> out) {
  const Tensor& x = context.in[0];
  const ReducedDims a = operands::reduced_dims(context);
  const Tensor whole = operands::spread(context.out[0], a.dims, a.keepdim, x.shape());
  const Tensor g = operands::spread(grads[0], a.dims, a.keepdim, x.shape());
  out[0] = mul(g, exp(sub(x, whole)));
}

/// `slope` (x - mean) / (count - correction)
Tensor centred_gradient(const BackwardContext& context, const Tensor& slope) {
  const Tensor& x = context.in[0];
  const ReducedDims a = operands::reduced_dims(context);
  if (a.dims.empty()) {
    return zeros_like(x);
  }
  const std::int64_t free = count_of(x.shape(), a.dims) - correction_of(context.read());
  const Tensor centred = sub(x, mean(x, a.dims, true));
  const Tensor g = operands::spread(slope, a.dims, a.keepdim, x.shape());
  return mul(g, mul_scalar(centred, 1 / static_cast<double>(std::max<std::int64_t>(free, 0))));
}

void var_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  out[0] = centred_gradient(context, mul_scalar(grads[0], 2));
}

/// x / y, 0 where y is 0.
Tensor quotient(const Tensor& x, const Tensor& y) {
  const Tensor none = eq(y, zeros_like(y));
  return masked_fill(div(x, masked_fill(y, none, 1)), none, 0);
}

void std_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  out[0] = centred_gradient(context, quotient(grads[0], context.out[0]));
}

const Op& logsumexp_op = register_op({.schema = "logsumexp(x; dims: dims, keepdim: bool)",
                                      .infer = infer,
                                      .cpu = logsumexp_cpu,
                                      .rule = kept_rule,
                                      .backward = logsumexp_backward,
                                      .saves_inputs = saves_all,
                                      .saves_outputs = saves_all,
                                      .about = "log(sum(exp(x))) over dims, without overflow."});

const Op& var_op = register_op({.schema = "var(x; dims: dims, keepdim: bool, correction: int)",
                                .infer = infer,
                                .cpu = var_cpu<false>,
                                .rule = kept_rule,
                                .backward = var_backward,
                                .saves_inputs = saves_all,
                                .about = "The mean square of the distance to the mean over dims, "
                                         "for count - correction elements."});

const Op& std_op = register_op({.schema = "std(x; dims: dims, keepdim: bool, correction: int)",
                                .infer = infer,
                                .cpu = var_cpu<true>,
                                .rule = kept_rule,
                                .backward = std_backward,
                                .saves_inputs = saves_all,
                                .saves_outputs = saves_all,
                                .about = "The root of var."});

Attributes moments(const char* op, const Tensor& x, const Dims& dims, bool keepdim,
                   std::int64_t correction) {
  operands::given(op, "x", x);
  return Attributes().add(operands::sorted_dims(op, dims, x.dims())).add(keepdim).add(correction);
}

}  // namespace

Tensor logsumexp(const Tensor& x, const Dims& dims, bool keepdim) {
  return operands::call_reduction(logsumexp_op, x, dims, keepdim);
}

Tensor var(const Tensor& x, const Dims& dims, bool keepdim, std::int64_t correction) {
  return call_one(var_op, {x}, moments("var", x, dims, keepdim, correction));
}

Tensor std(const Tensor& x, const Dims& dims, bool keepdim, std::int64_t correction) {
  return call_one(std_op, {x}, moments("std", x, dims, keepdim, correction));
}

}  // namespace tessera::ops
