module;
#include <fmt/format.h>

#include <cmath>
#include <cstdint>

#include "kernels/attention.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :attention_call;
import :kernel_call;

namespace tessera::ops::attention {

void check(const Call& call, const Form& form, const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto shapes = [&] {
    return fmt::format("q {}, k {}, v {}", to_string(q.shape()), to_string(k.shape()),
                       to_string(v.shape()));
  };
  if (q.dims() != 4 || k.dims() != 4 || k.shape() != v.shape() || q.shape()[0] != k.shape()[0] ||
      q.shape()[3] != k.shape()[3]) {
    refuse(call,
           fmt::format("the shapes do not fit (expected {}, got {})", form.expected, shapes()));
  }
  const std::int64_t heads = q.shape()[form.heads];
  const std::int64_t kv_heads = k.shape()[form.heads];
  if (kv_heads == 0 ? heads != 0 : heads % kv_heads != 0) {
    refuse(call, fmt::format("the heads of q must be a multiple of the heads of k and v (got {})",
                             shapes()));
  }
  if (k.dtype() != q.dtype() || v.dtype() != q.dtype()) {
    refuse(call, fmt::format("q, k and v have different types ({}, {}, {}); cast",
                             name_of(q.dtype()), name_of(k.dtype()), name_of(v.dtype())));
  }
}

kernels::AttentionShape shape_of(const Form& form, const Tensor& q, const Tensor& k, double scale,
                                 bool causal) {
  kernels::AttentionShape shape;
  shape.batch = q.shape()[0];
  shape.queries = q.shape()[form.time];
  shape.keys = k.shape()[form.time];
  shape.kv_heads = k.shape()[form.heads];
  shape.group = shape.kv_heads == 0 ? 1 : q.shape()[form.heads] / shape.kv_heads;
  shape.head_dim = q.shape()[3];
  shape.scale = scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  shape.causal = causal;
  return shape;
}

Tensor rows_of_heads(const Tensor& x) {
  return x.strides()[3] == 1 || x.shape()[3] == 1 ? x : contiguous_operand(x);
}

AttentionStrides strides_of(const Form& form, const Tensor& x) {
  return {x.strides()[0], x.strides()[form.time], x.strides()[form.heads]};
}

void push_results(const Form& form, const Tensor& q, ResultShapes& out) {
  out.push_back({q.shape(), q.dtype()});
  // Logarithms of the sums of exponentials, which the backward begins with.
  out.push_back({Dims{q.shape()[0], q.shape()[form.heads], q.shape()[form.time]},
                 statistics_type(q.dtype())});
}

}  // namespace tessera::ops::attention
