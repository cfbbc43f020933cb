// linear and its two gradients for operands that are 8-bit floating codes with factors.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "matmul/kernels/gemm.hpp"
#include "matmul/kernels/scaled.hpp"
#include "pointwise/kernels/pointwise.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using rules::strategy;

// Operands: codes a, factors of a, codes b, factors of b; `first` is that of a, as before them may
// be a tensor that the product is added to. A value is a code times its factor. Factors have the
// dims of their codes: extent n is one for each, a smaller one k is one for each of k blocks of
// ceil(n / k); no dims is one number.

struct ScaledArgs {
  DType dtype;
};

bool is_code(const Tensor& x) { return x.dtype() == DType::f8e4m3 || x.dtype() == DType::f8e5m2; }

/// Errors: operand `of` has no codes, or operand `of` + 1 is not their factors.
void check_factor(const Call& call, std::size_t of) {
  const Dims& codes = call.in[of].shape();
  const Dims& factor = call.in[of + 1].shape();
  bool fits = is_code(call.in[of]) && call.in[of + 1].dtype() == DType::f32 &&
              (factor.empty() || factor.size() == codes.size());
  for (int d = 0; fits && d < factor.size(); ++d) {
    fits = factor[d] <= std::max<std::int64_t>(codes[d], 1) && (factor[d] > 0 || codes[d] == 0);
  }
  if (!fits) {
    refuse(call,
           {.wrong = fmt::format("{} and its factors do not fit", call.op.operands[of].name),
            .expected = "8-bit floating codes, and f32 with their dims, each as long or "
                        "shorter",
            .got = fmt::format("{} {} and {} {}", name_of(call.in[of].dtype()), to_string(codes),
                               name_of(call.in[of + 1].dtype()), to_string(factor))});
  }
}

/// Errors: a type that is none of results.
void check_result_type(const Call& call, DType dtype) {
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16 && dtype != DType::f64) {
    refuse_type(call.op.name, dtype);
  }
}

/// The codes' shape with extent 1 in all dims but [first, last).
Dims shape_along(const Dims& codes, int first, int last) {
  Dims shape = Dims::filled(codes.size(), 1);
  for (int d = first; d < last; ++d) {
    shape[d] = codes[d];
  }
  return shape;
}

/// The factors as one for each element along dims [first, last), contiguous; the other dims have
/// one.
Tensor factors_along(Workspace& w, const Tensor& factor, const Dims& codes, int first, int last) {
  const Tensor of = contiguous_operand(w, factor);
  const Tensor all = temporary(w, shape_along(codes, first, last), DType::f32);
  if (!w.counts()) {
    kernels::repeat_factors(codes.size(), pointer<float>(of),
                            factor.dims() == 0 ? nullptr : factor.shape().begin(),
                            all.shape().begin(), codes.begin(), pointer<float>(all));
  }
  return all;
}

/// Whether dims [first, last) have several factors.
bool varies(const Tensor& factor, int first, int last) {
  for (int d = first; factor.dims() > 0 && d < last; ++d) {
    if (factor.shape()[d] > 1) {
      return true;
    }
  }
  return false;
}

/// An operand as a matrix in f32, with the dims that are summed over and those that stay.
struct Side {
  Tensor values;   // contiguous
  Tensor factors;  // one for each row, or column, of the result
};

