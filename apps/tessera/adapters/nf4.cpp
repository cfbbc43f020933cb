#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.checkpoint;

#include "adapters/nf4.hpp"

namespace tessera::app {
namespace {

constexpr std::int64_t block = 64;          // elements of a scale
constexpr std::int64_t scales_block = 256;  // scales of a factor

/// Quantiles of a normal distribution, scaled to [-1, 1].
constexpr std::array<float, 16> levels = {
    -1.0F,      -0.6961928F, -0.5250731F, -0.3949175F, -0.2844414F, -0.1847734F, -0.0910500F, 0.0F,
    0.0795803F, 0.1609302F,  0.2461123F,  0.3379152F,  0.4407098F,  0.5626170F,  0.7229568F,  1.0F};

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
  if (codes.shape.size() != 2 || 2 * codes.shape[1] % block != 0) {
    fail_input(
        {.thing = from.path(),
         .wrong = fmt::format("tensor '{}.codes' has shape {}", module, to_string(codes.shape)),
         .expected = "two codes in a byte, and rows of whole blocks of 64"});
  }
  const Dims shape = {codes.shape[0], 2 * codes.shape[1]};
  const std::int64_t scales = shape.product() / block;
  check(".codes", DType::u8, codes.shape);
  check(".scales", DType::i8, {shape[0], shape[1] / block});
  check(".factors", DType::f32, {(scales + scales_block - 1) / scales_block});
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
  const std::int64_t first = row * (shape[1] / block);  // scale of the whole weight
  const std::uint8_t* code = codes.data<std::uint8_t>();
  float* value = values.data<float>();
  for (std::int64_t i = 0; i < scales.numel(); ++i) {
    const float factor = factors.data<float>()[(first + i) / scales_block];
    const float scale = static_cast<float>(scales.data<std::int8_t>()[i]) / factor + mean;
    for (std::int64_t j = 0; j < block / 2; ++j, ++code) {
      *value++ = levels[*code >> 4U] * scale;
      *value++ = levels[*code & 15U] * scale;
    }
  }
  return values;
}

}  // namespace tessera::app
