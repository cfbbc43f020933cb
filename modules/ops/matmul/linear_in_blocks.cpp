// linear and its two gradients as products of blocks, with StepContext::feature_blocks: each block
// is computed as on a rank that has only this one.
module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "matmul/kernels/gemm_blocks.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :linear_call;

namespace tessera::ops {
namespace {

/// Blocks of weight [out, in].
struct BlocksArgs {
  std::int64_t out;
  std::int64_t in;
};

void check_blocks(const Call& call, std::int64_t out, std::int64_t in) {
  const auto blocks = call.args<BlocksArgs>();
  if (blocks.out < 1 || blocks.in < 1 || out % blocks.out != 0 || in % blocks.in != 0) {
    refuse(call, {.wrong = "the blocks do not divide the dims of weight",
                  .expected = fmt::format("divisors of {} and {}", out, in),
                  .got = fmt::format("{} and {}", blocks.out, blocks.in)});
  }
  const DType dtype = call.in[0].dtype();
  if (dtype != DType::f32 && dtype != DType::f64) {
    refuse(call,
           {.wrong = "sums over blocks of 16 bits are rounded at other places in every layout",
            .expected = "f32 or f64",
            .got = std::string(name_of(dtype))});
  }
}

/// The blocks of a rank's part of weight, which has dim 0 sharded `out_parts` times, dim 1
/// `in_parts` times.
Attributes of_parts(const LocalContext& context, std::int64_t out_parts, std::int64_t in_parts) {
  const auto blocks = context.call.args<BlocksArgs>();
  if (blocks.out % out_parts != 0 || blocks.in % in_parts != 0) {
    refuse(context.call,
           {.wrong = "a rank has no whole blocks of weight",
            .expected = fmt::format("{} and {} blocks or divisors", blocks.out, blocks.in),
            .got = fmt::format("{} and {} ranks", out_parts, in_parts),
            .advice = "more blocks, or features that they divide"});
  }
  return BlocksArgs{.out = blocks.out / out_parts, .in = blocks.in / in_parts};
}

/// How many ranks share a dim, which blocks divide.
std::int64_t parts_of(const SpecHandle& spec, int dim) {
  const std::int64_t whole = spec->shape[dim];
  return whole == 0 ? 1 : whole / local_shape(*spec)[dim];
}

template <std::size_t weight>
Attributes localize(const LocalContext& context) {
  return of_parts(context, parts_of(context.in[weight], 0), parts_of(context.in[weight], 1));
}

/// The gradient of weight is a result.
Attributes localize_weight(const LocalContext& context) {
  return of_parts(context, parts_of(context.out[0], 0), parts_of(context.out[0], 1));
}

void multiply_in_blocks(Workspace& w, const Product& product, const kernels::GemmBlocks& blocks,
                        const Tensor& out) {
  const auto as = [&]<class T>(T) {
    kernels::gemm_in_blocks(w, product.shape, blocks, pointer<T>(w, product.a.tensor),
                            pointer<T>(w, product.b.tensor), pointer<T>(w, out));
  };
  out.dtype() == DType::f64 ? as(double{}) : as(float{});
}

/// y [rows, n] = x [rows, k] times op(weight).
void multiply_rows(Workspace& w, const Call& call, bool weight_transposed, const Tensor& y) {
  const auto blocks = call.args<BlocksArgs>();
  multiply_in_blocks(w, rows_times(w, call.in[0], call.in[1], weight_transposed, y),
                     weight_transposed
                         ? kernels::GemmBlocks{.columns = blocks.out, .sum = blocks.in}
                         : kernels::GemmBlocks{.columns = blocks.in, .sum = blocks.out},
                     y);
}

void infer_rows(const Call& call, ResultShapes& out, int results) {
  const Dims shape = rows_shape(call, results);
  check_blocks(call, call.in[1].shape()[0], call.in[1].shape()[1]);
  out.push_back({shape, call.in[0].dtype()});
}

/// Ranks have whole blocks only.
bool divides(const RuleContext& context, std::size_t operand, int dim, std::int64_t blocks) {
  return blocks % context.shards_of(operand, dim) == 0;
}

void rows_rule(const RuleContext& context, Strategies& strategies, int results) {
  const auto blocks = context.call.args<BlocksArgs>();
  const std::int64_t summed = results == 0 ? blocks.in : blocks.out;
  const std::int64_t kept = results == 0 ? blocks.out : blocks.in;
  rows_strategies(context, strategies, results, [&](std::size_t operand, int dim) {
    const bool is_summed = operand == 0 || dim != results;
    return divides(context, operand, dim, is_summed ? summed : kept);
  });
}

// linear

void linear_infer(const Call& call, ResultShapes& out) { infer_rows(call, out, 0); }
void linear_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  multiply_rows(w, call, true, out[0]);
}
void linear_rule(const RuleContext& context, Strategies& strategies) {
  rows_rule(context, strategies, 0);
}
void linear_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out);