/// Where dims [sum_first, sum_last) have several factors, the values are multiplied by them.
Side side_of(Workspace& w, const Call& call, std::size_t at, int sum_first, int sum_last) {
  const Tensor codes = contiguous_operand(w, call.in[at]);
  const Tensor& factor = call.in[at + 1];
  const Dims& shape = codes.shape();
  const Tensor values = temporary(w, shape, DType::f32);
  if (!w.counts()) {
    kernels::cast(codes.dtype(), DType::f32, codes.numel(), pointer<void>(codes),
                  pointer<void>(values));
  }
  const int kept_first = sum_first == 0 ? sum_last : 0;
  const int kept_last = sum_first == 0 ? shape.size() : sum_first;
  if (!varies(factor, sum_first, sum_last)) {
    return {values, factors_along(w, factor, shape, kept_first, kept_last)};
  }
  const Tensor each = factors_along(w, factor, shape, 0, shape.size());
  const Tensor ones = temporary(w, shape_along(shape, kept_first, kept_last), DType::f32);
  if (!w.counts()) {
    kernels::multiply(values.numel(), pointer<float>(values), pointer<float>(each));
    kernels::fill(DType::f32, ones.numel(), 1, pointer<void>(ones));
  }
  return {values, ones};
}

/// [m, n] in `result`'s shape: the product in f32, times the factors of rows and columns.
Tensor scaled_product(Workspace& w, const Call& call, const kernels::Gemm& shape, const Side& a,
                      const Side& b, const Tensor& result) {
  const Tensor product = temporary(w, result.shape(), DType::f32);
  multiply(w, call, shape, a.values, b.values, product);
  if (!w.counts()) {
    kernels::scale_product(shape.m, shape.n, pointer<float>(product), pointer<float>(a.factors),
                           pointer<float>(b.factors));
  }
  return product;
}

/// The shape of a product. Errors: operands that do not fit each other.
using ShapeOf = Dims (*)(const Call& call, std::size_t first);
/// A product in f32, contiguous, with the shape of `result`.
using ProductOf = Tensor (*)(Workspace& w, const Call& call, std::size_t first,
                             const Tensor& result);

template <ShapeOf shape_of>
void infer(const Call& call, ResultShapes& out) {
  const DType dtype = call.args<ScaledArgs>().dtype;
  check_factor(call, 0);
  check_factor(call, 2);
  check_result_type(call, dtype);
  out.push_back({shape_of(call, 0), dtype});
}

/// Rounds the product.
template <ProductOf product_of>
void product_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor product = product_of(w, call, 0, out[0]);
  if (!w.counts()) {
    convert_into(out[0], product);
  }
}

/// Of operators that add the product to operand 0.
template <ShapeOf shape_of>
void sum_infer(const Call& call, ResultShapes& out) {
  const Tensor& sum = call.in[0];
  check_factor(call, 1);
  check_factor(call, 3);
  check_result_type(call, sum.dtype());
  check_shape(call, 0, shape_of(call, 1));
  out.push_back({sum.shape(), sum.dtype()});
}

/// Adds the product in f32 (f64, where the sum has it), and rounds the sum once.
template <ShapeOf shape_of, ProductOf product_of>
void sum_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  ResultShapes checked;
  sum_infer<shape_of>(call, checked);
  update_contiguous(w, out[0], [&](const Tensor& whole) {
    const Tensor product = product_of(w, call, 1, whole);
    const Tensor term = converted_operand(w, product, summed_type(whole.dtype()));
    add_into(w, whole, [&](const Tensor& sums) {
      kernels::add(sums.dtype(), sums.numel(), pointer<void>(sums), pointer<void>(term), 1,
                   pointer<void>(sums));
    });
  });
}

/// Codes that are sharded along `dim`, and their factors: sharded too, or the only one.
struct CodePlacements {
  Placement codes;
  Placement factor;
  bool fits = true;  // no rank's part cuts a block
};

CodePlacements cut(const RuleContext& context, std::size_t at, int dim) {
  const Tensor& factor = context.call.in[at + 1];
  if (factor.dims() == 0 || (factor.shape()[dim] == 1 && context.axis_size > 1)) {
    return {Shard(dim), Replicate()};
  }
  const std::int64_t extent = context.call.in[at].shape()[dim];
  const std::int64_t factors = factor.shape()[dim];
  const std::int64_t shards = context.shards_of(at, dim);
  const bool whole_blocks = factors > 0 && extent % factors == 0 && factors % shards == 0;
  return {Shard(dim), Shard(dim), factors == extent || factors == shards || whole_blocks};
}

