module;
#include <fmt/format.h>

#include <cstdint>

#include "index/kernels/indexing.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :index_call;
import :kernel_call;

namespace tessera::ops::indexing {

void refuse_index_type(const Call& call, const Tensor& index) {
  refuse(call, {.wrong = "index must be i64 or i32", .got = std::string(name_of(index.dtype()))});
}

void check_values_here(const char* op, const Tensor& x) {
  operands::given(op, "x", x);
  if (x.is_distributed() || x.is_meta()) {
    fail({.thing = op,
          .wrong = "the result's shape depends on the values",
          .expected = "a plain tensor",
          .got = x.is_meta() ? "one on the meta device" : to_string(*x.spec()),
          .advice = "take full_tensor() or to_local(), or use masked_fill() or where()"});
  }
}

kernels::IndexShape shape_around(const Tensor& x, int dim, std::int64_t indices) {
  kernels::IndexShape shape;
  for (int d = 0; d < x.dims(); ++d) {
    (d < dim ? shape.outer : d > dim ? shape.inner : shape.extent) *= x.shape()[d];
  }
  shape.indices = indices;
  return shape;
}

void check_in_range(const Call& call, bool in_range, std::int64_t extent) {
  if (!in_range) {
    refuse(call,
           {.wrong = "an index is out of range", .expected = fmt::format("0 to {}", extent - 1)});
  }
}

Tensor cut_to(const Tensor& x, const Tensor& index, int dim) {
  Tensor cut = x;
  for (int d = 0; d < x.dims(); ++d) {
    if (d != dim && x.shape()[d] != index.shape()[d]) {
      cut = narrowed_operand(cut, d, 0, index.shape()[d]);
    }
  }
  return cut;
}

void check_index(const Call& call, const Tensor& x, const Tensor& index, int dim) {
  bool fits = x.dims() == index.dims();
  for (int d = 0; fits && d < x.dims(); ++d) {
    fits = d == dim || index.shape()[d] <= x.shape()[d];
  }
  if (!fits) {
    refuse(call, {.wrong = fmt::format("index {} does not match {} along dim {}",
                                       to_string(index.shape()), to_string(x.shape()), dim)});
  }
}

void check_source(const Call& call) {
  const Dims& index = call.in[1].shape();
  const Tensor& source = call.in[2];
  bool covered = source.dims() == index.size() && source.dtype() == call.in[0].dtype();
  for (int d = 0; covered && d < index.size(); ++d) {
    covered = index[d] <= source.shape()[d];
  }
  if (!covered) {
    refuse(call,
           {.wrong = fmt::format("source {} is smaller than index {}, or has another type than x",
                                 to_string(source.shape()), to_string(index))});
  }
}

Tensor reached_source(Workspace& w, const Call& call, int dim) {
  const Tensor cut = cut_to(call.in[2], call.in[1], dim);
  const std::int64_t count = call.in[1].shape()[dim];
  return contiguous_operand(w,
                            cut.shape()[dim] == count ? cut : narrowed_operand(cut, dim, 0, count));
}

Attributes localize_shape(const LocalContext& context) {
  auto args = context.call.args<DimShapeArgs>();
  args.shape = local_shape(*context.out[0]);
  return args;
}

void add_scattered(Workspace& w, const Call& call, const Tensor& into, const Tensor& index_operand,
                   const Tensor& source, int dim) {
  const Tensor index = contiguous_operand(w, index_operand);
  write_reached(w, into, index, dim, [&](const Tensor& target) {
    const kernels::IndexShape shape = shape_around(target, dim, index.shape()[dim]);
    add_into(w, target, [&](const Tensor& sums) {
      visit(call, target, index, [&]<class T, class I>(T, I) {
        check_in_range(call,
                       kernels::scatter_add(shape, pointer<T>(source), pointer<I>(index),
                                            pointer<kernels::Summed<T>>(sums)),
                       shape.extent);
      });
    });
  });
}

}  // namespace tessera::ops::indexing
