// Shared parts of the operators that choose by indices: the types of elements and indices, arrays
// seen around the indexed dim, the checks of an index's shape and values.
module;
#include "index/kernels/indexing.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops:index_call;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops::indexing {

struct DimArgs {
  std::int64_t dim;  // that is indexed
};

/// Arguments of gradients: the dim, and the shape of the operand.
struct DimShapeArgs {
  std::int64_t dim;
  Dims shape;  // the gradient's
};

/// The dim that is indexed.
template <class Args = DimArgs>
inline int dim_of(const Call& call, const Tensor& x) {
  return wrap_dim(call.args<Args>().dim, x.dims(), call.op.name.c_str());
}

[[noreturn]] void refuse_index_type(const Call& call, const Tensor& index);

/// Calls f with a value of the indices' C++ type.
template <class F>
inline void visit_index(const Call& call, const Tensor& index, F f) {
  kernels::visit<kernels::IndexTypes>(index.dtype(), f, [&] { refuse_index_type(call, index); });
}

/// Calls f with values of the C++ types of the elements and of the indices.
template <class F>
inline void visit(const Call& call, const Tensor& x, const Tensor& index, F f) {
  using Numbers =
      kernels::Types<float, double, kernels::BFloat16, kernels::Half, std::int64_t, std::int32_t>;
  visit_index(call, index, [&](auto number) {
    kernels::visit<Numbers>(
        x.dtype(), [&](auto element) { f(element, number); },
        [&] { refuse_type(call.op.name, x.dtype()); });
  });
}

/// Calls f with the C++ type, for kernels that only move elements: bool and u8 too.
template <class F>
inline void visit_moved(const Call& call, const Tensor& x, const Tensor& index, F f) {
  if (size_of(x.dtype()) == 1) {
    visit_index(call, index, [&](auto number) { f(std::uint8_t{}, number); });
  } else {
    visit(call, x, index, f);
  }
}

/// x as [outer, extent, inner] around `dim`; `indices` is the other one's extent there.
kernels::IndexShape shape_around(const Tensor& x, int dim, std::int64_t indices);

void check_in_range(const Call& call, bool in_range, std::int64_t extent);

/// x cut to the extents of `index` in all dims but `dim`.
Tensor cut_to(const Tensor& x, const Tensor& index, int dim);

/// Errors: other numbers of dims, or an index longer than x in a dim that is not indexed.
void check_index(const Call& call, const Tensor& x, const Tensor& index, int dim);

/// Errors: `source` (operand 2) is shorter than index (operand 1) somewhere, or not of x's type.
void check_source(const Call& call);

/// Dims along which every index stays with its own slice: `operands` and the result cut alike.
template <class F>
inline void for_each_alike(const Dims& x, const Dims& index, int dim, F f) {
  for (int d = 0; d < x.size(); ++d) {
    if (d != dim && x[d] == index[d]) {
      f(d);
    }
  }
}

/// Calls f(target) with what `index` can reach of `into`, contiguous, and writes it back. With a
/// workspace that only counts, f takes what it needs, too.
template <class F>
inline void write_reached(Workspace& w, const Tensor& into, const Tensor& index, int dim, F f) {
  const Tensor cut = cut_to(into, index, dim);
  const Tensor target = contiguous_operand(w, cut);  // a copy when `index` covers a part only
  f(target);
  if (!w.counts() && !target.same_as(cut)) {
    copy_into(cut, target);
  }
}

/// Cuts `source` (operand 2) to the extents of index (operand 1).
Tensor reached_source(Workspace& w, const Call& call, int dim);

/// into += source at the indices along `dim`; source is contiguous and as large as index.
void add_scattered(Workspace& w, const Call& call, const Tensor& into, const Tensor& index_operand,
                   const Tensor& source, int dim);
/// These gradients are linear in dy: theirs is what the operator takes at the same indices.
template <Tensor (*take)(const Tensor&, const Tensor&, std::int64_t)>
inline void take_again(const BackwardContext& context, std::span<const Tensor> grads,
                       std::span<Tensor> out) {
  out[0] = take(grads[0], context.in[1], context.args<DimShapeArgs>().dim);
}

/// Errors: the result's shape would depend on values that other ranks hold, or that do not exist.
void check_values_here(const char* op, const Tensor& x);

/// The operators index and index_put: integer indices, for the first dims of x.
Tensor index_first_dims(const Tensor& x, std::span<const Tensor> indices);
Tensor index_put_first_dims(const Tensor& x, std::span<const Tensor> indices, const Tensor& values,
                            bool accumulate);

/// Localizes DimShapeArgs: the local shape of the result in place of the global one.
Attributes localize_shape(const LocalContext& context);

/// The operator gather_backward: zeros of `shape`, with dy added at the indices along `dim`.
Tensor gather_backward(const Tensor& dy, const Tensor& index, std::int64_t dim, const Dims& shape);

}  // namespace tessera::ops::indexing
