module;
#include <array>
#include <cstddef>
#include <cstdint>
#include <tessera/nf4.hpp>
module tessera.nn;

import :nf4;

namespace tessera::nn::nf4 {

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

}  // namespace tessera::nn::nf4
