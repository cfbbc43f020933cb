// Along one dim: products (prod), running sums, products and logarithms of sums of exponentials.
module;
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "kernels/reduce.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;

namespace tessera::ops {
namespace {

struct Arguments {
  Dims dim;  // none for a tensor without dims
  bool keepdim;
};

Arguments read_prod(AttributeReader read, int count) {
  return {operands::sorted_dims("prod", {read.integer()}, count), read.flag()};
}

void prod_infer(const Call& call, ResultShapes& out) {
  const Tensor& x = call.in[0];
  const Arguments a = read_prod(call.read(), x.dims());
  out.push_back({operands::reduced_shape(x.shape(), a.dim, a.keepdim),
                 is_floating(x.dtype()) ? x.dtype() : DType::i64});
}

void prod_cpu(const Call& call, std::span<Tensor> out) {
  const Arguments a = read_prod(call.read(), call.in[0].dims());
  const operands::ReducedOperand r = operands::reduced_operand(call.in[0], a.dim);
  kernels::reduce(kernels::ReduceOp::prod, static_cast<kernels::DType>(r.x.dtype()),
                  {r.outer, r.reduced, r.inner}, r.x.raw_data(), out[0].raw_data());
}

void prod_rule(const RuleContext& context, Strategies& strategies) {
  const Arguments a = read_prod(context.call.read(), context.call.in[0].dims());
  rules::kept_dims(context, strategies, a.dim, a.keepdim);
}

/// What `keep` leaves of ones over dims `dim` and `dim` + 1, as bool: placed as `like`, by
/// operators.
template <class F>
Tensor pattern(const Tensor& like, int dim, F keep) {
  Dims to_back;
  for (int d = 0; d < like.dims(); ++d) {
    if (d != dim && d != dim + 1) {
      to_back.push_back(d);
    }
  }
  to_back.push_back(dim);
  to_back.push_back(dim + 1);
  Dims back = to_back;
  for (int d = 0; d < to_back.size(); ++d) {
    back[static_cast<int>(to_back[d])] = d;
  }
  return cast(permute(keep(permute(ones_like(like), to_back)), back), DType::boolean);
}

/// Whether both indices are equal.
Tensor diagonal(const Tensor& like, int dim) {
  return pattern(like, dim, [](const Tensor& ones) { return triu(tril(ones)); });
}

/// Whether the second index is the smaller one.
Tensor before(const Tensor& like, int dim) {
  return pattern(like, dim, [](const Tensor& ones) { return tril(ones, -1); });
}

/// x repeated along a new dim before `dim`: element [i, k] is x[k].
Tensor repeated(const Tensor& x, int dim) {
  Dims square = x.shape();
  square.insert(dim, x.shape()[dim]);
  return expand(unsqueeze(x, dim), square);
}

/// An element's factor is the product of the others, zeros or not: the products of rows of a matrix
/// that holds x in each row, with 1 on the diagonal.
void prod_backward(const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) {
  const Tensor& x = context.in[0];
  const Arguments a = read_prod(context.read(), x.dims());
  if (a.dim.empty()) {
    out[0] = grads[0];
    return;
  }
  const int dim = static_cast<int>(a.dim[0]);
  const Tensor rows = repeated(x, dim);
  const Tensor others = prod(masked_fill(rows, diagonal(rows, dim), 1), dim + 1);
  out[0] = mul(operands::spread(grads[0], a.dim, a.keepdim, x.shape()), others);
}

int dim_of(const Call& call) {
  return operands::front_dim(call.op.name.c_str(), call.read().integer(), call.in[0].dims());
}

void infer(const Call& call, ResultShapes& out) {
  dim_of(call);
  out.push_back(
      {call.in[0].shape(), is_floating(call.in[0].dtype()) ? call.in[0].dtype() : DType::i64});
}

void infer_floating(const Call& call, ResultShapes& out) {
  operands::check_floating(call.op.name, call.in[0]);
  infer(call, out);
}

struct Sum {
  template <class V>
  static V start() {
    return V{0};
  }
  template <class V>
  static V join(V a, V b) {
    return a + b;
  }
};

struct Product {
  template <class V>
  static V start() {
    return V{1};
  }
  template <class V>
  static V join(V a, V b) {
    return a * b;
  }
};

struct LogSum {
  template <class V>
  static V start() {
    return -std::numeric_limits<V>::infinity();
  }
  template <class V>
  static V join(V a, V b) {
    const V larger = a > b || a != a ? a : b;
    return std::isinf(larger) || larger != larger
               ? larger
               : larger + std::log1p(std::exp((a < b ? a : b) - larger));
  }
};

template <class Scan, class T>
void scan(const operands::ReducedOperand& r, const Tensor& y, bool from_end) {
  constexpr bool floating = !std::is_integral_v<T>;
  using Out = std::conditional_t<floating, T, std::int64_t>;
  using Value = std::conditional_t<floating, double, std::int64_t>;
  const auto* in = static_cast<const T*>(r.x.raw_data());
  auto* to = static_cast<Out*>(y.raw_data());
  for (std::int64_t o = 0; o < r.outer; ++o) {
    for (std::int64_t i = 0; i < r.inner; ++i) {
      Value value = Scan::template start<Value>();
      for (std::int64_t k = 0; k < r.reduced; ++k) {
        const std::int64_t at = (o * r.reduced + (from_end ? r.reduced - 1 - k : k)) * r.inner + i;
        value = Scan::join(value, static_cast<Value>(in[at]));
        to[at] = static_cast<Out>(value);
      }
    }
  }
}

template <class Scan, bool from_end = false>
void cpu(const Call& call, std::span<Tensor> out) {
  const int count = call.in[0].dims();
  const Dims dim = operands::sorted_dims(call.op.name.c_str(), {call.read().integer()}, count);
  const operands::ReducedOperand r = operands::reduced_operand(call.in[0], dim);
  kernels::with_type(static_cast<kernels::DType>(r.x.dtype()), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if constexpr (!std::is_same_v<Scan, LogSum> || !std::is_integral_v<T>) {
      scan<Scan, T>(r, out[0], from_end);
    }
  });
}

/// All dims but the one that is gone along.
void rule(const RuleContext& context, Strategies& strategies) {
  const int dim = dim_of(context.call);
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    if (d != dim) {
      rules::same_dim(context, strategies, d);
    }
  }
}

