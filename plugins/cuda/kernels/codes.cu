// Weights and activations in codes.
#include <tessera/nf4.hpp>

#include "kernels/codes.hpp"
#include "kernels/elements.hpp"
#include "kernels/row_pieces.hpp"
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

__device__ std::int64_t end_of_part(const QuantizeArguments& a, std::int64_t part) {
  const std::int64_t end = (part + 1) * a.scale.each;
  return end < a.rows.length ? end : a.rows.length;
}

/// Calls body(i) for the elements of a part of a row that this thread has.
template <class Body>
__device__ void each_of_part(const QuantizeArguments& a, std::int64_t part, Body body) {
  const std::int64_t end = end_of_part(a, part);
  for (std::int64_t i = part * a.scale.each + threadIdx.x; i < end; i += blockDim.x) body(i);
}

/// The scale of an element of a weight in NF4, with the CPU's bits: a quotient and a sum.
__device__ float nf4_scale(const Nf4Arguments& a, std::int64_t row, std::int64_t column) {
  namespace nf4 = kernels::nf4;
  const std::int64_t block = column / nf4::block_size;
  const std::int64_t place = a.first_block + row * a.row_blocks + block;
  return nf4::scale_of(a.scales[row * a.scales_strides[0] + block * a.scales_strides[1]],
                       a.factors[place / nf4::scale_block_size * a.factors_stride], *a.mean);
}

__device__ float scale_of(const ScaleArguments& a, std::uint32_t largest) {
  return functions::scale_for(__builtin_bit_cast(float, largest), a.most, a.powers_of_two);
}

/// Magnitudes are in the order of their bits, and NaN's are the largest.
__device__ std::uint32_t magnitude(float x) {
  return __builtin_bit_cast(std::uint32_t, x) & 0x7fffffffU;
}

/// Notes the largest magnitude of a part, which the block's threads have joined. Of several rows of
/// one part, also the scales.
__device__ void set_largest(const QuantizeArguments& a, std::int64_t row, std::int64_t part,
                            std::uint32_t most) {
  if (threadIdx.x != 0) return;
  if (a.scale.rows > 1 && a.scale.parts == 1) {
    const float scale = scale_of(a.scale, most);
    a.scale.scales[row] = scale;
    Row<float>(a.rows, 2, row).set(0, 1 / scale);
  } else {
    a.scale.largest[row * a.scale.parts + part] = most;
  }
}

/// Of rows of T that begin at multiples of 16 bytes.
template <class T>
__device__ void largest_in_pieces(const QuantizeArguments& a) {
  each_part(a.scale, [&](std::int64_t row, std::int64_t part) {
    const T* const x = row_of<const T>(a.rows, 0, row);
    std::uint32_t most = 0;
    const auto add = [&](float value) {
      const std::uint32_t other = magnitude(value);
      most = other > most ? other : most;
    };
    each_loaded_piece(
        x, part * a.scale.each, end_of_part(a, part), true,
        [&](const Piece<T>& piece, std::int64_t) {
#pragma unroll
          for (int k = 0; k < Piece<T>::elements; ++k) add(piece.get(k));
        },
        [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) add(convert<float>(x[i]));
        });
    set_largest(a, row, part, join_block(most, 0U, NanMaximum{}));
  });
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

// ---- codes in pieces ----

using kernels::Float8E4M3;
using kernels::Float8E5M2;

inline constexpr int codes_of_piece = 16;

/// The scales of a piece of 16 elements: one, or with `vary` one for each.
template <bool vary>
struct ScalesOfPiece {
  const float* of;
  float only;
  __device__ float get(int k) const {
    if constexpr (vary) return of[k];
    return only;
  }
};

/// The code of a product that is no number, as an x86 CPU has it: the sign is that of the first
/// factor which is none; 0 times infinity is negative.
__device__ std::uint32_t nan_code(float x, float scale) {
  const float of = x != x ? x : scale != scale ? scale : -1.0F;
  return 0x7fU | (__builtin_bit_cast(std::uint32_t, of) >> 24 & 0x80U);
}

/// 16 numbers as codes, with the CPU's bits: what is too large becomes the largest code.
template <class Code, class T, bool vary>
__device__ Piece<Code> codes_of(const Piece<T, codes_of_piece>& x,
                                const ScalesOfPiece<vary>& scales) {
  float values[codes_of_piece];
  bool nan = false;
#pragma unroll
  for (int k = 0; k < codes_of_piece; ++k) {
    values[k] = x.get(k) * scales.get(k);
    nan |= values[k] != values[k];
  }
  Piece<Code> codes;
#pragma unroll
  for (int k = 0; k < codes_of_piece; k += 4) {
    codes.words[k / 4] = rounded_codes<Code>(values[k], values[k + 1]) |
                         rounded_codes<Code>(values[k + 2], values[k + 3]) << 16;
  }
  if (nan) {
#pragma unroll
    for (int k = 0; k < codes_of_piece; ++k) {
      const int shift = k % 4 * 8;
      if (values[k] != values[k]) {
        codes.words[k / 4] =
            (codes.words[k / 4] & ~(0xffU << shift)) | nan_code(x.get(k), scales.get(k)) << shift;
      }
    }
  }
  return codes;
}

