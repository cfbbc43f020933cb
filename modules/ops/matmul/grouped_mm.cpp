// Products of groups of rows, each with a matrix of its own: grouped_mm, grouped_outer. Which rows
// a group has is in a tensor, so shapes do not depend on it.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <tessera/visit_dtype.hpp>  // what visit_floating is made of

#include "matmul/kernels/grouped_gemm.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using rules::strategy;

struct GroupedArgs {
  std::int64_t expected;
};

/// The number of rows that an account takes as used.
std::int64_t expected_rows(const Call& call) {
  const std::int64_t rows = call.in[0].shape()[0];
  const std::int64_t expected = call.args<GroupedArgs>().expected;
  return expected < 0 ? rows : std::min(expected, rows);
}

/// The counts for a kernel. Errors: they are not those of groups of `rows` rows.
const std::int64_t* checked_counts(const Call& call, const Tensor& counts) {
  const auto* const count = pointer<const std::int64_t>(counts);
  std::int64_t left = call.in[0].shape()[0];
  for (std::int64_t g = 0; g < counts.numel(); ++g) {
    if (count[g] < 0 || count[g] > left) {
      refuse(call, {.wrong = fmt::format("group {} does not fit into the rows", g),
                    .expected = fmt::format("0 to {} rows", left),
                    .got = fmt::format("{}", count[g])});
    }
    left -= count[g];
  }
  return count;
}

void check_operands(const Call& call) {
  check_dims(call, 0, 2);
  check_dims(call, 2, 1);
  check_type(call, 2, DType::i64);
  if (call.in[1].dtype() != call.in[0].dtype() || !is_floating(call.in[0].dtype())) {
    refuse(call, {.wrong = "the operands must be of one floating type",
                  .got = fmt::format("{} and {}", name_of(call.in[0].dtype()),
                                     name_of(call.in[1].dtype()))});
  }
}

// grouped_mm

void mm_infer(const Call& call, ResultShapes& out) {
  check_operands(call);
  check_dims(call, 1, 3);
  const Dims& x = call.in[0].shape();
  const Dims& weight = call.in[1].shape();
  if (x[1] != weight[1] || call.in[2].shape()[0] != weight[0]) {
    refuse(call, {.wrong = "the shapes do not match",
                  .expected = "x [rows, k], weight [groups, k, n], counts [groups]",
                  .got = fmt::format("{}, {}, {}", to_string(x), to_string(weight),
                                     to_string(call.in[2].shape()))});
  }
  out.push_back({Dims{x[0], weight[2]}, call.in[0].dtype()});
}

void mm_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Matrix x = rows_operand(w, call.in[0]);
  const Matrix weight = matrix_operand(w, call.in[1]);
  const Tensor counts = contiguous_operand(w, call.in[2]);
  const Dims& shape = call.in[1].shape();
  const kernels::GroupedGemm product{.groups = shape[0],
                                     .rows = out[0].shape()[0],
                                     .n = shape[2],
                                     .k = shape[1],
                                     .trans_b = weight.transposed,
                                     .lda = x.stride,
                                     .ldb = weight.stride,
                                     .stride_b = weight.tensor.strides()[0]};
  const std::int64_t* const count = w.counts() ? nullptr : checked_counts(call, counts);
  visit_floating(out[0].dtype(), call.op.name, [&]<class T>(T) {
    kernels::grouped_gemm(w, product, count, pointer<T>(w, x.tensor), pointer<T>(w, weight.tensor),
                          pointer<T>(w, out[0]));
  });
}

void mm_rule(const RuleContext& context, Strategies& strategies) {
  strategies.push_back(strategy({Replicate(), Shard(2), Replicate()}, {Shard(1)}));
  strategies.push_back(strategy({Shard(1), Shard(1), Replicate()}, {Partial()}));
  pass_partial(context, strategies, 0b001);
  pass_partial(context, strategies, 0b010);
}

double mm_flops(const Call& call, std::span<const Tensor> out) {
  return product_flops(expected_rows(call) * out[0].shape()[1], call.in[0].shape()[1]);
}

void mm_backward(const BackwardContext& context, std::span<const Tensor> grads,
                 std::span<Tensor> out);

