// mm, bmm, addmm, baddbmm.
module;
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <tessera/printable.hpp>
#include <tessera/visit_dtype.hpp>

#include "matmul/kernels/gemm.hpp"
#include "matmul/kernels/integer_gemm.hpp"
#include "matmul/kernels/plain_product.hpp"
#include "pointwise/functions/arithmetic.hpp"
#include "pointwise/kernels/apply.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {

void multiply(Workspace& w, const Call& call, const kernels::Gemm& shape, const Tensor& a,
              const Tensor& b, const Tensor& out) {
  if (is_floating(a.dtype())) {
    visit_floating(a.dtype(), call.op.name, [&]<class T>(T) {
      if (out.dtype() == a.dtype()) {
        kernels::gemm(w, shape, pointer<T>(w, a), pointer<T>(w, b), pointer<T>(w, out));
      } else {
        kernels::gemm(w, shape, pointer<T>(w, a), pointer<T>(w, b),
                      pointer<kernels::Summed<T>>(w, out));
      }
    });
    return;
  }
  kernels::visit(out.dtype(), [&]<class T>(T) {
    if constexpr (kernels::takes_integer_gemm<T>) {
      kernels::integer_gemm(w, shape, pointer<T>(w, a), pointer<T>(w, b), pointer<T>(w, out));
    } else {
      refuse_type(call.op.name, out.dtype());
    }
  });
}

void multiply(Workspace& w, const Call& call, const Tensor& left, const Tensor& right,
              const Tensor& out, bool accumulate) {
  const Workspace::Scope copies(w);
  const Matrix a = matrix_operand(w, left);
  const Matrix b = matrix_operand(w, right);
  const int d = out.dims();
  kernels::Gemm shape;
  shape.trans_a = a.transposed;
  shape.trans_b = b.transposed;
  shape.m = out.shape()[d - 2];
  shape.n = out.shape()[d - 1];
  shape.k = left.shape()[d - 1];
  shape.lda = a.stride;
  shape.ldb = b.stride;
  shape.ldc = shape.n;
  if (d == 3) {
    shape.batch = out.shape()[0];
    shape.stride_a = a.tensor.strides()[0];
    shape.stride_b = b.tensor.strides()[0];
    shape.stride_c = shape.m * shape.n;
  }
  shape.accumulate = accumulate;
  multiply(w, call, shape, a.tensor, b.tensor, out);
}

namespace {

using rules::strategy;

void check_product(const Call& call, std::size_t a, std::size_t b) {
  check_one_type(call);
  const Dims& left = call.in[a].shape();
  const Dims& right = call.in[b].shape();
  const int d = left.size();
  if (left[d - 1] != right[d - 2] || (d == 3 && left[0] != right[0])) {
    refuse(call, {.wrong = "the shapes do not match",
                  .got = fmt::format("{} x {}", to_string(left), to_string(right))});
  }
}

// mm

void mm_infer(const Call& call, ResultShapes& out) {
  check_dims(call, 0, 2);
  check_dims(call, 1, 2);
  check_product(call, 0, 1);
  out.push_back({Dims{call.in[0].shape()[0], call.in[1].shape()[1]}, call.in[0].dtype()});
}

void mm_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  multiply(w, call, call.in[0], call.in[1], out[0], false);
}

/// Whether the product of two matrices is one that needs no workspace; most small calls are.
bool is_plain(const Tensor& a, const Tensor& b, const Tensor& y) {
  const Dims& shape = y.shape();
  return shape.size() == 2 && y.dtype() == DType::f32 &&
         (a.impl()->keys & b.impl()->keys & dense_key) != 0 &&
         kernels::is_plain_product(shape[0], shape[1], a.shape()[1]);
}

std::size_t mm_workspace(const Call& call, std::span<const Tensor> out) {
  return is_plain(call.in[0], call.in[1], out[0]) ? 0 : workspace_of<mm_cpu>(call, out);
}

void mm_rule(const RuleContext& context, Strategies& strategies) {
  strategies.push_back(strategy({Shard(0), Replicate()}, {Shard(0)}));
  strategies.push_back(strategy({Replicate(), Shard(1)}, {Shard(1)}));
  strategies.push_back(strategy({Shard(1), Shard(0)}, {Partial()}));
  pass_partial(context, strategies, 0b01);
  pass_partial(context, strategies, 0b10);
}

