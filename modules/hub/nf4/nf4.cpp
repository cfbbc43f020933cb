module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
module tessera.hub;

import tessera.base;
import tessera.nf4;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.checkpoint;

namespace tessera::hub {
namespace {

using nf4::block_size;
using nf4::scale_block_size;

Tensor read_rows(const TensorSource& from, const std::string& name, std::int64_t row,
                 std::int64_t rows) {
  const TensorInfo& info = from.info(name);
  Dims offset = Dims::filled(info.shape.size(), 0);
  Dims shape = info.shape;
  offset[0] = row;
  shape[0] = rows;
  const Tensor values = empty(shape, info.dtype);
  from.read(name, {offset, shape}, values);
  return values;
}

}  // namespace

Dims nf4_shape(const TensorSource& from, const std::string& module) {
  const TensorInfo& codes = from.info(module + ".codes");
  const auto check = [&](const char* part, DType dtype, const Dims& shape) {
    const TensorInfo& info = from.info(module + part);
    if (info.dtype != dtype || !(info.shape == shape)) {
      fail_input(
          {.thing = from.path(),
           .wrong = fmt::format("tensor '{}{}' does not fit the codes of its weight", module, part),
           .expected = fmt::format("{} {}", name_of(dtype), to_string(shape)),
           .got = fmt::format("{} {}", name_of(info.dtype), to_string(info.shape))});
    }
  };
  if (codes.shape.size() != 2 || 2 * codes.shape[1] % block_size != 0) {
    fail_input(
        {.thing = from.path(),
         .wrong = fmt::format("tensor '{}.codes' has shape {}", module, to_string(codes.shape)),
         .expected = "two codes in a byte, and rows of whole blocks of 64"});
  }
  const Dims shape = {codes.shape[0], 2 * codes.shape[1]};
  const std::int64_t scales = shape.product() / block_size;
  check(".codes", DType::u8, codes.shape);
  check(".scales", DType::i8, {shape[0], shape[1] / block_size});
  check(".factors", DType::f32, {(scales + scale_block_size - 1) / scale_block_size});
  check(".mean", DType::f32, {1});
  return shape;
}

Tensor read_nf4(const TensorSource& from, const std::string& module, std::int64_t row,
                std::int64_t rows) {
  const Dims shape = nf4_shape(from, module);
  const Tensor codes = read_rows(from, module + ".codes", row, rows);
  const Tensor scales = read_rows(from, module + ".scales", row, rows);
  const Tensor factors = from.read(module + ".factors");
  const float mean = from.read(module + ".mean").data<float>()[0];
  const Tensor values = empty({rows, shape[1]}, DType::f32);
  const std::int64_t row_blocks = shape[1] / block_size;
  nf4::decode({.codes = codes.data<std::uint8_t>(),
               .scales = scales.data<std::int8_t>(),
               .factors = factors.data<float>(),
               .mean = mean,
               .rows = rows,
               .row_blocks = row_blocks,
               .first_block = row * row_blocks,
               .whole_row_blocks = row_blocks},
              values.data<float>());
  return values;
}

std::map<std::string, Tensor> pack_nf4(const Tensor& weight) {
  const std::int64_t rows = weight.shape()[0];
  const std::int64_t row_blocks = weight.shape()[1] / block_size;
  const std::int64_t blocks = rows * row_blocks;
  const auto count = static_cast<std::size_t>(blocks);
  const std::span<const float> values(weight.data<float>(),
                                      static_cast<std::size_t>(weight.numel()));
  const Tensor codes = empty({rows, weight.shape()[1] / 2}, DType::u8);
  const Tensor exact = empty({rows, row_blocks}, DType::f32);
  const Tensor scales = empty({rows, row_blocks}, DType::i8);
  const Tensor factors = empty({(blocks + scale_block_size - 1) / scale_block_size}, DType::f32);
  const std::span<float> own(exact.data<float>(), count);
  nf4::block_scales(values, own);
  nf4::encode(values, own, {codes.data<std::uint8_t>(), static_cast<std::size_t>(codes.numel())});
  nf4::PackedScales packed{
      .factors = {factors.data<float>(), static_cast<std::size_t>(factors.numel())},
      .scales = {scales.data<std::int8_t>(), count}};
  nf4::pack_scales(own, packed);
  return {{"codes", codes},
          {"scales", scales},
          {"factors", factors},
          {"mean", full({1}, packed.mean, DType::f32)}};
}

}  // namespace tessera::hub
