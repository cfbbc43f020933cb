// linear and its two gradients as products of blocks, within a FeatureBlocksScope: each block is
// computed as on a rank that has only this one.
module;
#include <fmt/format.h>

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

using rules::strategy;

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

void multiply_in_blocks(Workspace& w, const kernels::Gemm& shape, const kernels::GemmBlocks& blocks,
                        const Tensor& a, const Tensor& b, const Tensor& out) {
  const auto as = [&]<class T>(T) {
    kernels::gemm_in_blocks(w, shape, blocks, pointer<T>(w, a), pointer<T>(w, b),
                            pointer<T>(w, out));
  };
  out.dtype() == DType::f64 ? as(double{}) : as(float{});
}

/// y [rows, n] = x [rows, k] times op(weight).
void rows_times(Workspace& w, const Call& call, bool weight_transposed, const Tensor& y) {
  const auto blocks = call.args<BlocksArgs>();
  const Matrix rows = rows_operand(w, call.in[0]);
  const Matrix columns = matrix_operand(w, call.in[1]);
  const std::int64_t n = y.shape().back();
  kernels::Gemm shape;
  shape.k = call.in[0].shape().back();
  shape.m = n == 0 ? 0 : y.numel() / n;
  shape.n = n;
  shape.lda = rows.stride;
  shape.ldb = columns.stride;
  shape.trans_b = weight_transposed != columns.transposed;
  shape.ldc = n;
  multiply_in_blocks(w, shape,
                     weight_transposed
                         ? kernels::GemmBlocks{.columns = blocks.out, .sum = blocks.in}
                         : kernels::GemmBlocks{.columns = blocks.in, .sum = blocks.out},
                     rows.tensor, columns.tensor, y);
}

void infer_rows(const Call& call, ResultShapes& out, int results) {
  check_one_type(call);
  check_dims(call, 1, 2);
  const Dims& weight = call.in[1].shape();
  Dims shape = call.in[0].shape();
  if (shape.empty() || shape.back() != weight[1 - results]) {
    refuse(call, {.wrong = fmt::format("the last dim of {} does not match weight",
                                       call.op.operands[0].name),
                  .expected = fmt::format("{}", weight[1 - results]),
                  .got = fmt::format("{} x {}", to_string(shape), to_string(weight))});
  }
  check_blocks(call, weight[0], weight[1]);
  shape.back() = weight[results];
  out.push_back({shape, call.in[0].dtype()});
}

void rows_rule(const RuleContext& context, Strategies& strategies, int results) {
  const int last = context.call.in[0].dims() - 1;
  for (int d = 0; d < last; ++d) {
    strategies.push_back(strategy({Shard(d), Replicate()}, {Shard(d)}));
  }
  const auto blocks = context.call.args<BlocksArgs>();
  // Ranks have whole blocks only.
  const auto shared = [&](std::size_t operand, int dim, std::int64_t count) {
    return count % context.shards_of(operand, dim) == 0;
  };
  if (shared(1, results, results == 0 ? blocks.out : blocks.in)) {
    strategies.push_back(strategy({Replicate(), Shard(results)}, {Shard(last)}));
  }
  const std::int64_t summed = results == 0 ? blocks.in : blocks.out;
  if (shared(0, last, summed) && shared(1, 1 - results, summed)) {
    strategies.push_back(strategy({Shard(last), Shard(1 - results)}, {Partial()}));
  }
}

// linear

void linear_infer(const Call& call, ResultShapes& out) { infer_rows(call, out, 0); }
void linear_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  rows_times(w, call, true, out[0]);
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
    .about = "x times weight transposed, by blocks of weight whose products are added along a "
             "tree: the same bits for every number of ranks that share it.",
});

// Its gradient with respect to x.

void grad_input_infer(const Call& call, ResultShapes& out) { infer_rows(call, out, 1); }
void grad_input_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  rows_times(w, call, false, out[0]);
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
    .about = "The gradient of linear_in_blocks with respect to x.",
});

// Its gradient with respect to weight: the sum over rows is one, as all ranks have all rows.

void grad_weight_infer(const Call& call, ResultShapes& out) {
  check_one_type(call);
  const Dims& dy = call.in[0].shape();
  const Dims& x = call.in[1].shape();
  if (dy.empty() || x.empty() || without_last(dy) != without_last(x)) {
    refuse(call, {.wrong = "dy and x have different rows",
                  .got = fmt::format("{} and {}", to_string(dy), to_string(x))});
  }
  check_blocks(call, dy.back(), x.back());
  out.push_back({Dims{dy.back(), x.back()}, call.in[0].dtype()});
}

void grad_weight_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const auto blocks = call.args<BlocksArgs>();
  const Matrix left = rows_operand(w, call.in[0]);
  const Matrix right = rows_operand(w, call.in[1]);
  kernels::Gemm shape;
  shape.trans_a = true;
  shape.m = out[0].shape()[0];
  shape.n = out[0].shape()[1];
  shape.k = without_last(call.in[0].shape()).product();
  shape.lda = left.stride;
  shape.ldb = right.stride;
  shape.ldc = shape.n;
  multiply_in_blocks(w, shape, {.rows = blocks.out, .columns = blocks.in}, left.tensor,
                     right.tensor, out[0]);
}

void grad_weight_rule(const RuleContext& context, Strategies& strategies) {
  const int last = context.call.in[0].dims() - 1;
  for (int d = 0; d < last; ++d) {
    strategies.push_back(strategy({Shard(d), Shard(d)}, {Partial()}));
  }
  const auto blocks = context.call.args<BlocksArgs>();
  if (blocks.out % context.shards_of(0, last) == 0) {
    strategies.push_back(strategy({Shard(last), Replicate()}, {Shard(0)}));
  }
  if (blocks.in % context.shards_of(1, last) == 0) {
    strategies.push_back(strategy({Replicate(), Shard(last)}, {Shard(1)}));
  }
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

std::int64_t& blocks_slot() {
  thread_local std::int64_t blocks = 1;
  return blocks;
}

}  // namespace

FeatureBlocksScope::FeatureBlocksScope(std::int64_t blocks) : before_(blocks_slot()) {
  require(blocks >= 1 && (blocks & (blocks - 1)) == 0,
          "FeatureBlocksScope: the number is no power of two");
  blocks_slot() = blocks;
}
FeatureBlocksScope::~FeatureBlocksScope() { blocks_slot() = before_; }
std::int64_t feature_blocks() { return blocks_slot(); }

Tensor linear_in_blocks(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const std::int64_t blocks = feature_blocks();
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
