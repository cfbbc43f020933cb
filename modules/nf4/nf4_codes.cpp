module;
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <tessera/nf4.hpp>
module tessera.nf4;

import tessera.base;

namespace tessera::nf4 {
namespace {

/// The number of the nearest level; of two that are equally near, the lower one.
std::size_t nearest(float x) {
  std::size_t best = 0;
  float distance = std::abs(x - levels[0]);
  for (std::size_t i = 1; i < std::size(levels); ++i) {
    const float other = std::abs(x - levels[i]);
    if (other < distance) {
      distance = other;
      best = i;
    }
  }
  return best;
}

}  // namespace

void block_scales(std::span<const float> weight, std::span<float> scales) {
  for (std::size_t block = 0; block < scales.size(); ++block) {
    float largest = 0;
    for (std::size_t i = 0; i < block_size; ++i) {
      largest = std::max(largest, std::abs(weight[block * block_size + i]));
    }
    scales[block] = largest;
  }
}

void encode(std::span<const float> weight, std::span<const float> scales,
            std::span<std::uint8_t> codes) {
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const float scale = scales[2 * i / block_size];
    const auto code = [&](std::size_t element) {
      return nearest(scale > 0 ? weight[element] / scale : 0);
    };
    codes[i] = static_cast<std::uint8_t>(16 * code(2 * i) + code(2 * i + 1));
  }
}

void pack_scales(std::span<const float> scales, PackedScales& packed) {
  double sum = 0;
  for (const float scale : scales) {
    sum += scale;
  }
  packed.mean = scales.empty() ? 0 : static_cast<float>(sum / static_cast<double>(scales.size()));
  for (std::size_t block = 0; block < packed.factors.size(); ++block) {
    const std::size_t first = block * scale_block_size;
    const std::size_t last = std::min(scales.size(), first + scale_block_size);
    float largest = 0;
    for (std::size_t i = first; i < last; ++i) {
      largest = std::max(largest, std::abs(scales[i] - packed.mean));
    }
    // Scales that are all equal leave nothing to encode.
    const float factor = largest > 0 ? 256 / (2 * largest) : 1;
    packed.factors[block] = factor;
    for (std::size_t i = first; i < last; ++i) {
      const float code = std::nearbyint((scales[i] - packed.mean) * factor);
      packed.scales[i] = static_cast<std::int8_t>(std::clamp(code, -128.0F, 127.0F));
    }
  }
}

void decode(const Part& part, float* values) {
  // Both elements of a byte at once.
  static constexpr auto pairs = [] {
    std::array<std::array<float, 2>, 256> all{};
    for (std::size_t byte = 0; byte < all.size(); ++byte) {
      all[byte] = {levels[byte / 16], levels[byte % 16]};
    }
    return all;
  }();
  const std::uint8_t* code = part.codes;
  const std::int8_t* scale = part.scales;
  for (std::int64_t row = 0; row < part.rows; ++row) {
    for (std::int64_t block = 0; block < part.row_blocks; ++block) {
      const std::int64_t place = part.first_block + row * part.whole_row_blocks + block;
      const float factor = part.factors[place / scale_block_size];
      const float s = kernels::nf4::scale_of(*scale++, factor, part.mean);
      for (std::int64_t i = 0; i < block_size / 2; ++i) {
        const std::array<float, 2>& pair = pairs[*code++];
        *values++ = pair[0] * s;
        *values++ = pair[1] * s;
      }
    }
  }
}

}  // namespace tessera::nf4
