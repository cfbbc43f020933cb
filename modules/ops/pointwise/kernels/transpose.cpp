#include "transpose.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "shared/kernels/streaming.hpp"

namespace tessera::kernels {
namespace {

/// 64 bytes of elements.
template <class Word>
using Line = Word __attribute__((vector_size(64)));
template <class Word>
inline constexpr int kLine = 64 / sizeof(Word);

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
template <int kGroup, class Word>
[[gnu::always_inline]] inline void exchange(Line<Word>* lines) {
  using Lanes = std::make_integer_sequence<int, kLine<Word>>;
#pragma unroll
  for (int line = 0; line < kLine<Word>; ++line) {
    if ((line & kGroup) != 0) continue;
    const Line<Word> a = lines[line];
    const Line<Word> b = lines[line + kGroup];
    lines[line] = join_groups<kGroup, false>(a, b, Lanes{});
    lines[line + kGroup] = join_groups<kGroup, true>(a, b, Lanes{});
  }
}

/// A square of as many rows as a line has elements. Streamed lines go past the caches.
template <class Word>
[[gnu::always_inline]] inline void transpose_square(const Word* x, std::int64_t x_stride, Word* y,
                                                    std::int64_t y_stride, bool streamed) {
  Line<Word> lines[kLine<Word>];
#pragma unroll
  for (int line = 0; line < kLine<Word>; ++line)
    std::memcpy(&lines[line], x + line * x_stride, sizeof(lines[line]));
  exchange<1, Word>(lines);
  exchange<2, Word>(lines);
  exchange<4, Word>(lines);
  if constexpr (kLine<Word> > 8) exchange<8, Word>(lines);
  if constexpr (kLine<Word> > 16) exchange<16, Word>(lines);
  if (streamed) {
#pragma unroll
    for (int line = 0; line < kLine<Word>; ++line)
      __builtin_nontemporal_store(lines[line], reinterpret_cast<Line<Word>*>(y + line * y_stride));
    return;
  }
#pragma unroll
  for (int line = 0; line < kLine<Word>; ++line)
    std::memcpy(y + line * y_stride, &lines[line], sizeof(lines[line]));
}

template <class Word>
void transpose_elements(std::int64_t rows, std::int64_t columns, const Word* x,
                        std::int64_t x_stride, Word* y, std::int64_t y_stride) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) y[i * y_stride + j] = x[j * x_stride + i];
  }
}

}  // namespace

template <class Word>
void transpose(std::int64_t rows, std::int64_t columns, const Word* x, std::int64_t x_stride,
               Word* y, std::int64_t y_stride, bool past_caches) {
  constexpr std::int64_t kLineBytes = 64;
  const bool streamed = past_caches &&
                        y_stride * static_cast<std::int64_t>(sizeof(Word)) % kLineBytes == 0 &&
                        reinterpret_cast<std::uintptr_t>(y) % kLineBytes == 0;
  const simd::Stores done(streamed);
  // Lines that are a power of two apart share one place in the first-level cache, so each line that
  // is read is used up at once. A tile has few pages, in which it reads and writes several lines.
  constexpr std::int64_t kTile = 64;
  constexpr std::int64_t kSide = sizeof(Word) == 1 ? kTile : kLine<Word>;
  for (std::int64_t row = 0; row < rows; row += kTile) {
    const std::int64_t last_row = std::min(rows, row + kTile);
    for (std::int64_t column = 0; column < columns; column += kTile) {
      const std::int64_t last_column = std::min(columns, column + kTile);
      simd::dispatch([&](auto) __attribute__((always_inline)) {
        for (std::int64_t i = row; i < last_row; i += kSide) {
          for (std::int64_t j = column; j < last_column; j += kSide) {
            const Word* const from = x + j * x_stride + i;
            Word* const to = y + i * y_stride + j;
            if constexpr (sizeof(Word) > 1) {
              if (i + kSide <= last_row && j + kSide <= last_column) {
                // Prefetches these lines of the tile that follows, whose rows are pages apart.
                for (std::int64_t line = 0; line < kSide; ++line)
                  __builtin_prefetch(from + (kTile + line) * x_stride, 0, 2);
                transpose_square(from, x_stride, to, y_stride, streamed);
                continue;
              }
            }
            transpose_elements(std::min(kSide, last_row - i), std::min(kSide, last_column - j),
                               from, x_stride, to, y_stride);
          }
        }
      });
    }
  }
}

template decltype(transpose<std::uint8_t>) transpose<std::uint8_t>;
template decltype(transpose<std::uint16_t>) transpose<std::uint16_t>;
template decltype(transpose<std::uint32_t>) transpose<std::uint32_t>;
template decltype(transpose<std::uint64_t>) transpose<std::uint64_t>;

}  // namespace tessera::kernels