void mm_backward(const BackwardContext& context, std::span<const Tensor> grads,
                 std::span<Tensor> out) {
  if (context.needs(0)) {
    out[0] = mm(grads[0], transpose(context.in[1], 0, 1));
  }
  if (context.needs(1)) {
    out[1] = mm(transpose(context.in[0], 0, 1), grads[0]);
  }
}

const Op& mm_op = register_op({
    .schema = "mm(a, b)",
    .infer = mm_infer,
    .cpu = in_workspace<mm_cpu>,
    .workspace = mm_workspace,
    .rule = mm_rule,
    .flops = last_dim_flops<0>,
    .backward = mm_backward,
    .saves_inputs = saves_all,
    .gradients_apart = true,
    .about = "The product of two matrices.",
});

// bmm

void bmm_infer(const Call& call, ResultShapes& out) {
  check_dims(call, 0, 3);
  check_dims(call, 1, 3);
  check_product(call, 0, 1);
  const Dims& a = call.in[0].shape();
  out.push_back({Dims{a[0], a[1], call.in[1].shape()[2]}, call.in[0].dtype()});
}

void bmm_rule(const RuleContext& context, Strategies& strategies) {
  strategies.push_back(strategy({Shard(0), Shard(0)}, {Shard(0)}));
  strategies.push_back(strategy({Shard(1), Replicate()}, {Shard(1)}));
  strategies.push_back(strategy({Replicate(), Shard(2)}, {Shard(2)}));
  strategies.push_back(strategy({Shard(2), Shard(1)}, {Partial()}));
  pass_partial(context, strategies, 0b01);
  pass_partial(context, strategies, 0b10);
}

void bmm_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  if (context.needs(0)) {
    out[0] = bmm(grads[0], transpose(context.in[1], 1, 2));
  }
  if (context.needs(1)) {
    out[1] = bmm(transpose(context.in[0], 1, 2), grads[0]);
  }
}

const Op& bmm_op = register_op({
    .schema = "bmm(a, b)",
    .infer = bmm_infer,
    .cpu = in_workspace<mm_cpu>,
    .workspace = mm_workspace,
    .rule = bmm_rule,
    .flops = last_dim_flops<0>,
    .backward = bmm_backward,
    .saves_inputs = saves_all,
    .gradients_apart = true,
    .about = "Products of two batches of matrices.",
});

// addmm and baddbmm

struct Scales {
  Dynamic<double> beta;
  Dynamic<double> alpha;
};

void check_scales(const Call& call) {
  const Scales scales = call.args<Scales>();
  for (const double scale : {double{scales.beta}, double{scales.alpha}}) {
    if (!is_floating(call.in[1].dtype()) && std::trunc(scale) != scale) {
      refuse(call, {.wrong = "beta and alpha must be whole numbers for integer operands",
                    .got = fmt::format("{}", printable(scale))});
    }
  }
}

template <int dims>
void added_infer(const Call& call, ResultShapes& out) {
  check_scales(call);
  check_dims(call, 1, dims);
  check_dims(call, 2, dims);
  check_product(call, 1, 2);
  Dims shape = call.in[1].shape();
  shape[dims - 1] = call.in[2].shape()[dims - 1];
  operands::check_broadcasts_to(call.op.name, call.in[0].shape(), shape);
  out.push_back({shape, call.in[1].dtype()});
}

void added_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Scales scales = call.args<Scales>();
  // The products' kernel adds what is there before it rounds; scaled terms are rounded after it.
  const bool is_scaled = scales.alpha != 1 || (scales.beta != 0 && scales.beta != 1);
  const Tensor sums = is_scaled ? sums_for(w, out[0]) : out[0];
  const DType type = sums.dtype();
  const auto scale = [&](double by) {
    if (by != 1 && !w.counts()) {
      kernels::with_number<functions::Mul>(type, sums.numel(), pointer<void>(sums), by,
                                           pointer<void>(sums));
    }
  };
  if (scales.beta == 0) {
    multiply(w, call, call.in[1], call.in[2], sums, false);
    scale(scales.alpha);
  } else {
    if (!w.counts()) {
      copy_into(out[0], expanded_operand(call.in[0], out[0].shape()));
      convert_into(sums, out[0]);
    }
    scale(scales.beta);
    if (scales.alpha == 1) {
      multiply(w, call, call.in[1], call.in[2], sums, true);
    } else {
      const Tensor product = temporary(w, sums.shape(), type);
      multiply(w, call, call.in[1], call.in[2], product, false);
      if (!w.counts()) {
        kernels::add(type, sums.numel(), pointer<void>(sums), pointer<void>(product), scales.alpha,
                     pointer<void>(sums));
      }
    }
  }
  if (!w.counts()) {
    convert_into(out[0], sums);
  }
}