const Op& linear_op = register_op<BlocksArgs>({
    .schema = "linear_in_blocks(x, weight)",
    .infer = linear_infer,
    .cpu = in_workspace<linear_cpu>,
    .workspace = workspace_of<linear_cpu>,
    .rule = linear_rule,
    .localize = localize<1>,
    .flops = last_dim_flops<0>,
    .backward = linear_backward,
    .saves_inputs = saves_all,
    .gradients_apart = true,
    .same_bits_by_features = true,
    .about = "x times weight transposed, by blocks of weight whose products are added along a "
             "tree: the same bits for every number of ranks that share it.",
});

// Its gradient with respect to x.

void grad_input_infer(const Call& call, ResultShapes& out) { infer_rows(call, out, 1); }
void grad_input_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  multiply_rows(w, call, false, out[0]);
}
void grad_input_rule(const RuleContext& context, Strategies& strategies) {
  rows_rule(context, strategies, 1);
}
void grad_input_backward(const BackwardContext& context, std::span<const Tensor> grads,
                         std::span<Tensor> out);

const Op& grad_input_op = register_op<BlocksArgs>({
    .schema = "linear_in_blocks_grad_input(dy, weight)",
    .infer = grad_input_infer,
    .cpu = in_workspace<grad_input_cpu>,
    .workspace = workspace_of<grad_input_cpu>,
    .rule = grad_input_rule,
    .localize = localize<1>,
    .flops = last_dim_flops<0>,
    .backward = grad_input_backward,
    .saves_inputs = saves_all,
    .same_bits_by_features = true,
    .about = "The gradient of linear_in_blocks with respect to x.",
});

// Its gradient with respect to weight: the sum over rows is one, as all ranks have all rows.

void grad_weight_infer(const Call& call, ResultShapes& out) {
  const Dims shape = columns_shape(call);
  check_blocks(call, shape[0], shape[1]);
  out.push_back({shape, call.in[0].dtype()});
}

void grad_weight_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const auto blocks = call.args<BlocksArgs>();
  multiply_in_blocks(w, columns_times(w, call.in[0], call.in[1], out[0]),
                     {.rows = blocks.out, .columns = blocks.in}, out[0]);
}

void grad_weight_rule(const RuleContext& context, Strategies& strategies) {
  const auto blocks = context.call.args<BlocksArgs>();
  columns_strategies(context, strategies, [&](std::size_t operand, int dim) {
    return divides(context, operand, dim, operand == 0 ? blocks.out : blocks.in);
  });
}

void grad_weight_backward(const BackwardContext& context, std::span<const Tensor> grads,
                          std::span<Tensor> out);

double grad_weight_flops(const Call& call, std::span<const Tensor> out) {
  return product_flops(out[0].numel(), without_last(call.in[0].shape()).product());
}

const Op& grad_weight_op = register_op<BlocksArgs>({
    .schema = "linear_in_blocks_grad_weight(dy, x)",
    .infer = grad_weight_infer,
    .cpu = in_workspace<grad_weight_cpu>,
    .workspace = workspace_of<grad_weight_cpu>,
    .rule = grad_weight_rule,
    .localize = localize_weight,
    .flops = grad_weight_flops,
    .backward = grad_weight_backward,
    .saves_inputs = saves_all,
    .same_bits_by_features = true,
    .about = "The gradient of linear_in_blocks with respect to weight.",
});

// The three are one trilinear form: each is the gradient of the others.

void linear_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out) {
  if (context.needs(0)) {
    out[0] = call_one(grad_input_op, {grads[0], context.in[1]}, context.attributes);
  }
  if (context.needs(1)) {
    out[1] = call_one(grad_weight_op, {grads[0], context.in[0]}, context.attributes);
  }
}

void grad_input_backward(const BackwardContext& context, std::span<const Tensor> grads,
                         std::span<Tensor> out) {
  if (context.needs(0)) {
    out[0] = call_one(linear_op, {grads[0], context.in[1]}, context.attributes);
  }
  if (context.needs(1)) {
    out[1] = call_one(grad_weight_op, {context.in[0], grads[0]}, context.attributes);
  }
}

void grad_weight_backward(const BackwardContext& context, std::span<const Tensor> grads,
                          std::span<Tensor> out) {
  if (context.needs(0)) {
    out[0] = call_one(linear_op, {context.in[1], grads[0]}, context.attributes);
  }
  if (context.needs(1)) {
    out[1] = call_one(grad_input_op, {context.in[0], grads[0]}, context.attributes);
  }
}

}  // namespace

Tensor linear_in_blocks(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const std::int64_t blocks = step_context().feature_blocks;
  const auto along = [&](int dim) {
    return weight.dims() == 2 && weight.shape()[dim] % blocks == 0 ? blocks : 1;
  };
  Tensor y = call_one(linear_op, {x, weight}, BlocksArgs{.out = along(0), .in = along(1)});
  if (!bias) {
    return y;
  }
  for (int axis = 0; y.is_distributed() && axis < y.layout().ndim(); ++axis) {
    if (y.layout().placement(axis).is_partial() && y.layout().mesh().axis_size(axis) > 1) {
      fail({.thing = "linear",
            .wrong = "a bias would be added within the sum over blocks, where one rank adds it "
                     "after the sum",
            .advice = "leave such layers whole where every layout must give the same bits"});
    }
  }
  return add(y, bias);
}

}  // namespace tessera::ops
