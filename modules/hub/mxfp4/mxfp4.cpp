// Shapes: E experts, O features of the result, I of the input, in blocks of 32.
module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.hub;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.checkpoint;

namespace tessera::hub {
namespace {

constexpr std::string_view blocks_end = "_blocks";
constexpr std::string_view scales_end = "_scales";
constexpr std::int64_t block = 32;
constexpr std::int64_t block_bytes = block / 2;

/// The numbers of 4 bits: a sign, two bits of the exponent, one of the mantissa.
constexpr std::array<float, 16> numbers = {0,    0.5F,  1,  1.5F,  2,  3,  4,  6,
                                           -0.F, -0.5F, -1, -1.5F, -2, -3, -4, -6};
constexpr int exponent_bias = 127;
constexpr std::uint8_t no_number = 255;
constexpr std::int64_t ggml_bytes = block_bytes + 1;

class UnpackedMxfp4 : public TensorSource {
 public:
  explicit UnpackedMxfp4(const TensorSource& folder) : TensorSource(folder), folder_(folder) {
    for (const auto& [name, info] : folder.tensors()) {
      if (name.ends_with(blocks_end)) {
        add(name.substr(0, name.size() - blocks_end.size()));
      } else if (name.ends_with(scales_end)) {
        folder.info(name.substr(0, name.size() - scales_end.size()) + std::string(blocks_end));
      }
    }
  }

  bool unpacks() const { return !packed_.empty(); }
  std::uint64_t bytes_read() const override { return folder_.bytes_read(); }

  std::string stored_type(const std::string& name) const override {
    return packed_.contains(name) ? "MXFP4" : folder_.stored_type(name);
  }

  Tensor stored_rows(const std::string& name, std::int64_t row, std::int64_t rows) const override {
    const Dims& shape = info(name).shape;
    if (!packed_.contains(name)) {
      return folder_.stored_rows(name, row, rows);
    }
    const std::int64_t blocks = shape[2] / block;
    const Tensor result = empty({rows, blocks * ggml_bytes}, DType::u8);
    auto* to = result.data<std::uint8_t>();
    for (std::int64_t next = row; next < row + rows;) {  // expert by expert
      const std::int64_t expert = next / shape[1];
      const std::int64_t count = std::min(row + rows, (expert + 1) * shape[1]) - next;
      const PackedRows packed = read_rows(name, expert, {next % shape[1], 0}, {count, blocks});
      for (std::int64_t i = 0; i < count * blocks; ++i, to += ggml_bytes) {
        to_ggml(packed.codes.data<std::uint8_t>() + i * block_bytes,
                packed.scales.data<std::uint8_t>()[i], to);
      }
      next += count;
    }
    return result;
  }

 private:
  void add(const std::string& name) {
    const std::string blocks = name + std::string(blocks_end);
    const std::string scales = name + std::string(scales_end);
    const TensorInfo& info = folder_.info(blocks);
    const TensorInfo& of_scales = folder_.info(scales);
    const auto refuse = [&](const std::string& which, std::string expected, const TensorInfo& got) {
      fail_input({.thing = path() + ": tensor '" + which + "'",
                  .wrong = "it is not a part of experts in MXFP4",
                  .expected = std::move(expected),
                  .got = fmt::format("{} {}", name_of(got.dtype), to_string(got.shape))});
    };
    const Dims& shape = info.shape;
    if (info.dtype != DType::u8 || shape.size() != 4 || shape[3] != block_bytes) {
      refuse(blocks, "u8 [experts, out, in / 32, 16]", info);
    }
    const Dims beside{shape[0], shape[1], shape[2]};
    if (of_scales.dtype != DType::u8 || !(of_scales.shape == beside)) {
      refuse(scales, "u8 " + to_string(beside), of_scales);
    }
    if (tensors_.contains(name)) {
      fail_input({.thing = path() + ": tensor '" + name + "'", .wrong = "it is there twice"});
    }
    tensors_.erase(blocks);
    tensors_.erase(scales);
    tensors_.emplace(name, TensorInfo{DType::bf16, {shape[0], shape[1], shape[2] * block}});
    packed_.insert(name);
  }

  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override {
    if (!packed_.contains(name)) {
      folder_.read(name, box, into);
      return;
    }
    // Expert by expert: whole blocks, of which the box has a part.
    const std::int64_t first = box.offset[2] / block;
    const std::int64_t count = (box.offset[2] + box.shape[2] + block - 1) / block - first;
    for (std::int64_t e = 0; e < box.shape[0]; ++e) {
      const Tensor rows = unpacked(name, box.offset[0] + e, {box.offset[1], first},
                                   {box.shape[1], count});  // (O, I)
      const Tensor part = ops::narrow(rows, 1, box.offset[2] - first * block, box.shape[2]);
      ops::copy_(ops::select(into, 0, e), ops::cast(part, into.dtype()));
    }
  }

