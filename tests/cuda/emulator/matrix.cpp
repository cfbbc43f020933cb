#include "matrix.hpp"

#include <bit>
#include <cstddef>
#include <tessera/half.hpp>

namespace emulator {
namespace {

constexpr std::size_t warp_size = 32;
using Lanes = std::span<LaneWords* const, warp_size>;

std::uint16_t half_of(std::uint32_t word, std::size_t high) {
  return static_cast<std::uint16_t>(word >> (16 * high));
}

/// Four matrices of 8 x 8 elements of 16 bits; row r of matrix i is lane 8 i + r's.
void load(Lanes lanes, bool transposed) {
  const auto element = [&](std::size_t matrix, std::size_t row, std::size_t column) {
    return half_of(lanes[8 * matrix + row]->in[column / 2], column % 2);
  };
  for (std::size_t lane = 0; lane < warp_size; ++lane) {
    const std::size_t group = lane / 4, pair = lane % 4 * 2;
    for (std::size_t matrix = 0; matrix < 4; ++matrix) {
      const auto of = [&](std::size_t which) {
        return transposed ? element(matrix, pair + which, group)
                          : element(matrix, group, pair + which);
      };
      lanes[lane]->out[matrix] = of(0) | static_cast<std::uint32_t>(of(1)) << 16;
    }
  }
}

/// The 16 x 8 sums plus a, 16 x 16, times b, 16 x 8. Products are added in the order of their
/// terms.
template <class T>
void multiply(Lanes lanes) {
  const auto value = [](std::uint32_t word, std::size_t high) {
    return static_cast<float>(T::from_bits(half_of(word, high)));
  };
  float a[16][16], b[16][8];
  for (std::size_t lane = 0; lane < warp_size; ++lane) {
    const std::size_t group = lane / 4, pair = lane % 4 * 2;
    for (std::size_t which = 0; which < 2; ++which) {
      for (std::size_t word = 0; word < 4; ++word) {
        const std::size_t row = group + word % 2 * 8, column = pair + which + word / 2 * 8;
        a[row][column] = value(lanes[lane]->in[word], which);
      }
      for (std::size_t word = 0; word < 2; ++word) {
        b[pair + which + word * 8][group] = value(lanes[lane]->in[4 + word], which);
      }
    }
  }
  for (std::size_t lane = 0; lane < warp_size; ++lane) {
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      auto sum = std::bit_cast<float>(lanes[lane]->in[6 + i]);
      for (std::size_t k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      lanes[lane]->out[i] = std::bit_cast<std::uint32_t>(sum);
    }
  }
}

}  // namespace

void compute_matrices(MatrixOperation operation, Lanes lanes) {
  switch (operation) {
    case MatrixOperation::load:
      return load(lanes, false);
    case MatrixOperation::load_transposed:
      return load(lanes, true);
    case MatrixOperation::multiply_bf16:
      return multiply<tessera::kernels::BFloat16>(lanes);
    case MatrixOperation::multiply_f16:
      return multiply<tessera::kernels::Half>(lanes);
  }
}

}  // namespace emulator