/// A matrix of T as codes; with `vary`, columns have scales of their own.
template <class Code, class T, bool vary>
struct QuantizedPieces {
  const QuantizePiecesArguments& a;
  float only;

  __device__ Piece<T, codes_of_piece> load(std::int64_t row, std::int64_t column) const {
    return load_piece<T, codes_of_piece>(a.x, row * a.x_step + column);
  }
  __device__ Piece<Code> codes(const Piece<T, codes_of_piece>& x, std::int64_t row,
                               std::int64_t column) const {
    if constexpr (vary) return codes_of<Code>(x, ScalesOfPiece<true>{a.scale.scales + column, 0});
    const float scale = a.row_scales != 0 && a.scale.rows > 1 ? a.scale.scales[row] : only;
    return codes_of<Code>(x, ScalesOfPiece<false>{nullptr, scale});
  }
  __device__ void store(std::int64_t row, std::int64_t column, const Piece<Code>& piece) const {
    store_words(static_cast<std::uint8_t*>(a.codes) + row * a.codes_step + column, piece.words);
  }
};

/// A tile of codes in shared memory, in words of four codes of a row.
struct CodesTile {
  static constexpr int side = codes_tile, words = side / 4, pieces = side / codes_of_piece;
  std::uint32_t of[side][words + 1];  // so that a column has many banks

  /// Codes 16 `piece` to 16 `piece` + 15 of a row.
  __device__ void put(unsigned row, unsigned piece, const std::uint32_t (&codes)[4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) of[row][piece * 4 + k] = codes[k];
  }
  /// The codes of a column in rows 16 `piece` to 16 `piece` + 15.
  __device__ void get_turned(unsigned column, unsigned piece, std::uint32_t (&codes)[4]) const {
    const unsigned shift = column % 4 * 8;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      codes[k] = 0;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const std::uint32_t word = of[piece * codes_of_piece + k * 4 + n][column / 4];
        codes[k] |= (word >> shift & 0xffU) << (n * 8);
      }
    }
  }
};

/// Calls body(first row, first column) for the tiles that the block has in turn.
template <class Body>
__device__ void each_tile(std::int64_t rows, std::int64_t columns, Body body) {
  const std::int64_t across = (columns + codes_tile - 1) / codes_tile;
  const std::int64_t tiles = codes_tiles(rows, columns);
  for (std::int64_t work = blockIdx.x; work < tiles; work += gridDim.x) {
    body(work / across * codes_tile, work % across * codes_tile);
  }
}

/// Stores a tile turned: [columns, rows] from `turned` on, whose rows are `step` apart. Extents are
/// multiples of 16.
__device__ void store_turned(const CodesTile& tile, std::uint8_t* turned, std::int64_t step,
                             std::int64_t rows, std::int64_t columns, std::int64_t first_row,
                             std::int64_t first_column) {
  for (unsigned i = threadIdx.x; i < CodesTile::side * CodesTile::pieces; i += blockDim.x) {
    const unsigned column = i / CodesTile::pieces, piece = i % CodesTile::pieces;
    const std::int64_t row = first_row + piece * codes_of_piece;
    if (first_column + column < columns && row < rows) {
      std::uint32_t codes[4];
      tile.get_turned(column, piece, codes);
      store_words(turned + (first_column + column) * step + row, codes);
    }
  }
}

/// A thread has pieces in turn.
template <class Matrix>
__device__ void quantize_in_pieces(const Matrix& x) {
  const auto across = static_cast<unsigned>(x.a.columns / codes_of_piece);
  const auto count = static_cast<unsigned>(x.a.rows) * across;
  for (auto work = static_cast<unsigned>(thread_place()); work < count;
       work += static_cast<unsigned>(thread_count())) {
    const std::int64_t row = work / across, column = std::int64_t{work % across} * codes_of_piece;
    x.store(row, column, x.codes(x.load(row, column), row, column));
  }
}

/// A block has tiles in turn, and a thread pieces of them.
template <class Matrix>
__device__ void quantize_in_tiles(const Matrix& x, CodesTile& tile) {
  const QuantizePiecesArguments& a = x.a;
  each_tile(a.rows, a.columns, [&](std::int64_t first_row, std::int64_t first_column) {
    for (unsigned i = threadIdx.x; i < CodesTile::side * CodesTile::pieces; i += blockDim.x) {
      const unsigned line = i / CodesTile::pieces, piece = i % CodesTile::pieces;
      const std::int64_t row = first_row + line, column = first_column + piece * codes_of_piece;
      if (row < a.rows && column < a.columns) {
        const auto codes = x.codes(x.load(row, column), row, column);
        tile.put(line, piece, codes.words);
        if (a.codes != nullptr) x.store(row, column, codes);
      }
    }
    __syncthreads();
    store_turned(tile, static_cast<std::uint8_t*>(a.turned), a.turned_step, a.rows, a.columns,
                 first_row, first_column);
    __syncthreads();
  });
}

