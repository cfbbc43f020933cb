#include "quantize.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <tessera/float8.hpp>
#include <vector>

#include "pointwise/functions/quantize.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd.hpp"

namespace tessera::kernels {
namespace {

constexpr std::int64_t kGrain = 1 << 15;  // elements

/// The larger magnitude; a NaN stays.
template <class V>
[[gnu::always_inline]] inline V larger(V most, V x) {
  const V magnitude = x < 0 ? -x : x;
  return magnitude > most || magnitude != magnitude ? magnitude : most;
}

/// The largest magnitude of `count` elements.
template <class T>
float largest(const T* x, std::int64_t count) {
  // Magnitudes are in the order of their bits, and NaN's are the largest.
  std::uint32_t most = 0;
  simd::dispatch([&](auto) __attribute__((always_inline)) {
    const T* const from = x;
    const std::int64_t end = count;
    std::uint32_t own = 0;
    for (std::int64_t i = 0; i < end; ++i) {
      own = std::max(own, std::bit_cast<std::uint32_t>(static_cast<float>(from[i])) & 0x7fffffffU);
    }
    most = own;
  });
  return std::bit_cast<float>(most);
}

template <class T>
float largest_of_all(const T* x, std::int64_t count) {
  const std::int64_t pieces = (count + kGrain - 1) / kGrain;
  std::vector<float> of_pieces(static_cast<std::size_t>(pieces));
  parallel_for(0, pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      of_pieces[static_cast<std::size_t>(i)] =
          largest(x + i * kGrain, std::min(kGrain, count - i * kGrain));
    }
  });
  return largest(of_pieces.data(), pieces);
}

/// Of each column; a piece has whole columns.
template <class T>
void largest_of_columns(const T* x, std::int64_t rows, std::int64_t columns, float* out) {
  constexpr std::int64_t kColumns = 64;
  parallel_for(0, columns, kColumns, [&](std::int64_t begin, std::int64_t end) {
    std::fill(out + begin, out + end, 0.0F);
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = 0; row < rows; ++row) {
        const T* const from = x + row * columns;
        for (std::int64_t column = begin; column < end; ++column) {
          out[column] = larger(out[column], static_cast<float>(from[column]));
        }
      }
    });
  });
}

template <class Code, class T>
[[gnu::always_inline]] inline Code code_of(T x, float scale, float most) {
  return static_cast<Code>(functions::scaled_and_cut(static_cast<float>(x), scale, most));
}

template <class Code, class T>
void quantize_rows(std::int64_t rows, std::int64_t columns, const T* x, const float* scales,
                   ScaleStrides strides, float most, Code* codes) {
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, columns));
  parallel_for(0, rows, grain, [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      // Codes are bytes, which may be any object's: what the loops read must be their own.
      const std::int64_t count = columns;
      const float limit = most;
      for (std::int64_t row = begin; row < end; ++row) {
        const T* const from = x + row * count;
        Code* const __restrict to = codes + row * count;
        const float* const own = scales + row * strides.row;
        if (strides.column == 0) {
          const float scale = own[0];
          for (std::int64_t i = 0; i < count; ++i) to[i] = code_of<Code>(from[i], scale, limit);
        } else {
          for (std::int64_t i = 0; i < count; ++i) to[i] = code_of<Code>(from[i], own[i], limit);
        }
      }
    });
  });
}

}  // namespace

float scale_for(float amax, float most, bool powers_of_two) {
  return functions::scale_for(amax, most, powers_of_two);
}

void largest_magnitudes(DType type, std::int64_t rows, std::int64_t columns, const void* x,
                        ScaleStrides strides, float* out) {
  visit<FloatingTypes>(
      type,
      [&]<class T>(T) {
        const auto* const from = static_cast<const T*>(x);
        if (strides.column != 0) {
          largest_of_columns(from, rows, columns, out);
        } else if (strides.row != 0) {
          parallel_for(0, rows,
                       std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, columns)),
                       [&](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t row = begin; row < end; ++row) {
                           out[row] = largest(from + row * columns, columns);
                         }
                       });
        } else {
          out[0] = largest_of_all(from, rows * columns);
        }
      },
      [] {});
}

void quantize(DType type, DType code_type, std::int64_t rows, std::int64_t columns, const void* x,
              const float* scales, ScaleStrides strides, void* codes) {
  const float most = largest_of(code_type);
  visit<FloatingTypes>(
      type,
      [&]<class T>(T) {
        const auto* const from = static_cast<const T*>(x);
        if (code_type == DType::f8e4m3) {
          quantize_rows(rows, columns, from, scales, strides, most,
                        static_cast<Float8E4M3*>(codes));
        } else {
          quantize_rows(rows, columns, from, scales, strides, most,
                        static_cast<Float8E5M2*>(codes));
        }
      },
      [] {});
}

void turn_bytes(std::int64_t rows, std::int64_t columns, const void* codes, void* turned) {
  constexpr std::int64_t kSide = 64;  // of tiles, whose lines stay in the cache
  const auto* const from = static_cast<const std::uint8_t*>(codes);
  auto* const to = static_cast<std::uint8_t*>(turned);
  const std::int64_t grain =
      std::max<std::int64_t>(kSide, kGrain / std::max<std::int64_t>(1, rows));
  parallel_for(0, columns, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = 0; first < rows; first += kSide) {
      const std::int64_t last = std::min(rows, first + kSide);
      for (std::int64_t column = begin; column < end; ++column) {
        for (std::int64_t row = first; row < last; ++row) {
          to[column * rows + row] = from[row * columns + column];
        }
      }
    }
  });
}

}  // namespace tessera::kernels
