// Operators that move elements: views, pieces, joins, indices. The program is functional, so a view
// and a copy are the same.
module;
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>
module tessera.exported;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import :aten;
import :graph;

namespace tessera::exported {
namespace {

using A = const Arguments&;

/// A bound of a slice as PyTorch reads it: from the end where it is negative, within the extent.
std::int64_t bound(std::int64_t at, std::int64_t extent) {
  return std::clamp<std::int64_t>(at < 0 ? at + extent : at, 0, extent);
}

struct SliceBounds {
  std::int64_t start;
  std::int64_t end;
};

SliceBounds slice_bounds(A a, std::int64_t extent, std::size_t start, std::size_t end) {
  const std::int64_t from = a.has(start) ? bound(a.integer(start), extent) : 0;
  const std::int64_t to = a.has(end) ? bound(a.integer(end), extent) : extent;
  return {from, std::max(from, to)};
}

Tensors sliced(A a) {
  const Tensor x = a.tensor(0);
  const std::int64_t extent = x.size(a.integer(1));
  const auto [start, end] = slice_bounds(a, extent, 2, 3);
  if (start == 0 && end == extent && a.integer(4) == 1) {
    return {x};
  }
  return {ops::slice(x, a.integer(1), start, end, a.integer(4))};
}

/// PyTorch's cat ignores empty tensors of one dim, whatever the others' dims are.
std::vector<Tensor> without_legacy_empty(const std::vector<Tensor>& all) {
  std::vector<Tensor> kept;
  for (const Tensor& x : all) {
    if (x.dims() != 1 || x.size(0) != 0 || x.dtype() != all.back().dtype()) {
      kept.push_back(x);
    }
  }
  return kept.empty() ? all : kept;
}

/// x with `source` in the place of a range of a dim.
Tensor with_range(const Tensor& x, const Tensor& source, std::int64_t dim, std::int64_t start,
                  std::int64_t end) {
  std::vector<Tensor> parts;
  if (start > 0) {
    parts.push_back(ops::slice(x, dim, 0, start));
  }
  if (end > start) {
    parts.push_back(ops::cast(source, x.dtype()));
  }
  if (end < x.size(dim)) {
    parts.push_back(ops::slice(x, dim, end, x.size(dim)));
  }
  return ops::cat(parts, dim);
}

Tensors slice_replaced(A a) {
  const Tensor x = a.tensor(0);
  const std::int64_t dim = a.integer(2);
  const auto [start, end] = slice_bounds(a, x.size(dim), 3, 4);
  if (a.integer(5) != 1) {
    a.refuse("a step other than 1 is not supported");
  }
  return {with_range(x, a.tensor(1), dim, start, end)};
}

Tensors row_replaced(A a) {
  const Tensor x = a.tensor(0);
  const std::int64_t dim = a.integer(2);
  const std::int64_t at = a.integer(3) < 0 ? a.integer(3) + x.size(dim) : a.integer(3);
  return {with_range(x, ops::unsqueeze(a.tensor(1), dim), dim, at, at + 1)};
}

Tensors squeezed(A a) {
  Tensor x = a.tensor(0);
  Dims dims = a.dims(1);
  for (std::int64_t& dim : dims) {
    dim += dim < 0 ? x.dims() : 0;
  }
  std::ranges::sort(dims, std::greater<>());
  for (const std::int64_t dim : dims) {
    x = ops::squeeze(x, dim);
  }
  return {x};
}

Tensors split_by_sizes(A a) {
  const Dims sizes = a.dims(1);
  return ops::split_with_sizes(a.tensor(0), sizes.span(), a.integer(2));
}

Tensors padded(A a, ops::PadMode mode) {
  const double value = mode == ops::PadMode::constant && a.has(2) ? a.real(2) : 0;
  return {ops::pad(a.tensor(0), a.dims(1), mode, value)};
}

ops::PadMode pad_mode(A a) {
  const std::string& name = a.text(2);
  if (name == "constant") {
    return ops::PadMode::constant;
  }
  if (name == "reflect") {
    return ops::PadMode::reflect;
  }
  if (name == "replicate") {
    return ops::PadMode::replicate;
  }
  if (name != "circular") {
    a.refuse("this mode is not supported");
  }
  return ops::PadMode::circular;
}

/// Windows of x along a dim, as a further last dim.
Tensors windows(A a) {
  const Tensor x = a.tensor(0);
  const std::int64_t dim = a.integer(1);
  const std::int64_t size = a.integer(2);
  std::vector<Tensor> parts;
  for (std::int64_t i = 0; i + size <= x.size(dim); i += a.integer(3)) {
    parts.push_back(ops::slice(x, dim, i, i + size));
  }
  const Tensor all = ops::stack(parts, dim < 0 ? dim + x.dims() : dim);
  return {ops::movedim(all, {(dim < 0 ? dim + x.dims() : dim) + 1}, {-1})};
}

/// The rows of a table. Its gradient of the row padding_idx is 0.
Tensors embedded(A a) {
  const Tensor indices = a.tensor(1);
  const Tensor y = ops::embedding(a.tensor(0), indices);
  const std::int64_t padding = a.integer(2);
  if (padding < 0) {
    return {y};
  }
  const Tensor is_padding = ops::eq(indices, static_cast<double>(padding));
  return {ops::where(ops::unsqueeze(is_padding, -1), ops::detach(y), y)};
}

std::string unsupported_embedding(const GraphNode& node) {
  return is_set(node, 3) ? "scale_grad_by_freq" : is_set(node, 4) ? "sparse gradients" : "";
}

template <Tensor (*f)(const Tensor&, const Tensor&, const Tensor&, std::int64_t)>
Tensors scattered(A a) {
  return {f(a.tensor(0), a.tensor(2), a.tensor(3), a.integer(1))};
}

/// PyTorch has the dim before the index.
template <Tensor (*f)(const Tensor&, const Tensor&, std::int64_t)>
Tensors taken(A a) {
  return {f(a.tensor(0), a.tensor(2), a.integer(1))};
}

Tensors reshaped(A a) { return {ops::reshape(a.tensor(0), a.dims(1))}; }
Tensors expanded(A a) { return {ops::expand(a.tensor(0), a.dims(1))}; }
Tensors transposed(A a) { return {ops::transpose(a.tensor(0), a.integer(1), a.integer(2))}; }
Tensors permuted(A a) { return {ops::permute(a.tensor(0), a.dims(1))}; }
Tensors turned(A a) {
  const Tensor x = a.tensor(0);
  return {x.dims() < 2 ? x : ops::transpose(x, 0, 1)};
}
Tensors in_pieces_of(A a) { return ops::split(a.tensor(0), a.integer(1), a.integer(2)); }
Tensors like_other(A a) { return {ops::expand(a.tensor(0), a.tensor(1).shape())}; }

constexpr AtenOperator rows[] = {
    {"aten.view.default", "self size", reshaped},
    {"aten.view_copy.default", "self size", reshaped},
    {"aten.reshape.default", "self shape", reshaped},
    {"aten._unsafe_view.default", "self size", reshaped},
    {"aten.permute.default", "self dims", permuted},
    {"aten.permute_copy.default", "self dims", permuted},
    {"aten.transpose.int", "self dim0 dim1", transposed},
    {"aten.swapaxes.default", "self axis0 axis1", transposed},
    {"aten.t.default", "self", turned},
    {"aten.numpy_T.default", "self", turned},
    {"aten.movedim.int", "self source destination",
     [](A a) { return Tensors{ops::movedim(a.tensor(0), {a.integer(1)}, {a.integer(2)})}; }},
    {"aten.expand.default", "self size -implicit", expanded},
    {"aten.expand_copy.default", "self size -implicit", expanded},
    {"aten.expand_as.default", "self other", like_other},
    {"aten.squeeze.default", "self", [](A a) { return Tensors{ops::squeeze(a.tensor(0))}; }},
    {"aten.squeeze.dim", "self dim",
     [](A a) { return Tensors{ops::squeeze(a.tensor(0), a.integer(1))}; }},
    {"aten.squeeze.dims", "self dim", squeezed},
    {"aten.unsqueeze.default", "self dim",
     [](A a) { return Tensors{ops::unsqueeze(a.tensor(0), a.integer(1))}; }},
    {"aten.flatten.using_ints", "self start_dim=0 end_dim=-1",
     [](A a) { return Tensors{ops::flatten(a.tensor(0), a.integer(1), a.integer(2))}; }},
    {"aten.unflatten.int", "self dim sizes",
     [](A a) { return Tensors{ops::unflatten(a.tensor(0), a.integer(1), a.dims(2))}; }},
    {"aten.slice.Tensor", "self dim=0 start=none end=none step=1", sliced},
    {"aten.slice_copy.Tensor", "self dim=0 start=none end=none step=1", sliced},
    {"aten.slice_scatter.default", "self src dim=0 start=none end=none step=1", slice_replaced},
    {"aten.select.int", "self dim index",
     [](A a) { return Tensors{ops::select(a.tensor(0), a.integer(1), a.integer(2))}; }},
    {"aten.select_copy.int", "self dim index",
     [](A a) { return Tensors{ops::select(a.tensor(0), a.integer(1), a.integer(2))}; }},
    {"aten.select_scatter.default", "self src dim index", row_replaced},
    {"aten.narrow.default", "self dim start length",
     [](A a) {
       return Tensors{ops::narrow(a.tensor(0), a.integer(1), a.integer(2), a.integer(3))};
     }},
    {"aten.split.Tensor", "self split_size dim=0", in_pieces_of},
    {"aten.split_with_sizes.default", "self split_sizes dim=0", split_by_sizes},
    {"aten.split.sizes", "self split_size dim=0", split_by_sizes},
    {"aten.split_with_sizes_copy.default", "self split_sizes dim=0", split_by_sizes},
    {"aten.chunk.default", "self chunks dim=0",
     [](A a) { return ops::chunk(a.tensor(0), a.integer(1), a.integer(2)); }},
    {"aten.unbind.int", "self dim=0", [](A a) { return ops::unbind(a.tensor(0), a.integer(1)); }},
    {"aten.unfold.default", "self dimension size step", windows},
    {"aten.diagonal.default", "self offset=0 dim1=0 dim2=1",
     [](A a) {
       return Tensors{ops::diagonal(a.tensor(0), a.integer(1), a.integer(2), a.integer(3))};
     }},
    {"aten.cat.default", "tensors dim=0",
     [](A a) { return Tensors{ops::cat(without_legacy_empty(a.tensors(0)), a.integer(1))}; }},
    {"aten.stack.default", "tensors dim=0",
     [](A a) { return Tensors{ops::stack(a.tensors(0), a.integer(1))}; }},
    {"aten.flip.default", "self dims",
     [](A a) { return Tensors{ops::flip(a.tensor(0), a.dims(1))}; }},
    {"aten.roll.default", "self shifts dims=[]",
     [](A a) { return Tensors{ops::roll(a.tensor(0), a.dims(1), a.dims(2))}; }},
    {"aten.constant_pad_nd.default", "self pad value=0",
     [](A a) { return padded(a, ops::PadMode::constant); }},
    {"aten.pad.default", "self pad mode='constant' value=none",
     [](A a) {
       const ops::PadMode mode = pad_mode(a);
       return Tensors{ops::pad(a.tensor(0), a.dims(1), mode, a.has(3) ? a.real(3) : 0)};
     }},
    {"aten.reflection_pad1d.default", "self padding",
     [](A a) { return padded(a, ops::PadMode::reflect); }},
    {"aten.reflection_pad2d.default", "self padding",
     [](A a) { return padded(a, ops::PadMode::reflect); }},
    {"aten.replication_pad1d.default", "self padding",
     [](A a) { return padded(a, ops::PadMode::replicate); }},
    {"aten.replication_pad2d.default", "self padding",
     [](A a) { return padded(a, ops::PadMode::replicate); }},
    {"aten.repeat.default", "self repeats",
     [](A a) { return Tensors{ops::repeat(a.tensor(0), a.dims(1))}; }},
    {"aten.repeat_interleave.self_int", "self repeats dim -output_size",
     [](A a) { return Tensors{ops::repeat_interleave(a.tensor(0), a.integer(1), a.integer(2))}; }},
    {"aten.tril.default", "self diagonal=0",
     [](A a) { return Tensors{ops::tril(a.tensor(0), a.integer(1))}; }},
    {"aten.triu.default", "self diagonal=0",
     [](A a) { return Tensors{ops::triu(a.tensor(0), a.integer(1))}; }},
    {"aten.embedding.default",
     "weight indices padding_idx=-1 scale_grad_by_freq=false sparse=false", embedded, nullptr, 0,
     unsupported_embedding},
    {"aten.index.Tensor", "self indices",
     [](A a) { return Tensors{ops::index(a.tensor(0), a.tensors(1))}; }},
    {"aten.index_put.default", "self indices values accumulate=false",
     [](A a) {
       return Tensors{ops::index_put(a.tensor(0), a.tensors(1), a.tensor(2), a.flag(3))};
     }},
    {"aten.index_select.default", "self dim index", taken<ops::index_select>},
    {"aten.gather.default", "self dim index -sparse_grad", taken<ops::gather>},
    {"aten.scatter.src", "self dim index src", scattered<ops::scatter>},
    {"aten.scatter.value", "self dim index value",
     [](A a) { return Tensors{ops::scatter(a.tensor(0), a.tensor(2), a.real(3), a.integer(1))}; }},
    {"aten.scatter_add.default", "self dim index src", scattered<ops::scatter_add>},
    {"aten.index_add.default", "self dim index source alpha=1",
     [](A a) {
       return Tensors{
           ops::index_add(a.tensor(0), a.tensor(2), a.tensor(3), a.integer(1), a.real(4))};
     }},
    {"aten.one_hot.default", "self num_classes",
     [](A a) { return Tensors{ops::one_hot(a.tensor(0), a.integer(1))}; }},
};

}  // namespace

std::span<const AtenOperator> shape_rows() { return rows; }

}  // namespace tessera::exported
