// Weights and activations in codes.
#include <tessera/nf4.hpp>

#include "kernels/codes.hpp"
#include "kernels/elements.hpp"
#include "kernels/rows.hpp"
#include "pointwise/functions/quantize.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

struct Levels {
  float of[16];
};
/// The format's levels, in constant memory.
constexpr Levels nf4_levels() {
  Levels all = {};
  for (int code = 0; code < 16; ++code) all.of[code] = kernels::nf4::levels[code];
  return all;
}
__constant__ Levels levels = nf4_levels();

/// Calls body(row, part) for the parts of rows that this block has.
template <class Body>
__device__ void each_part(const ScaleArguments& a, Body body) {
  for (std::int64_t work = blockIdx.x; work < a.rows * a.parts; work += gridDim.x) {
    body(work / a.parts, work % a.parts);
  }
}

/// Calls body(i) for the elements of a part of a row that this thread has.
template <class Body>
__device__ void each_of_part(const QuantizeArguments& a, std::int64_t part, Body body) {
  const std::int64_t begin = a.rows.length * part / a.scale.parts;
  const std::int64_t end = a.rows.length * (part + 1) / a.scale.parts;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) body(i);
}

__device__ float scale_of(const ScaleArguments& a, std::uint32_t largest) {
  return functions::scale_for(__builtin_bit_cast(float, largest), a.most, a.powers_of_two);
}

/// The only scale, in all threads; the first one writes its factor.
__device__ float only_scale(const ScaleArguments& a) {
  float scale = 0;
  if (a.given != nullptr) {
    scale = *a.given;
  } else {
    std::uint32_t most = 0;
    for (std::int64_t part = threadIdx.x; part < a.parts; part += blockDim.x) {
      most = NanMaximum{}(most, a.largest[part]);
    }
    scale = scale_of(a, join_block(most, 0U, NanMaximum{}));
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) *a.factor = 1 / scale;
  return scale;
}

}  // namespace

