#pragma once
// Transposition of a square in registers, inlined into a dispatched body (see simd.hpp).

#include <cstdint>
#include <cstring>
#include <utility>

#include "simd.hpp"

namespace tessera::kernels::transposition {

/// A line of a square, and how many elements it has: a square has as many lines.
template <class Word, int kBytes>
using Line = Word __attribute__((vector_size(kBytes)));
template <class Word, int kBytes>
inline constexpr int kLine = kBytes / sizeof(Word);

/// Bytes of a line with which a square of 4 or 8 bytes an element stays in registers.
template <class Isa>
inline constexpr int kLineBytes = Isa::kLevel == simd::Level::avx512 ? 64
                                  : Isa::kLevel == simd::Level::avx2 ? 32
                                                                     : 16;

/// Exchange of lanes in groups of kGroup: the even groups of a, with the groups of b in place of
/// the odd ones; or, kUpper, the odd groups of a in place of the even ones, and the odd groups of
/// b.
template <int kGroup, bool kUpper, class V, int... kAt>
[[gnu::always_inline]] inline V join_groups(V a, V b,
                                            std::integer_sequence<int, kAt...> /*lanes*/) {
  constexpr int kLanes = sizeof...(kAt);
  constexpr int kShift = kUpper ? kGroup : 0;
  return __builtin_shufflevector(
      a, b, ((kAt & kGroup) == 0 ? kAt + kShift : kLanes + kAt - kGroup + kShift)...);
}

/// Exchanges the blocks beside the diagonal of each square of 2 kGroup lines.
template <int kGroup, class Word, int kBytes>
[[gnu::always_inline]] inline void exchange(Line<Word, kBytes>* lines) {
  constexpr int kLines = kLine<Word, kBytes>;
  if constexpr (kGroup < kLines) {
    using Lanes = std::make_integer_sequence<int, kLines>;
#pragma unroll
    for (int line = 0; line < kLines; ++line) {
      if ((line & kGroup) != 0) continue;
      const Line<Word, kBytes> a = lines[line];
      const Line<Word, kBytes> b = lines[line + kGroup];
      lines[line] = join_groups<kGroup, false>(a, b, Lanes{});
      lines[line + kGroup] = join_groups<kGroup, true>(a, b, Lanes{});
    }
  }
}

/// y[i, j] = x[j, i] for a square of kLine rows and columns; strides in elements. Streamed lines go
/// past the caches; y is then aligned to kBytes.
template <class Word, int kBytes>
[[gnu::always_inline]] inline void square(const Word* x, std::int64_t x_stride, Word* y,
                                          std::int64_t y_stride, bool streamed = false) {
  constexpr int kLines = kLine<Word, kBytes>;
  using V = Line<Word, kBytes>;
  V lines[kLines];
#pragma unroll
  for (int line = 0; line < kLines; ++line)
    std::memcpy(&lines[line], x + line * x_stride, sizeof(V));
  exchange<1, Word, kBytes>(lines);
  exchange<2, Word, kBytes>(lines);
  exchange<4, Word, kBytes>(lines);
  exchange<8, Word, kBytes>(lines);
  exchange<16, Word, kBytes>(lines);
  if (streamed) {
#pragma unroll
    for (int line = 0; line < kLines; ++line)
      __builtin_nontemporal_store(lines[line], reinterpret_cast<V*>(y + line * y_stride));
    return;
  }
#pragma unroll
  for (int line = 0; line < kLines; ++line)
    std::memcpy(y + line * y_stride, &lines[line], sizeof(V));
}

/// The same for any numbers of rows and columns, element by element.
template <class Word>
[[gnu::always_inline]] inline void elements(std::int64_t rows, std::int64_t columns, const Word* x,
                                            std::int64_t x_stride, Word* y, std::int64_t y_stride) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) y[i * y_stride + j] = x[j * x_stride + i];
  }
}

}  // namespace tessera::kernels::transposition