  /// Rows and blocks of an expert's matrix: (rows, blocks, 16) and (rows, blocks).
  struct PackedRows {
    Tensor codes;
    Tensor scales;
  };
  /// From `begin` on. Error (input): a scale that stands for no number.
  PackedRows read_rows(const std::string& name, std::int64_t expert, const Dims& begin,
                       const Dims& extent) const {
    PackedRows rows{empty({1, extent[0], extent[1], block_bytes}, DType::u8),
                    empty({1, extent[0], extent[1]}, DType::u8)};
    folder_.read(name + std::string(blocks_end),
                 {{expert, begin[0], begin[1], 0}, rows.codes.shape()}, rows.codes);
    folder_.read(name + std::string(scales_end),
                 {{expert, begin[0], begin[1]}, rows.scales.shape()}, rows.scales);
    const auto* const scale = rows.scales.data<std::uint8_t>();
    if (std::find(scale, scale + rows.scales.numel(), no_number) != scale + rows.scales.numel()) {
      fail_input({.thing = path() + ": tensor '" + name + std::string(scales_end) + "'",
                  .wrong = "it has a scale of 255, which stands for no number",
                  .expected = "0 to 254"});
    }
    return rows;
  }

  /// A block of ggml's: the scale, and the elements of the first half beside those of the second
  /// one, where here neighbours are in a byte.
  static void to_ggml(const std::uint8_t* codes, std::uint8_t scale, std::uint8_t* to) {
    constexpr std::int64_t half = block / 2;
    const auto code = [&](std::int64_t i) {
      return static_cast<unsigned>(codes[i / 2]) >> (i % 2 == 0 ? 0U : 4U) & 0xfU;
    };
    to[0] = scale;
    for (std::int64_t i = 0; i < half; ++i) {
      to[1 + i] = static_cast<std::uint8_t>(code(i) | code(i + half) << 4U);
    }
  }

  /// f32 (rows, 32 blocks), of those from `begin` on.
  Tensor unpacked(const std::string& name, std::int64_t expert, const Dims& begin,
                  const Dims& extent) const {
    const PackedRows rows = read_rows(name, expert, begin, extent);
    const Tensor values = empty({extent[0], extent[1] * block}, DType::f32);
    const auto* code = rows.codes.data<std::uint8_t>();
    const auto* scale = rows.scales.data<std::uint8_t>();
    auto* value = values.data<float>();
    for (std::int64_t i = 0; i < extent[0] * extent[1]; ++i) {
      const float factor = std::ldexp(1.0F, static_cast<int>(scale[i]) - exponent_bias);
      for (std::int64_t byte = 0; byte < block_bytes; ++byte) {  // the lower bits come first
        const std::uint8_t two = code[i * block_bytes + byte];
        *value++ = numbers.at(two & 0xFU) * factor;
        *value++ = numbers.at(two >> 4U) * factor;
      }
    }
    return values;
  }

  const TensorSource& folder_;
  std::set<std::string> packed_;
};

}  // namespace

std::unique_ptr<TensorSource> unpacked_mxfp4(const TensorSource& folder) {
  auto unpacked = std::make_unique<UnpackedMxfp4>(folder);
  return unpacked->unpacks() ? std::move(unpacked) : nullptr;
}

}  // namespace tessera::hub
