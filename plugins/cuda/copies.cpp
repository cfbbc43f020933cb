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

void ones(const Call&, std::span<Tensor> out) { fill(out[0], 1); }
void zeros(const Call&, std::span<Tensor> out) { fill(out[0], 0); }

}  // namespace

void add_copies(KernelTable& table) {
  table["clone"] = {copy_first};
  table["cast"] = {copy_first};
  table["copy_"] = {copy_into};
  table["fill_"] = {fill_with_number};
  table["ones_like"] = {ones};
  table["zeros_like"] = {zeros};
}

}  // namespace tessera::cuda