std::size_t added_workspace(const Call& call, std::span<const Tensor> out) {
  return call.args<Scales>().alpha == 1 && is_plain(call.in[1], call.in[2], out[0])
             ? 0
             : workspace_of<added_cpu>(call, out);
}

/// As the product's, with the bias placed as the result where it does not repeat.
template <int dims>
void added_rule(const RuleContext& context, Strategies& strategies) {
  const Tensor& b = context.call.in[0];
  const auto bias = [&](int dim) {
    const int d = dim - (dims - b.dims());
    return d >= 0 && b.shape()[d] != 1 ? Shard(d) : Replicate();
  };
  if constexpr (dims == 3) {
    strategies.push_back(strategy({bias(0), Shard(0), Shard(0)}, {Shard(0)}));
  }
  constexpr int row = dims - 2;
  constexpr int column = dims - 1;
  strategies.push_back(strategy({bias(row), Shard(row), Replicate()}, {Shard(row)}));
  strategies.push_back(strategy({bias(column), Replicate(), Shard(column)}, {Shard(column)}));
  strategies.push_back(strategy({Partial(), Shard(column), Shard(row)}, {Partial()}));
  pass_partial(context, strategies, 0b011);
  pass_partial(context, strategies, 0b101);
}

Tensor scaled(const Tensor& x, double by) { return by == 1 ? x : mul_scalar(x, by); }

void added_backward(const BackwardContext& context, std::span<const Tensor> grads,
                    std::span<Tensor> out) {
  const Scales scales = context.args<Scales>();
  if (context.needs(0)) {
    out[0] = operands::sum_to(scaled(grads[0], scales.beta), context.in_shapes[0]);
  }
  const Tensor g = scaled(grads[0], scales.alpha);
  if (context.needs(1)) {
    out[1] = matmul(g, transpose(context.in[2], -2, -1));
  }
  if (context.needs(2)) {
    out[2] = matmul(transpose(context.in[1], -2, -1), g);
  }
}

const Op& addmm_op = register_op<Scales>({
    .schema = "addmm(bias, a, b)",
    .infer = added_infer<2>,
    .cpu = in_workspace<added_cpu>,
    .workspace = added_workspace,
    .rule = added_rule<2>,
    .flops = last_dim_flops<1>,
    .backward = added_backward,
    .saves_inputs = 0b110,
    .gradients_apart = true,
    .about = "beta bias + alpha a b, for matrices; the bias broadcasts.",
});

const Op& baddbmm_op = register_op<Scales>({
    .schema = "baddbmm(bias, a, b)",
    .infer = added_infer<3>,
    .cpu = in_workspace<added_cpu>,
    .workspace = added_workspace,
    .rule = added_rule<3>,
    .flops = last_dim_flops<1>,
    .backward = added_backward,
    .saves_inputs = 0b110,
    .gradients_apart = true,
    .about = "beta bias + alpha a b, for batches of matrices; the bias broadcasts.",
});

}  // namespace

Tensor mm(const Tensor& a, const Tensor& b) { return call_one(mm_op, {a, b}); }
Tensor bmm(const Tensor& a, const Tensor& b) { return call_one(bmm_op, {a, b}); }
Tensor addmm(const Tensor& bias, const Tensor& a, const Tensor& b, double beta, double alpha) {
  return call_one(addmm_op, {bias, a, b}, Scales{beta, alpha});
}
Tensor baddbmm(const Tensor& bias, const Tensor& a, const Tensor& b, double beta, double alpha) {
  return call_one(baddbmm_op, {bias, a, b}, Scales{beta, alpha});
}

}  // namespace tessera::ops