void sums_rule(const RuleContext& context, Strategies& strategies) {
  rule(context, strategies);
  rules::linear(context, strategies);
}

/// The two directions are each other's gradient.
template <bool from_end>
void sums_backward(const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) {
  static const Op& other = find_op(from_end ? "cumsum" : "cumsum_from_end");
  out[0] = call_one(other, {grads[0]}, context.attributes);
}

/// The sum over k of grads[k] times `slope`[i, k], what result k gains with element i; results
/// before the element gain nothing. As many numbers as the square of dim's extent.
Tensor gradient(const Tensor& grad, const Tensor& slope, int dim) {
  const Tensor gained = masked_fill(slope, before(slope, dim), 0);
  return sum(mul(repeated(grad, dim), gained), Dims{dim + 1});
}

/// The product of the others up to k, zeros or not.
void cumprod_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  const Tensor& x = context.in[0];
  if (x.dims() == 0) {
    out[0] = grads[0];
    return;
  }
  const auto dim = static_cast<int>(context.read().integer());
  const int front = operands::front_dim("cumprod", dim, x.dims());
  const Tensor rows = repeated(x, front);
  const Tensor others = cumprod(masked_fill(rows, diagonal(rows, front), 1), front + 1);
  out[0] = gradient(grads[0], others, front);
}

/// exp(x[i] - y[k]), at most 1.
void logcumsumexp_backward(const BackwardContext& context, std::span<const Tensor> grads,
                           std::span<Tensor> out) {
  const Tensor& x = context.in[0];
  if (x.dims() == 0) {
    out[0] = grads[0];
    return;
  }
  const auto dim = static_cast<int>(context.read().integer());
  const int front = operands::front_dim("logcumsumexp", dim, x.dims());
  const Tensor rows = repeated(context.out[0], front);
  const Tensor distance = sub(expand(unsqueeze(x, front + 1), rows.shape()), rows);
  const Tensor share = exp(masked_fill(distance, before(rows, front), 0));
  out[0] = gradient(grads[0], share, front);
}

const Op& prod_op = register_op({.schema = "prod(x; dim: int, keepdim: bool)",
                                 .infer = prod_infer,
                                 .cpu = prod_cpu,
                                 .rule = prod_rule,
                                 .backward = prod_backward,
                                 .saves_inputs = saves_all,
                                 .about = "The product along dim; integers give i64."});

const Op& cumsum_op = register_op({.schema = "cumsum(x; dim: int)",
                                   .infer = infer,
                                   .cpu = cpu<Sum>,
                                   .rule = sums_rule,
                                   .backward = sums_backward<false>,
                                   .about = "The sum of all elements up to each one along dim."});

[[maybe_unused]] const Op& cumsum_from_end_op =
    register_op({.schema = "cumsum_from_end(x; dim: int)",
                 .infer = infer,
                 .cpu = cpu<Sum, true>,
                 .rule = sums_rule,
                 .backward = sums_backward<true>,
                 .about = "The sum of all elements from each one on along dim."});

const Op& cumprod_op = register_op({.schema = "cumprod(x; dim: int)",
                                    .infer = infer,
                                    .cpu = cpu<Product>,
                                    .rule = rule,
                                    .backward = cumprod_backward,
                                    .saves_inputs = saves_all,
                                    .about = "The product of all elements up to each one."});

const Op& logcumsumexp_op =
    register_op({.schema = "logcumsumexp(x; dim: int)",
                 .infer = infer_floating,
                 .cpu = cpu<LogSum>,
                 .rule = rule,
                 .backward = logcumsumexp_backward,
                 .saves_inputs = saves_all,
                 .saves_outputs = saves_all,
                 .about = "log(sum(exp(x))) of all elements up to each one."});

}  // namespace

Tensor prod(const Tensor& x, std::int64_t dim, bool keepdim) {
  return call_one(prod_op, {x},
                  Attributes().add(operands::front_dim("prod", dim, x.dims())).add(keepdim));
}

Tensor cumsum(const Tensor& x, std::int64_t dim) {
  return call_one(cumsum_op, {x}, Attributes().add(operands::front_dim("cumsum", dim, x.dims())));
}

Tensor cumprod(const Tensor& x, std::int64_t dim) {
  return call_one(cumprod_op, {x}, Attributes().add(operands::front_dim("cumprod", dim, x.dims())));
}

Tensor logcumsumexp(const Tensor& x, std::int64_t dim) {
  return call_one(logcumsumexp_op, {x},
                  Attributes().add(operands::front_dim("logcumsumexp", dim, x.dims())));
}

}  // namespace tessera::ops