template <class Code, class T, bool vary>
__device__ void quantize_matrix(const QuantizePiecesArguments& a, float only, CodesTile& tile) {
  const QuantizedPieces<Code, T, vary> x{a, only};
  a.turned != nullptr ? quantize_in_tiles(x, tile) : quantize_in_pieces(x);
}

template <class T>
__device__ void quantize_pieces(const QuantizePiecesArguments& a) {
  __shared__ CodesTile tile;
  const float only = a.scale.rows == 1 ? only_scale(a.scale) : 0;
  const bool vary = a.column_scales != 0 && a.scale.rows > 1;
  if (a.code_type == DType::f8e4m3) {
    vary ? quantize_matrix<Float8E4M3, T, true>(a, only, tile)
         : quantize_matrix<Float8E4M3, T, false>(a, only, tile);
  } else {
    vary ? quantize_matrix<Float8E5M2, T, true>(a, only, tile)
         : quantize_matrix<Float8E5M2, T, false>(a, only, tile);
  }
}

}  // namespace

extern "C" {

__global__ void largest_magnitudes(const QuantizeArguments a) {
  each_part(a.scale, [&](std::int64_t row, std::int64_t part) {
    const Row<float> x(a.rows, 0, row);
    std::uint32_t most = 0;
    each_of_part(a, part, [&](std::int64_t i) { most = NanMaximum{}(most, magnitude(x.get(i))); });
    set_largest(a, row, part, join_block(most, 0U, NanMaximum{}));
  });
}
__global__ void largest_magnitudes_f32(const QuantizeArguments a) { largest_in_pieces<float>(a); }
__global__ void largest_magnitudes_bf16(const QuantizeArguments a) {
  largest_in_pieces<BFloat16>(a);
}
__global__ void largest_magnitudes_f16(const QuantizeArguments a) { largest_in_pieces<Half>(a); }

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

/// A block has tiles in turn, and a thread pieces of 16 codes.
__global__ void turn_codes(const TurnArguments t) {
  __shared__ CodesTile tile;
  each_tile(t.rows, t.columns, [&](std::int64_t first_row, std::int64_t first_column) {
    for (unsigned i = threadIdx.x; i < CodesTile::side * CodesTile::pieces; i += blockDim.x) {
      const unsigned line = i / CodesTile::pieces, piece = i % CodesTile::pieces;
      const std::int64_t row = first_row + line, column = first_column + piece * codes_of_piece;
      if (row < t.rows && column < t.columns) {
        tile.put(line, piece, load_piece<Float8E4M3>(t.codes, row * t.leading + column).words);
      }
    }
    __syncthreads();
    store_turned(tile, static_cast<std::uint8_t*>(t.turned), t.rows, t.rows, t.columns, first_row,
                 first_column);
    __syncthreads();
  });
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

__global__ void quantize_pieces_f32(const QuantizePiecesArguments a) { quantize_pieces<float>(a); }
__global__ void quantize_pieces_bf16(const QuantizePiecesArguments a) {
  quantize_pieces<BFloat16>(a);
}
__global__ void quantize_pieces_f16(const QuantizePiecesArguments a) { quantize_pieces<Half>(a); }

__global__ void nf4_values(const Nf4Arguments a) {
  each_element(a.rows * a.columns, [&](std::int64_t i) {
    const std::int64_t row = i / a.columns, column = i % a.columns;
    const float scale = nf4_scale(a, row, column);
    const unsigned both = a.codes[row * a.codes_strides[0] + column / 2 * a.codes_strides[1]];
    const unsigned code = column % 2 == 0 ? both / 16 : both % 16;
    a.y[row * a.y_strides[0] + column * a.y_strides[1]] = levels.of[code] * scale;
  });
}

/// Where eight elements of a row are a word of codes and two pieces of y.
__global__ void nf4_pieces(const Nf4Arguments a) {
  constexpr int each = 8;
  __shared__ float values[16];  // lanes with different codes read different banks
  if (threadIdx.x < 16) values[threadIdx.x] = levels.of[threadIdx.x];
  __syncthreads();
  const auto across = static_cast<unsigned>(a.columns / each);
  const auto count = static_cast<unsigned>(a.rows) * across;
  for (auto work = static_cast<unsigned>(thread_place()); work < count;
       work += static_cast<unsigned>(thread_count())) {
    const std::int64_t row = work / across, column = std::int64_t{work % across} * each;
    const std::uint32_t codes =
        *reinterpret_cast<const std::uint32_t*>(a.codes + row * a.codes_strides[0] + column / 2);
    const float scale = nf4_scale(a, row, column);
    float y[each];
#pragma unroll
    for (int k = 0; k < each; ++k) {
      y[k] = values[codes >> (k / 2 * 8 + (k % 2 == 0 ? 4 : 0)) & 15U] * scale;
    }
    store_piece(a.y, row * a.y_strides[0] + column, pack<float>(y));
  }
}

}  // extern "C"