extern "C" {

/// Magnitudes are in the order of their bits, and NaN's are the largest. Of several rows of one
/// part, also the scales.
__global__ void largest_magnitudes(const QuantizeArguments a) {
  each_part(a.scale, [&](std::int64_t row, std::int64_t part) {
    const Row<float> x(a.rows, 0, row);
    std::uint32_t most = 0;
    each_of_part(a, part, [&](std::int64_t i) {
      most = NanMaximum{}(most, __builtin_bit_cast(std::uint32_t, x.get(i)) & 0x7fffffffU);
    });
    most = join_block(most, 0U, NanMaximum{});
    if (threadIdx.x != 0) return;
    if (a.scale.rows > 1 && a.scale.parts == 1) {
      const float scale = scale_of(a.scale, most);
      a.scale.scales[row] = scale;
      Row<float>(a.rows, 2, row).set(0, 1 / scale);
    } else {
      a.scale.largest[row * a.scale.parts + part] = most;
    }
  });
}

/// Of several rows of several parts.
__global__ void scales_of_rows(const QuantizeArguments a) {
  each_element(a.scale.rows, [&](std::int64_t row) {
    std::uint32_t most = 0;
    for (std::int64_t part = 0; part < a.scale.parts; ++part) {
      most = NanMaximum{}(most, a.scale.largest[row * a.scale.parts + part]);
    }
    const float scale = scale_of(a.scale, most);
    a.scale.scales[row] = scale;
    Row<float>(a.rows, 2, row).set(0, 1 / scale);
  });
}

__global__ void quantize_rows(const QuantizeArguments a) {
  const float only = a.scale.rows == 1 ? only_scale(a.scale) : 0;
  each_part(a.scale, [&](std::int64_t row, std::int64_t part) {
    const Row<float> x(a.rows, 0, row), codes(a.rows, 1, row);
    const float scale = a.scale.rows == 1 ? only : a.scale.scales[row];
    each_of_part(a, part, [&](std::int64_t i) {
      codes.set(i, functions::scaled_and_cut(x.get(i), scale, a.scale.most));
    });
  });
}

/// A block has tiles in turn, and a thread words of 4 bytes.
__global__ void turn_codes(const TurnArguments t) {
  constexpr int side = codes_tile, words = side / 4;
  __shared__ std::uint32_t tile[side][words + 1];
  const std::int64_t across = (t.columns + side - 1) / side;
  const std::int64_t tiles = codes_tiles(t.rows, t.columns);
  for (std::int64_t work = blockIdx.x; work < tiles; work += gridDim.x) {
    const std::int64_t first_row = work / across * side, first_column = work % across * side;
    for (unsigned i = threadIdx.x; i < side * words; i += blockDim.x) {
      const std::int64_t row = first_row + i / words, column = first_column + i % words * 4;
      if (row < t.rows && column < t.columns) {
        tile[i / words][i % words] = *reinterpret_cast<const std::uint32_t*>(
            static_cast<const std::uint8_t*>(t.codes) + row * t.leading + column);
      }
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < side * words; i += blockDim.x) {
      const unsigned column = i / words, row = i % words * 4;  // of the tile
      if (first_column + column < t.columns && first_row + row < t.rows) {
        std::uint32_t word = 0;
        for (unsigned k = 0; k < 4; ++k) {
          word |= (tile[row + k][column / 4] >> (column % 4 * 8) & 0xffU) << (k * 8);
        }
        *reinterpret_cast<std::uint32_t*>(static_cast<std::uint8_t*>(t.turned) +
                                          (first_column + column) * t.rows + first_row + row) =
            word;
      }
    }
    __syncthreads();
  }
}

/// A block has tiles in turn.
__global__ void quantize_tiles(const QuantizeTilesArguments a) {
  constexpr unsigned side = codes_tile, pitch = side + 4;  // bytes of lanes are in different banks
  __shared__ std::uint8_t tile[side][pitch];
  const std::int64_t across = (a.rows.length + side - 1) / side;
  const std::int64_t tiles = codes_tiles(a.rows.rows, a.rows.length);
  const DType type = a.rows.arrays[2].type;
  const float only = a.scale.rows == 1 ? only_scale(a.scale) : 0;
  for (std::int64_t work = blockIdx.x; work < tiles; work += gridDim.x) {
    const std::int64_t first_row = work / across * side, first_column = work % across * side;
    for (unsigned i = threadIdx.x; i < side * side; i += blockDim.x) {
      const std::int64_t row = first_row + i / side, column = first_column + i % side;
      if (row < a.rows.rows && column < a.rows.length) {
        const Row<float> x(a.rows, 0, row), codes(a.rows, 1, row);
        const float scale = a.scale.rows == 1
                                ? only
                                : a.scale.scales[row * a.row_scales + column * a.column_scales];
        std::uint8_t& code = tile[i / side][i % side];
        store(&code, type, 0, functions::scaled_and_cut(x.get(column), scale, a.scale.most));
        if (codes.exists()) static_cast<std::uint8_t*>(codes.array.data)[codes.at(column)] = code;
      }
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < side * side; i += blockDim.x) {
      const std::int64_t row = first_row + i % side, column = first_column + i / side;
      if (row < a.rows.rows && column < a.rows.length) {
        const Row<float> turned(a.rows, 2, row);
        static_cast<std::uint8_t*>(turned.array.data)[turned.at(column)] = tile[i % side][i / side];
      }
    }
    __syncthreads();
  }
}

/// Bits of the CPU: a quotient, a sum, a product.
__global__ void nf4_values(const Nf4Arguments a) {
  namespace nf4 = kernels::nf4;
  each_element(a.rows * a.columns, [&](std::int64_t i) {
    const std::int64_t row = i / a.columns, column = i % a.columns;
    const std::int64_t block = column / nf4::block_size;
    const std::int64_t place = a.first_block + row * a.row_blocks + block;
    const float scale =
        nf4::scale_of(a.scales[row * a.scales_strides[0] + block * a.scales_strides[1]],
                      a.factors[place / nf4::scale_block_size * a.factors_stride], *a.mean);
    const unsigned both = a.codes[row * a.codes_strides[0] + column / 2 * a.codes_strides[1]];
    const unsigned code = column % 2 == 0 ? both / 16 : both % 16;
    a.y[row * a.y_strides[0] + column * a.y_strides[1]] = levels.of[code] * scale;
  });
}

}  // extern "C"
