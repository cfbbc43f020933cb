// Copies, casts and fills.
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tessera/half.hpp>
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

constexpr std::int64_t moved_at_once = 16;  // bytes

/// Makes a copy of elements of `size` bytes one of words of 16 bytes, where both sides consist of
/// them; whether they do.
bool move_in_words(ElementArguments& a, std::int64_t size) {
  StridedArray* const arrays[] = {&a.operands[0], &a.result};
  const int last = a.dims - 1;
  bool fits = a.dims > 0 && a.extents[last] * size % moved_at_once == 0;
  for (const StridedArray* array : arrays) {
    fits = fits && array->strides[last] == 1 &&
           reinterpret_cast<std::uintptr_t>(array->data) % moved_at_once == 0;
    for (int dim = 0; fits && dim < last; ++dim) {
      fits = array->strides[dim] * size % moved_at_once == 0;
    }
  }
  if (!fits) {
    return false;
  }
  const std::int64_t elements = moved_at_once / size;
  a.count /= elements;
  a.extents[last] /= elements;
  for (StridedArray* array : arrays) {
    for (int dim = 0; dim < last; ++dim) {
      array->strides[dim] /= elements;
    }
  }
  return true;
}

void copy(const Tensor& x, const Tensor& y) {
  if (y.numel() == 0) {
    return;
  }
  ElementArguments arguments = elements_of(y.shape(), {&x, 1}, y);
  if (x.dtype() != y.dtype()) {
    launch(y, std::string(cast_from(x.dtype())), blocks_of(arguments), threads_per_block,
           arguments);
    return;
  }
  const auto size = static_cast<std::int64_t>(size_of(x.dtype()));
  const bool words = move_in_words(arguments, size);
  launch(y, "move_" + std::to_string(words ? moved_at_once : size), blocks_for(arguments.count),
         threads_per_block, arguments);
}

/// Eight bytes of elements that all are this number, of the types that are filled most.
std::optional<std::uint64_t> filled_word(DType type, double value) {
  constexpr std::uint64_t each_32 = 0x1'0000'0001U, each_16 = 0x1'0001'0001'0001U;
  if (value == 0 && !std::signbit(value)) {
    return 0;
  }
  if (type == DType::f32) {
    return each_32 * std::bit_cast<std::uint32_t>(static_cast<float>(value));
  }
  if (type == DType::bf16) {
    return each_16 * kernels::BFloat16(value).bits;
  }
  return std::nullopt;
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
  const std::size_t bytes = static_cast<std::size_t>(y.numel()) * size_of(y.dtype());
  const std::optional<std::uint64_t> word = filled_word(y.dtype(), value);
  if (word && arguments.result.contiguous && bytes % sizeof(*word) == 0 &&
      reinterpret_cast<std::uintptr_t>(y.device_address()) % sizeof(*word) == 0) {
    const FillArguments words = {y.device_address(), *word,
                                 static_cast<std::int64_t>(bytes / sizeof(*word))};
    launch(y, "fill_words", blocks_for(words.count), threads_per_block, words);
    return;
  }
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