const Op& grouped_mm_op = register_op<GroupedArgs>({
    .schema = "grouped_mm(x, weight, counts)",
    .infer = mm_infer,
    .cpu = in_workspace<mm_cpu>,
    .workspace = workspace_of<mm_cpu>,
    .rule = mm_rule,
    .flops = mm_flops,
    .backward = mm_backward,
    .saves_inputs = saves_all,
    .gradients_apart = true,
    .about = "The product of each group of rows with the group's matrix; 0 in rows of no group.",
});

// grouped_outer

void outer_infer(const Call& call, ResultShapes& out) {
  check_operands(call);
  check_dims(call, 1, 2);
  const Dims& a = call.in[0].shape();
  const Dims& b = call.in[1].shape();
  if (a[0] != b[0]) {
    refuse(call, {.wrong = "the operands have different numbers of rows",
                  .got = fmt::format("{} and {}", to_string(a), to_string(b))});
  }
  out.push_back({Dims{call.in[2].shape()[0], a[1], b[1]}, call.in[0].dtype()});
}

void outer_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Matrix a = rows_operand(w, call.in[0]);
  const Matrix b = rows_operand(w, call.in[1]);
  const Tensor counts = contiguous_operand(w, call.in[2]);
  const Dims& shape = out[0].shape();
  const kernels::GroupedOuter product{.groups = shape[0],
                                      .rows = call.in[0].shape()[0],
                                      .m = shape[1],
                                      .n = shape[2],
                                      .lda = a.stride,
                                      .ldb = b.stride};
  const std::int64_t* const count = w.counts() ? nullptr : checked_counts(call, counts);
  visit_floating(out[0].dtype(), call.op.name, [&]<class T>(T) {
    kernels::grouped_outer(w, product, count, pointer<T>(w, a.tensor), pointer<T>(w, b.tensor),
                           pointer<T>(w, out[0]));
  });
}

void outer_rule(const RuleContext& context, Strategies& strategies) {
  strategies.push_back(strategy({Shard(1), Replicate(), Replicate()}, {Shard(1)}));
  strategies.push_back(strategy({Replicate(), Shard(1), Replicate()}, {Shard(2)}));
  pass_partial(context, strategies, 0b001);
  pass_partial(context, strategies, 0b010);
}

double outer_flops(const Call& call, std::span<const Tensor> out) {
  return product_flops(expected_rows(call) * out[0].shape()[1], out[0].shape()[2]);
}

void outer_backward(const BackwardContext& context, std::span<const Tensor> grads,
                    std::span<Tensor> out) {
  const std::int64_t expected = context.args<GroupedArgs>().expected;
  if (context.needs(0)) {
    out[0] = grouped_mm(context.in[1], transpose(grads[0], 1, 2), context.in[2], expected);
  }
  if (context.needs(1)) {
    out[1] = grouped_mm(context.in[0], grads[0], context.in[2], expected);
  }
}

const Op& grouped_outer_op = register_op<GroupedArgs>({
    .schema = "grouped_outer(a, b, counts)",
    .infer = outer_infer,
    .cpu = in_workspace<outer_cpu>,
    .workspace = workspace_of<outer_cpu>,
    .rule = outer_rule,
    .flops = outer_flops,
    .backward = outer_backward,
    .saves_inputs = saves_all,
    .about = "For each group of rows the product of a, transposed, and b.",
});

void mm_backward(const BackwardContext& context, std::span<const Tensor> grads,
                 std::span<Tensor> out) {
  const std::int64_t expected = context.args<GroupedArgs>().expected;
  if (context.needs(0)) {
    out[0] = grouped_mm(grads[0], transpose(context.in[1], 1, 2), context.in[2], expected);
  }
  if (context.needs(1)) {
    out[1] = grouped_outer(context.in[0], grads[0], context.in[2], expected);
  }
}

}  // namespace

Tensor grouped_mm(const Tensor& x, const Tensor& weight, const Tensor& counts,
                  std::int64_t expected) {
  return call_one(grouped_mm_op, {x, weight, counts}, GroupedArgs{expected});
}

Tensor grouped_outer(const Tensor& a, const Tensor& b, const Tensor& counts,
                     std::int64_t expected) {
  return call_one(grouped_outer_op, {a, b, counts}, GroupedArgs{expected});
}

}  // namespace tessera::ops
