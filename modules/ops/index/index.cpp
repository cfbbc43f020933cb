// Indexing as in PyTorch: integers and masks for any dims of x, read and written: index, index_put.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :index_call;

namespace tessera::ops {
namespace {

using namespace indexing;

/// Integer indices, and the dims of x that they are for, in ascending order.
struct IndexedDims {
  std::vector<Tensor> indices;
  Dims dims;

  /// How many dims of x are in front of the places in the result.
  int in_front() const {
    const bool adjacent = dims.back() - dims.front() + 1 == dims.size();
    return adjacent ? static_cast<int>(dims.front()) : 0;
  }
  int places() const {
    int most = 0;
    for (const Tensor& index : indices) {
      most = std::max(most, index.dims());
    }
    return most;
  }
};

void check_mask(const char* op, const Tensor& mask, const Dims& x, int dim) {
  bool fits = mask.dims() > 0 && dim + mask.dims() <= x.size();
  for (int d = 0; fits && d < mask.dims(); ++d) {
    fits = mask.shape()[d] == x[dim + d];
  }
  if (!fits) {
    fail({.thing = op,
          .wrong = fmt::format("the mask {} does not match dims {} and following of {}",
                               to_string(mask.shape()), dim, to_string(x)),
          .advice = "expand it"});
  }
}

bool is_mask(const Tensor& index) { return index && index.dtype() == DType::boolean; }

/// Masks become the positions where they are true.
IndexedDims indexed_dims(const char* op, const Dims& x, std::span<const Tensor> indices) {
  IndexedDims result;
  int dim = 0;
  const auto add = [&](const Tensor& index) {
    if (dim == x.size()) {
      fail({.thing = op,
            .wrong = "there are more indices than dims",
            .got = fmt::format("{} indices for {}", indices.size(), to_string(x))});
    }
    if (index) {
      result.indices.push_back(index);
      result.dims.push_back(dim);
    }
    ++dim;
  };
  for (const Tensor& index : indices) {
    if (!is_mask(index)) {
      add(index);
      continue;
    }
    check_mask(op, index, x, dim);
    check_values_here(op, index);
    for (const Tensor& positions : unbind(nonzero(index), 1)) {
      add(positions);
    }
  }
  if (result.indices.empty()) {
    fail({.thing = op,
          .wrong = "no index is given",
          .expected = "indices or a mask for at least one dim"});
  }
  return result;
}

/// The order of x's dims with the indexed ones first.
Dims indexed_first(const IndexedDims& indexed, int count) {
  Dims order = indexed.dims;
  for (int d = 0; d < count; ++d) {
    if (!indexed.dims.contains(d)) {
      order.push_back(d);
    }
  }
  return order;
}

Dims inverse(const Dims& order) {
  Dims result = order;
  for (int d = 0; d < order.size(); ++d) {
    result[static_cast<int>(order[d])] = d;
  }
  return result;
}

/// The order of `count` dims in which the `length` dims from `first` on come first.
Dims moved_to_front(int first, int length, int count) {
  Dims order;
  for (int d = 0; d < length; ++d) {
    order.push_back(first + d);
  }
  for (int d = 0; d < count; ++d) {
    if (d < first || d >= first + length) {
      order.push_back(d);
    }
  }
  return order;
}

/// Integers for the first dims only: what the operators take.
bool is_direct(std::span<const Tensor> indices) {
  return std::ranges::all_of(indices, [](const Tensor& index) { return index && !is_mask(index); });
}

/// x where the mask is false, else values, which do not know how often it is true: without reading
/// the mask's values.
Tensor masked_put(const Tensor& x, const Tensor& mask, const Tensor& values, bool accumulate) {
  check_mask("index_put", mask, x.shape(), 0);
  operands::check_same_type("index_put", x, values);
  if (values.dims() > x.dims() - mask.dims()) {
    fail({.thing = "index_put",
          .wrong = fmt::format("the values {} have a dim for the positions where the mask is true, "
                               "whose number depends on the mask's values",
                               to_string(values.shape())),
          .expected = fmt::format("values that broadcast to the other dims of {}, or a plain mask",
                                  to_string(x.shape())),
          .advice = "use where()"});
  }
  Tensor chosen = mask;
  while (chosen.dims() < x.dims()) {
    chosen = unsqueeze(chosen, chosen.dims());
  }
  const Tensor put = accumulate ? add(x, values) : values;
  return where(chosen, put, x);
}

}  // namespace

Tensor index(const Tensor& x, std::span<const Tensor> indices) {
  operands::given("index", "x", x);
  if (is_direct(indices)) {
    return index_first_dims(x, indices);
  }
  const IndexedDims indexed = indexed_dims("index", x.shape(), indices);
  const Tensor found =
      index_first_dims(permute(x, indexed_first(indexed, x.dims())), indexed.indices);
  const int in_front = indexed.in_front();
  return in_front == 0 ? found
                       : permute(found, moved_to_front(indexed.places(), in_front, found.dims()));
}

Tensor index_put(const Tensor& x, std::span<const Tensor> indices, const Tensor& values,
                 bool accumulate) {
  operands::given("index_put", "x", x);
  operands::given("index_put", "values", values);
  if (is_direct(indices)) {
    return index_put_first_dims(x, indices, values, accumulate);
  }
  if (indices.size() == 1 && is_mask(indices[0]) &&
      (indices[0].is_distributed() || indices[0].is_meta())) {
    return masked_put(x, indices[0], values, accumulate);
  }
  const IndexedDims indexed = indexed_dims("index_put", x.shape(), indices);
  const Dims order = indexed_first(indexed, x.dims());
  Tensor put = values;
  if (const int in_front = indexed.in_front(); in_front > 0) {
    // The places come first for the operator, after these dims in `values`.
    const int places = indexed.places();
    while (put.dims() < places + x.dims() - indexed.dims.size()) {
      put = unsqueeze(put, 0);
    }
    put = permute(put, moved_to_front(in_front, places, put.dims()));
  }
  const Tensor result = index_put_first_dims(permute(x, order), indexed.indices, put, accumulate);
  return permute(result, inverse(order));
}

}  // namespace tessera::ops