CodePlacements no_cut() { return {Replicate(), Replicate()}; }

/// What the product is added to has the result's placement.
void add_strategy(Strategies& strategies, std::size_t first, const CodePlacements& a,
                  const CodePlacements& b, Placement result) {
  if (!a.fits || !b.fits) {
    return;
  }
  strategies.push_back(first == 0
                           ? strategy({a.codes, a.factor, b.codes, b.factor}, {result})
                           : strategy({result, a.codes, a.factor, b.codes, b.factor}, {result}));
}

// a [..., k] times b, whose dim `results` becomes the last one and whose other is summed over.

template <std::size_t first, int results>
void rows_rule(const RuleContext& context, Strategies& strategies) {
  const int last = context.call.in[first].dims() - 1;
  for (int d = 0; d < last; ++d) {
    add_strategy(strategies, first, cut(context, first, d), no_cut(), Shard(d));
  }
  add_strategy(strategies, first, no_cut(), cut(context, first + 2, results), Shard(last));
  add_strategy(strategies, first, cut(context, first, last), cut(context, first + 2, 1 - results),
               Partial());
}

template <int results>
Dims rows_shape(const Call& call, std::size_t first) {
  check_dims(call, first + 2, 2);
  Dims shape = call.in[first].shape();
  const Dims& b = call.in[first + 2].shape();
  if (shape.empty() || shape.back() != b[1 - results]) {
    refuse(call,
           {.wrong = fmt::format("the last dim of {} does not match {}",
                                 call.op.operands[first].name, call.op.operands[first + 2].name),
            .got = fmt::format("{} x {}", to_string(shape), to_string(b))});
  }
  shape.back() = b[results];
  return shape;
}

template <int results>
Tensor rows_product(Workspace& w, const Call& call, std::size_t first, const Tensor& result) {
  const int last = result.dims() - 1;
  const Dims& weight = call.in[first + 2].shape();
  kernels::Gemm shape;
  shape.m = without_last(result.shape()).product();
  shape.n = weight[results];
  shape.k = weight[1 - results];
  shape.lda = shape.k;
  shape.ldb = weight[1];
  shape.trans_b = results == 0;
  shape.ldc = shape.n;
  const Side x = side_of(w, call, first, last, last + 1);
  const Side weights = side_of(w, call, first + 2, 1 - results, 2 - results);
  return scaled_product(w, call, shape, x, weights, result);
}

const Op& scaled_linear_op = register_op<ScaledArgs>({
    .schema = "scaled_linear(x, x_factor, weight, weight_factor)",
    .infer = infer<rows_shape<0>>,
    .cpu = in_workspace<product_cpu<rows_product<0>>>,
    .workspace = workspace_of<product_cpu<rows_product<0>>>,
    .rule = rows_rule<0, 0>,
    .flops = last_dim_flops<0>,
    .moves_elements = true,
    .about = "linear of 8-bit floating codes: the product is summed in f32, multiplied by the "
             "factors, and rounded.",
});

const Op& grad_input_op = register_op<ScaledArgs>({
    .schema = "scaled_linear_grad_input(dy, dy_factor, weight, weight_factor)",
    .infer = infer<rows_shape<1>>,
    .cpu = in_workspace<product_cpu<rows_product<1>>>,
    .workspace = workspace_of<product_cpu<rows_product<1>>>,
    .rule = rows_rule<0, 1>,
    .flops = last_dim_flops<0>,
    .moves_elements = true,
    .about = "The gradient of scaled_linear with respect to x, of codes of dy.",
});

/// A program's instruction that writes into its operand has no result.
double grad_input_sum_flops(const Call& call, std::span<const Tensor>) {
  return product_flops(call.in[0].numel(), call.in[1].shape().back());
}

