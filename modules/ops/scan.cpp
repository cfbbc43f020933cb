// Along one dim: products (prod) and running sums (cumsum).
module;
#include <cstdint>
#include <span>
#include <tessera/half.hpp>
#include <type_traits>
#include <vector>

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

/// Whether the indices of dims `dim` and `dim` + 1 are equal: placed as `like`, by operators.
Tensor diagonal(const Tensor& like, int dim) {
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
  const Tensor ones = permute(ones_like(like), to_back);
  return cast(permute(triu(tril(ones)), back), DType::boolean);
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
  Dims square = x.shape();
  square.insert(dim, x.shape()[dim]);
  const Tensor rows = expand(unsqueeze(x, dim), square);
  const Tensor others = prod(masked_fill(rows, diagonal(rows, dim), 1), dim + 1);
  out[0] = mul(operands::spread(grads[0], a.dim, a.keepdim, x.shape()), others);
}

void sums_infer(const Call& call, ResultShapes& out) {
  const Tensor& x = call.in[0];
  operands::front_dim("cumsum", call.read().integer(), x.dims());
  out.push_back({x.shape(), is_floating(x.dtype()) ? x.dtype() : DType::i64});
}

template <class T>
void running_sums(const operands::ReducedOperand& r, const Tensor& y, bool from_end) {
  constexpr bool floating = !std::is_integral_v<T>;
  using Out = std::conditional_t<floating, T, std::int64_t>;
  using Sum = std::conditional_t<floating, double, std::int64_t>;
  const auto* in = static_cast<const T*>(r.x.raw_data());
  auto* to = static_cast<Out*>(y.raw_data());
  for (std::int64_t o = 0; o < r.outer; ++o) {
    for (std::int64_t i = 0; i < r.inner; ++i) {
      Sum sum = 0;
      for (std::int64_t k = 0; k < r.reduced; ++k) {
        const std::int64_t at = (o * r.reduced + (from_end ? r.reduced - 1 - k : k)) * r.inner + i;
        sum += static_cast<Sum>(in[at]);
        to[at] = static_cast<Out>(sum);
      }
    }
  }
}

template <bool from_end>
void sums_cpu(const Call& call, std::span<Tensor> out) {
  const int count = call.in[0].dims();
  const Dims dim = operands::sorted_dims("cumsum", {call.read().integer()}, count);
  const operands::ReducedOperand r = operands::reduced_operand(call.in[0], dim);
  switch (r.x.dtype()) {
    case DType::f32:
      return running_sums<float>(r, out[0], from_end);
    case DType::f64:
      return running_sums<double>(r, out[0], from_end);
    case DType::bf16:
      return running_sums<kernels::BFloat16>(r, out[0], from_end);
    case DType::f16:
      return running_sums<kernels::Half>(r, out[0], from_end);
    case DType::i64:
      return running_sums<std::int64_t>(r, out[0], from_end);
    case DType::i32:
      return running_sums<std::int32_t>(r, out[0], from_end);
    case DType::u8:
      return running_sums<std::uint8_t>(r, out[0], from_end);
    case DType::boolean:
      return running_sums<bool>(r, out[0], from_end);
  }
}

void sums_rule(const RuleContext& context, Strategies& strategies) {
  const int count = context.call.in[0].dims();
  const int dim = operands::front_dim("cumsum", context.call.read().integer(), count);
  for (int d = 0; d < count; ++d) {
    if (d != dim) {
      rules::same_dim(context, strategies, d);
    }
  }
  rules::linear(context, strategies);
}

/// The two directions are each other's gradient.
template <bool from_end>
void sums_backward(const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) {
  static const Op& other = find_op(from_end ? "cumsum" : "cumsum_from_end");
  out[0] = call_one(other, {grads[0]}, context.attributes);
}

const Op& prod_op = register_op({.schema = "prod(x; dim: int, keepdim: bool)",
                                 .infer = prod_infer,
                                 .cpu = prod_cpu,
                                 .rule = prod_rule,
                                 .backward = prod_backward,
                                 .saves_inputs = saves_all,
                                 .about = "The product along dim; integers give i64."});

const Op& cumsum_op = register_op({.schema = "cumsum(x; dim: int)",
                                   .infer = sums_infer,
                                   .cpu = sums_cpu<false>,
                                   .rule = sums_rule,
                                   .backward = sums_backward<false>,
                                   .about = "The sum of all elements up to each one along dim."});

[[maybe_unused]] const Op& cumsum_from_end_op =
    register_op({.schema = "cumsum_from_end(x; dim: int)",
                 .infer = sums_infer,
                 .cpu = sums_cpu<true>,
                 .rule = sums_rule,
                 .backward = sums_backward<true>,
                 .about = "The sum of all elements from each one on along dim."});

}  // namespace

Tensor prod(const Tensor& x, std::int64_t dim, bool keepdim) {
  return call_one(prod_op, {x},
                  Attributes().add(operands::front_dim("prod", dim, x.dims())).add(keepdim));
}

Tensor cumsum(const Tensor& x, std::int64_t dim) {
  return call_one(cumsum_op, {x}, Attributes().add(operands::front_dim("cumsum", dim, x.dims())));
}

}  // namespace tessera::ops
