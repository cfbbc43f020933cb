// Copies, casts and fills.
#include <cstddef>
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

#include "kernels.hpp"

namespace tessera::cuda {
namespace {

/// The kernel of copies.cu that converts from a type.
std::string_view cast_from(DType type) {
  return !is_floating(type)   ? "cast_from_integer"
         : type == DType::f64 ? "cast_from_double"
                              : "cast_from_float";
}

void copy(const Tensor& x, const Tensor& y) {
  if (y.numel() == 0) {
    return;
  }
  const ElementArguments arguments = elements_of(y.shape(), {&x, 1}, y);
  const std::string kernel = x.dtype() == y.dtype() ? "move_" + std::to_string(size_of(x.dtype()))
                                                    : std::string(cast_from(x.dtype()));
  launch(y, kernel, blocks_for(y.numel()), threads_per_block, arguments);
}

/// clone, cast.
void copy_first(const Call& call, std::span<Tensor> out) { copy(call.in[0], out[0]); }

void copy_into(const Call& call, std::span<Tensor> out) {
  check_in_place(call);
  copy(call.in[1], out[0]);
}

void fill(const Tensor& y, double value) {
  if (y.numel() == 0) {
    return;
  }
  ElementArguments arguments = elements_of(y.shape(), {}, y);
  arguments.numbers[0] = value;
  launch(y, "fill_elements", blocks_for(y.numel()), threads_per_block, arguments);
}

void fill_with_number(const Call& call, std::span<Tensor> out) {
  fill(out[0], ArgumentType<double>::from_word(call.attributes.dynamic()[0]));
}

/// Each tensor of a list.
void fill_with_zeros(const Call& call, std::span<Tensor>) {
  check_in_place(call);
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    fill(call.in[i], 0);
    if (i > 0) {
      call.in[i].storage().bump_version();  // the dispatcher moves operand 0's
    }
  }
}

struct JoinedDim {  // the arguments
  std::int64_t dim;
};

/// The tensors one after the other along a dim.
void cat(const Call& call, std::span<Tensor> out) {
  const Tensor& y = out[0];
  const int dim = wrap_dim(call.args<JoinedDim>().dim, y.dims(), "cat");
  std::int64_t offset = y.offset();
  for (const Tensor& x : call.in) {
    copy(x, alias(y, x.shape(), y.strides(), offset));
    offset += x.shape()[dim] * y.strides()[dim];
  }
}

/// The tensors one after the other along a new dim.
void stack(const Call& call, std::span<Tensor> out) {
  const Tensor& y = out[0];
  const int dim = wrap_dim(call.args<JoinedDim>().dim, y.dims(), "stack");
  Dims strides = y.strides();
  const std::int64_t step = strides[dim];
  strides.erase(dim);
  std::int64_t offset = y.offset();
  for (const Tensor& x : call.in) {
    copy(x, alias(y, x.shape(), strides, offset));
    offset += step;
  }
}

struct SliceOfDim {  // the arguments
  std::int64_t dim;
  std::int64_t extent;
  std::int64_t start;
  std::int64_t step;
};

/// Zeros, and the operand at a slice of them.
void slice_backward(const Call& call, std::span<Tensor> out) {
  const Tensor& x = call.in[0];
  const Tensor& y = out[0];
  const auto args = call.args<SliceOfDim>();
  const int dim = wrap_dim(args.dim, y.dims(), "slice_backward");
  fill(y, 0);
  if (x.numel() > 0) {
    Dims strides = y.strides();
    const std::int64_t offset = y.offset() + args.start * strides[dim];
    strides[dim] *= args.step;
    copy(x, alias(y, x.shape(), strides, offset));
  }
}

void ones(const Call&, std::span<Tensor> out) { fill(out[0], 1); }
void zeros(const Call&, std::span<Tensor> out) { fill(out[0], 0); }

}  // namespace

void add_copies(KernelTable& table) {
  table["clone"] = {copy_first};
  table["cast"] = {copy_first};
  table["copy_"] = {copy_into};
  table["fill_"] = {fill_with_number};
  table["foreach_zero_"] = {fill_with_zeros};
  table["ones_like"] = {ones};
  table["zeros_like"] = {zeros};
  table["cat"] = {cat};
  table["stack"] = {stack};
  table["slice_backward"] = {slice_backward};
}

}  // namespace tessera::cuda
