// a + alpha b and a - alpha b.
module;
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "pointwise/kernels/pointwise.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;

namespace tessera::ops {
namespace {

struct AddArgs {
  Dynamic<double> alpha;
};

/// y = a + alpha b for operands with any strides, row by row, in pieces that are copied where the
/// row's elements are not adjacent.
void add_rows(DType dtype, std::span<const std::int64_t> shape, const std::byte* a,
              std::span<const std::int64_t> a_strides, const std::byte* b,
              std::span<const std::int64_t> b_strides, double alpha, std::byte* y,
              std::span<const std::int64_t> y_strides) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  if (shape.size() > 1) {
    for (std::int64_t i = 0; i < shape[0]; ++i) {
      add_rows(dtype, shape.subspan(1), a + i * a_strides[0] * size, a_strides.subspan(1),
               b + i * b_strides[0] * size, b_strides.subspan(1), alpha,
               y + i * y_strides[0] * size, y_strides.subspan(1));
    }
    return;
  }
  constexpr std::int64_t piece = 512;
  alignas(64) std::array<std::array<std::byte, piece * sizeof(double)>, 3> copies;
  const std::int64_t adjacent = 1;
  const auto copy = [&](std::int64_t count, const void* from, std::int64_t from_stride, void* to,
                        std::int64_t to_stride) {
    kernels::copy_strided(dtype, {&count, 1}, from, {&from_stride, 1}, to, {&to_stride, 1});
  };
  for (std::int64_t first = 0; first < shape[0]; first += piece) {
    const std::int64_t count = std::min(piece, shape[0] - first);
    copy(count, a + first * a_strides[0] * size, a_strides[0], copies[0].data(), adjacent);
    copy(count, b + first * b_strides[0] * size, b_strides[0], copies[1].data(), adjacent);
    kernels::add(dtype, count, copies[0].data(), copies[1].data(), alpha, copies[2].data());
    copy(count, copies[2].data(), adjacent, y + first * y_strides[0] * size, y_strides[0]);
  }
}

void add_into(const Tensor& a, const Tensor& b, double alpha, Tensor& y) {
  if (y.numel() == 0) {
    return;
  }
  const bool plain = a.shape() == y.shape() && b.shape() == y.shape() && a.is_contiguous() &&
                     b.is_contiguous() && y.is_contiguous();
  if (plain && a.dtype() != DType::boolean) {
    kernels::add(y.dtype(), y.numel(), a.raw_data(), b.raw_data(), alpha, y.raw_data());
    return;
  }
  if (alpha == 1 || (alpha == -1 && a.dtype() != DType::boolean)) {
    kernels::binary_strided(
        alpha == 1 ? kernels::BinaryOp::add : kernels::BinaryOp::sub, y.dtype(), y.shape().span(),
        a.raw_data(), operands::broadcast_strides(a, y.shape()).span(), b.raw_data(),
        operands::broadcast_strides(b, y.shape()).span(), y.raw_data(), y.strides().span());
    return;
  }
  if (a.dtype() == DType::boolean) {
    fail({.thing = "add",
          .wrong = "bool operands cannot be scaled",
          .expected = "alpha 1",
          .advice = "cast them first"});
  }
  const Dims of_a = operands::broadcast_strides(a, y.shape());
  const Dims of_b = operands::broadcast_strides(b, y.shape());
  const auto* const from_a = static_cast<const std::byte*>(a.raw_data());
  const auto* const from_b = static_cast<const std::byte*>(b.raw_data());
  auto* const to = static_cast<std::byte*>(y.raw_data());
  if (y.dims() == 0) {
    kernels::add(y.dtype(), 1, from_a, from_b, alpha, to);
    return;
  }
  add_rows(y.dtype(), y.shape().span(), from_a, of_a.span(), from_b, of_b.span(), alpha, to,
           y.strides().span());
}

void add_cpu(const Call& call, std::span<Tensor> out) {
  add_into(call.in[0], call.in[1], call.args<AddArgs>().alpha, out[0]);
}

void sub_cpu(const Call& call, std::span<Tensor> out) {
  add_into(call.in[0], call.in[1], -call.args<AddArgs>().alpha, out[0]);
}

void backward(const BackwardContext& context, const Tensor& g, double alpha,
              std::span<Tensor> out) {
  if (context.needs(0)) {
    out[0] = operands::sum_to(g, context.in_shapes[0]);
  }
  if (context.needs(1)) {
    const Tensor summed = operands::sum_to(g, context.in_shapes[1]);
    out[1] = alpha == 1 ? summed : mul_scalar(summed, alpha);
  }
}

void add_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  backward(context, grads[0], context.args<AddArgs>().alpha, out);
}

void sub_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  backward(context, grads[0], -context.args<AddArgs>().alpha, out);
}

const operands::PointwiseForms add_forms =
    operands::register_pointwise<AddArgs>({.schema = "add(a, b)",
                                           .infer = operands::infer_broadcast,
                                           .cpu = add_cpu,
                                           .rule = rules::pointwise_linear,
                                           .backward = add_backward,
                                           .about = "a + alpha b, with broadcasting."});

const operands::PointwiseForms sub_forms =
    operands::register_pointwise<AddArgs>({.schema = "sub(a, b)",
                                           .infer = operands::infer_broadcast,
                                           .cpu = sub_cpu,
                                           .rule = rules::pointwise_linear,
                                           .backward = sub_backward,
                                           .about = "a - alpha b, with broadcasting."});

Tensor call_promoted(const Op& op, const Tensor& a, const Tensor& b, double alpha) {
  operands::given(op.name, "a", a);
  operands::given(op.name, "b", b);
  const Attributes attributes = AddArgs{alpha};
  if (a.dtype() == b.dtype()) [[likely]] {
    return call_one(op, {a, b}, attributes);
  }
  const DType type = operands::common_type(a, b);
  return call_one(op, {cast(a, type), cast(b, type)}, attributes);
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b, double alpha) {
  return call_promoted(add_forms.op, a, b, alpha);
}

Tensor sub(const Tensor& a, const Tensor& b, double alpha) {
  return call_promoted(sub_forms.op, a, b, alpha);
}

Tensor add_(const Tensor& a, const Tensor& b, double alpha) {
  return call_one(add_forms.in_place, {a, operands::in_place_operand("add_", a, b)},
                  AddArgs{alpha});
}

Tensor sub_(const Tensor& a, const Tensor& b, double alpha) {
  return call_one(sub_forms.in_place, {a, operands::in_place_operand("sub_", a, b)},
                  AddArgs{alpha});
}

}  // namespace tessera::ops
