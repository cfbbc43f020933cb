// Elements chosen by indices along a dim, and sums of those that have one index.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

import tessera.base;
import tessera.device;
import tessera.placement;
import tessera.tensor;

#include "indices.hpp"
#include "kernels.hpp"
#include "kernels/select.hpp"
#include "rows.hpp"
#include "sort.hpp"

namespace tessera::cuda {
namespace {

struct DimArgs {
  std::int64_t dim;
};
struct DimShapeArgs {
  std::int64_t dim;
  Dims shape;  // the result's
};
struct EmbeddingArgs {
  SpecArgument whole;  // of the table
};

int dim_of(const Call& call, const Tensor& x) {
  return wrap_dim(call.args<DimArgs>().dim, x.dims(), call.op.name.c_str());
}

/// The strides of a list along `dim` of this shape, which its other dims repeat.
Dims strides_along(const Dims& shape, int dim, std::int64_t stride) {
  Dims strides = Dims::filled(shape.size(), 0);
  strides[dim] = stride;
  return strides;
}

Dims all_dims(const Tensor& x) {
  Dims all;
  for (int dim = 0; dim < x.dims(); ++dim) {
    all.push_back(dim);
  }
  return all;
}

// ---- take ----

/// Whether what one index takes lies side by side, and can be moved in pieces of 16 bytes. Then the
/// arguments count pieces instead of elements of `size` bytes.
bool in_pieces(TakeArguments& a, std::size_t size) {
  constexpr std::int64_t bytes = 16;
  const std::int64_t piece = bytes / static_cast<std::int64_t>(size);
  ElementArguments& e = a.elements;
  const int last = e.dims - 1;
  const auto fits = [&](const StridedArray& array) {
    bool all =
        reinterpret_cast<std::uintptr_t>(array.data) % bytes == 0 && array.strides[last] == 1;
    for (int dim = 0; dim < last; ++dim) {
      all = all && array.strides[dim] % piece == 0;
    }
    return all;
  };
  if (last < 0 || e.operands[1].strides[last] != 0 || e.extents[last] % piece != 0 ||
      a.step % piece != 0 || !fits(e.operands[0]) || !fits(e.result)) {
    return false;
  }
  for (StridedArray* array : {&e.operands[0], &e.result}) {
    for (int dim = 0; dim < last; ++dim) {
      array->strides[dim] /= piece;
    }
  }
  e.extents[last] /= piece;
  e.count /= piece;
  a.step /= piece;
  return true;
}

/// y = x at `indices`, which are seen in y's shape.
void take(const Call& call, const Tensor& indices, int dim, const Tensor& y) {
  const Tensor& x = call.in[0];
  check_index_type(call, indices);
  look_at(call, call.in[1], x.shape()[dim], ProblemKind::some_index);
  if (y.numel() == 0) {
    return;
  }
  Dims strides = x.strides();
  strides[dim] = 0;
  const Tensor operands[] = {alias(x, y.shape(), strides, x.offset()), indices};
  TakeArguments arguments = {elements_of(y.shape(), operands, y), x.strides()[dim], x.shape()[dim]};
  const std::size_t word = in_pieces(arguments, size_of(y.dtype())) ? 16 : size_of(y.dtype());
  launch(y, "take_" + std::to_string(word), blocks_for(arguments.elements.count), threads_per_block,
         arguments);
}

void index_select(const Call& call, std::span<Tensor> out) {
  const Tensor& indices = call.in[1];
  const Tensor& y = out[0];
  const int dim = dim_of(call, call.in[0]);
  const Dims strides = strides_along(y.shape(), dim, indices.strides()[0]);
  take(call, alias(indices, y.shape(), strides, indices.offset()), dim, y);
}

void gather(const Call& call, std::span<Tensor> out) {
  take(call, call.in[1], dim_of(call, call.in[0]), out[0]);
}

// ---- sums ----

void set_array(StridedArray& array, const Tensor& x) {
  array.data = x.device_address();
  array.type = x.dtype();
  std::ranges::copy(x.strides(), array.strides);
}

/// Sums into y along `dim`; the dims of `source` are y's.
IndexedSumArguments sum_into(const Tensor& y, const Tensor& base, const Tensor& source, int dim) {
  IndexedSumArguments a = {};
  a.count = y.numel();
  a.dims = y.dims();
  a.dim = dim;
  std::ranges::copy(y.shape(), a.extents);
  std::ranges::copy(y.shape(), a.reached);
  set_array(a.y, y);
  set_array(a.source, source);
  a.place_dims = 1;
  a.place_extents[0] = source.shape()[dim];
  a.place_strides[0] = source.strides()[dim];
  if (base) {
    set_array(a.base, base);
  }
  return a;
}

/// `along`: the dims of the indices that make up a line.
void set_entries(IndexedSumArguments& a, const Tensor& indices, const Dims& along,
                 const Call& call) {
  a.entries_of_line = 1;
  for (const std::int64_t dim : along) {
    a.entries_of_line *= indices.shape()[static_cast<int>(dim)];
  }
  a.entries = order_of_indices(indices, along, call.workspace);
}

void launch_sum(IndexedSumArguments& a, const Tensor& indices, const Dims& along, const Call& call,
                const Tensor& y) {
  if (a.count == 0) {
    return;
  }
  set_entries(a, indices, along, call);
  launch(y, is_floating(y.dtype()) ? with_type("sum_by_index", y.dtype()) : "sum_by_index_i64",
         blocks_for(a.count), threads_per_block, a);
}

/// Slices of `source` by a list of indices, which all of y's lines share.
void add_slices(const Call& call, const Tensor& y, const Tensor& base, const Tensor& source,
                int dim) {
  const Tensor& indices = call.in[1];
  check_index_type(call, indices);
  look_at(call, indices, y.shape()[dim], ProblemKind::some_index);
  IndexedSumArguments a = sum_into(y, base, source, dim);
  launch_sum(a, indices, {0}, call, y);
}

void index_select_backward(const Call& call, std::span<Tensor> out) {
  add_slices(call, out[0], {}, call.in[0],
             wrap_dim(call.args<DimShapeArgs>().dim, out[0].dims(), call.op.name.c_str()));
}

void index_add(const Call& call, std::span<Tensor> out) {
  add_slices(call, out[0], call.in[0], call.in[2], dim_of(call, out[0]));
}

/// Each line of y, in the dims that the indices reach, has indices of its own.
void add_elements(const Call& call, const Tensor& y, const Tensor& base, const Tensor& source,
                  int dim) {
  const Tensor& indices = call.in[1];
  check_index_type(call, indices);
  look_at(call, indices, y.shape()[dim], ProblemKind::some_index);
  IndexedSumArguments a = sum_into(y, base, source, dim);
  std::int64_t lines = 1;
  for (int d = y.dims() - 1; d >= 0; --d) {
    if (d != dim) {
      a.reached[d] = indices.shape()[d];
      a.lines[d] = lines;
      lines *= indices.shape()[d];
    }
  }
  launch_sum(a, indices, {dim}, call, y);
}

void scatter_add(const Call& call, std::span<Tensor> out) {
  add_elements(call, out[0], call.in[0], call.in[2], dim_of(call, out[0]));
}

void gather_backward(const Call& call, std::span<Tensor> out) {
  add_elements(call, out[0], {}, call.in[0],
               wrap_dim(call.args<DimShapeArgs>().dim, out[0].dims(), call.op.name.c_str()));
}

/// The rows of dy are in the order of the indices, of any dims.
IndexedSumArguments embedding_sum(const Call& call, const Tensor& dy, const Tensor& indices,
                                  const Tensor& y) {
  check_index_type(call, indices);
  const SpecArgument whole = call.args<EmbeddingArgs>().whole;
  const int last = indices.dims();
  const Tensor columns =
      alias(dy, Dims{1, dy.shape()[last]}, Dims{0, dy.strides()[last]}, dy.offset());
  IndexedSumArguments a = sum_into(y, {}, columns, 0);
  a.first = whole ? local_offset(*whole)[0] : 0;
  a.place_dims = last;
  for (int d = 0; d < last; ++d) {
    a.place_extents[d] = indices.shape()[d];
    a.place_strides[d] = dy.strides()[d];
  }
  return a;
}

void embedding_backward(const Call& call, std::span<Tensor> out) {
  const Tensor& indices = call.in[1];
  IndexedSumArguments a = embedding_sum(call, call.in[0], indices, out[0]);
  launch_sum(a, indices, all_dims(indices), call, out[0]);
}

void embedding_backward_add(const Call& call, std::span<Tensor> out) {
  check_in_place(call);
  const Tensor& y = out[0];
  const Tensor& indices = call.in[2];
  IndexedSumArguments a = embedding_sum(call, call.in[1], indices, y);
  const std::int64_t threads = indices.numel() * y.shape()[1];
  if (a.count == 0 || threads == 0) {
    return;
  }
  set_entries(a, indices, all_dims(indices), call);
  launch(y, with_type("add_rows_by_index", y.dtype()), blocks_for(threads), threads_per_block, a);
}

template <std::size_t indices = 1>
std::size_t bytes_of_list(const Call& call, std::span<const Tensor>) {
  return bytes_to_order(1, call.in[indices].numel());
}

template <class Args>
std::size_t bytes_of_lines(const Call& call, std::span<const Tensor>) {
  const Tensor& indices = call.in[1];
  const int dim = wrap_dim(call.args<Args>().dim, indices.dims(), call.op.name.c_str());
  const std::int64_t length = indices.shape()[dim];
  return bytes_to_order(length == 0 ? 0 : indices.numel() / length, length);
}

}  // namespace

void add_selecting(KernelTable& table) {
  table["index_select"] = {index_select};
  table["gather"] = {gather};
  table["index_select_backward"] = {index_select_backward, bytes_of_list<>};
  table["index_add"] = {index_add, bytes_of_list<>};
  table["scatter_add"] = {scatter_add, bytes_of_lines<DimArgs>};
  table["embedding_backward"] = {embedding_backward, bytes_of_list<>};
  table["embedding_backward_"] = {embedding_backward_add, bytes_of_list<2>};
  table["gather_backward"] = {gather_backward, bytes_of_lines<DimShapeArgs>};
}

}  // namespace tessera::cuda
