// Reductions that go over their elements twice: variance, and log of the sum of exponentials.
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

struct Arguments {
  Dims dims;  // sorted
  bool keepdim;
};

Arguments read_arguments(const Op& op, AttributeReader& read, int count) {
  const Dims dims = operands::sorted_dims(op.name.c_str(), read.dims(), count);
  return {dims, read.flag()};
}

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
  AttributeReader read = call.read();
  const Arguments a = read_arguments(call.op, read, x.dims());
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
        const T* first = x + o * r.reduced * r.inner + i;
        y[o * r.inner + i] = static_cast<T>(
            result([&](std::int64_t at) { return static_cast<double>(first[at * r.inner]); }));
      }
    }
  });
}

void logsumexp_cpu(const Call& call, std::span<Tensor> out) {
  AttributeReader read = call.read();
  const Arguments a = read_arguments(call.op, read, call.in[0].dims());
  const operands::ReducedOperand r = operands::reduced_operand(call.in[0], a.dims);
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

void var_cpu(const Call& call, std::span<Tensor> out) {
  AttributeReader read = call.read();
  const Arguments a = read_arguments(call.op, read, call.in[0].dims());
  const auto correction = static_cast<double>(read.integer());
  const operands::ReducedOperand r = operands::reduced_operand(call.in[0], a.dims);
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
    return squares / std::max(count - correction, 0.0);
  });
}

void kept_rule(const RuleContext& context, Strategies& strategies) {
  AttributeReader read = context.call.read();
  const Arguments a = read_arguments(context.call.op, read, context.call.in[0].dims());
  rules::kept_dims(context, strategies, a.dims, a.keepdim);
}

/// Each element's share of the sum: exp(x - y).
void logsumexp_backward(const BackwardContext& context, std::span<const Tensor> grads,
                        std::span<Tensor> out) {
  const Tensor& x = context.in[0];
  AttributeReader read = context.read();
  const Arguments a = read_arguments(context.op, read, x.dims());
  const Tensor whole = operands::spread(context.out[0], a.dims, a.keepdim, x.shape());
  const Tensor g = operands::spread(grads[0], a.dims, a.keepdim, x.shape());
  out[0] = mul(g, exp(sub(x, whole)));
}

/// 2 (x - mean) / (count - correction)
void var_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  const Tensor& x = context.in[0];
  AttributeReader read = context.read();
  const Arguments a = read_arguments(context.op, read, x.dims());
  const auto free =
      static_cast<double>(std::max<std::int64_t>(count_of(x.shape(), a.dims) - read.integer(), 0));
  if (a.dims.empty()) {
    out[0] = zeros_like(x);
    return;
  }
  const Tensor centred = sub(x, mean(x, a.dims, true));
  const Tensor g = operands::spread(grads[0], a.dims, a.keepdim, x.shape());
  out[0] = mul(g, mul_scalar(centred, 2 / free));
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
                                .cpu = var_cpu,
                                .rule = kept_rule,
                                .backward = var_backward,
                                .saves_inputs = saves_all,
                                .about = "The mean square of the distance to the mean over dims, "
                                         "for count - correction elements."});

}  // namespace

Tensor logsumexp(const Tensor& x, const Dims& dims, bool keepdim) {
  const Dims sorted = operands::sorted_dims("logsumexp", dims, x.dims());
  return call_one(logsumexp_op, {x}, Attributes().add(sorted).add(keepdim));
}

Tensor var(const Tensor& x, const Dims& dims, bool keepdim, std::int64_t correction) {
  const Dims sorted = operands::sorted_dims("var", dims, x.dims());
  return call_one(var_op, {x}, Attributes().add(sorted).add(keepdim).add(correction));
}

}  // namespace tessera::ops