const Op& grad_input_sum_op = register_op({
    .schema = "scaled_linear_grad_input_(sum, dy, dy_factor, weight, weight_factor)",
    .infer = sum_infer<rows_shape<1>>,
    .cpu = in_workspace<sum_cpu<rows_shape<1>, rows_product<1>>>,
    .workspace = workspace_of<sum_cpu<rows_shape<1>, rows_product<1>>>,
    .rule = rows_rule<1, 1>,
    .flops = grad_input_sum_flops,
    .in_place = true,
    .moves_elements = true,
    .about = "Adds the gradient of scaled_linear with respect to x to a tensor, in the product "
             "itself.",
});

// dy [..., out] transposed times x [..., in], over all rows.

Dims grad_weight_shape(const Call& call, std::size_t first) {
  const Dims& dy = call.in[first].shape();
  const Dims& x = call.in[first + 2].shape();
  if (dy.empty() || x.empty() || without_last(dy) != without_last(x)) {
    refuse(call, {.wrong = "dy and x have different rows",
                  .got = fmt::format("{} and {}", to_string(dy), to_string(x))});
  }
  return {dy.back(), x.back()};
}

Tensor grad_weight_product(Workspace& w, const Call& call, std::size_t first,
                           const Tensor& result) {
  const Dims& dy = call.in[first].shape();
  const int last = dy.size() - 1;
  kernels::Gemm shape;
  shape.trans_a = true;
  shape.m = result.shape()[0];
  shape.n = result.shape()[1];
  shape.k = without_last(dy).product();
  shape.lda = shape.m;
  shape.ldb = shape.n;
  shape.ldc = shape.n;
  const Side left = side_of(w, call, first, 0, last);
  const Side right = side_of(w, call, first + 2, 0, last);
  return scaled_product(w, call, shape, left, right, result);
}

template <std::size_t first>
void grad_weight_rule(const RuleContext& context, Strategies& strategies) {
  const int last = context.call.in[first].dims() - 1;
  for (int d = 0; d < last; ++d) {
    add_strategy(strategies, first, cut(context, first, d), cut(context, first + 2, d), Partial());
  }
  add_strategy(strategies, first, cut(context, first, last), no_cut(), Shard(0));
  add_strategy(strategies, first, no_cut(), cut(context, first + 2, last), Shard(1));
}

double grad_weight_flops(const Call& call, std::span<const Tensor> out) {
  return product_flops(out[0].numel(), without_last(call.in[0].shape()).product());
}

const Op& grad_weight_op = register_op<ScaledArgs>({
    .schema = "scaled_linear_grad_weight(dy, dy_factor, x, x_factor)",
    .infer = infer<grad_weight_shape>,
    .cpu = in_workspace<product_cpu<grad_weight_product>>,
    .workspace = workspace_of<product_cpu<grad_weight_product>>,
    .rule = grad_weight_rule<0>,
    .flops = grad_weight_flops,
    .moves_elements = true,
    .about = "The gradient of scaled_linear with respect to weight, of codes of dy.",
});

double grad_weight_sum_flops(const Call& call, std::span<const Tensor>) {
  return product_flops(call.in[0].numel(), without_last(call.in[1].shape()).product());
}

const Op& grad_weight_sum_op = register_op({
    .schema = "scaled_linear_grad_weight_(sum, dy, dy_factor, x, x_factor)",
    .infer = sum_infer<grad_weight_shape>,
    .cpu = in_workspace<sum_cpu<grad_weight_shape, grad_weight_product>>,
    .workspace = workspace_of<sum_cpu<grad_weight_shape, grad_weight_product>>,
    .rule = grad_weight_rule<1>,
    .flops = grad_weight_sum_flops,
    .in_place = true,
    .moves_elements = true,
    .about = "Adds the gradient of scaled_linear with respect to weight to a tensor, in the "
             "product itself.",
});

}  // namespace
}  // namespace tessera::ops
