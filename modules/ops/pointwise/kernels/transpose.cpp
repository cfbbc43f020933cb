#include "transpose.hpp"

#include <algorithm>

#include "shared/kernels/streaming.hpp"
#include "shared/kernels/transpose_square.hpp"

namespace tessera::kernels {
namespace {

/// A square of as many rows as a line of the cache has elements: at once where it is streamed, as
/// whole lines must be written then, else in squares that stay in registers.
template <class Isa, class Word>
[[gnu::always_inline]] inline void transpose_line_square(const Word* x, std::int64_t x_stride,
                                                         Word* y, std::int64_t y_stride,
                                                         bool streamed) {
  constexpr int kBytes = transposition::kLineBytes<Isa>;
  constexpr std::int64_t kSide = transposition::kLine<Word, 64>;
  constexpr std::int64_t kPart = transposition::kLine<Word, kBytes>;
  if (streamed) {
    transposition::square<Word, 64>(x, x_stride, y, y_stride, true);
    return;
  }
  for (std::int64_t i = 0; i < kSide; i += kPart) {
    for (std::int64_t j = 0; j < kSide; j += kPart) {
      transposition::square<Word, kBytes>(x + j * x_stride + i, x_stride, y + i * y_stride + j,
                                          y_stride);
    }
  }
}

}  // namespace

template <class Word>
void transpose(std::int64_t rows, std::int64_t columns, const Word* x, std::int64_t x_stride,
               Word* y, std::int64_t y_stride, bool past_caches) {
  constexpr int kLineBytes = 64;  // of a cache
  const bool streamed = past_caches &&
                        y_stride * static_cast<std::int64_t>(sizeof(Word)) % kLineBytes == 0 &&
                        reinterpret_cast<std::uintptr_t>(y) % kLineBytes == 0;
  const simd::Stores done(streamed);
  // Lines that are a power of two apart share one place in the first-level cache, so each line that
  // is read is used up at once. A tile has few pages, in which it reads and writes several lines.
  constexpr std::int64_t kTile = 64;
  constexpr std::int64_t kSide = sizeof(Word) == 1 ? kTile : transposition::kLine<Word, kLineBytes>;
  for (std::int64_t row = 0; row < rows; row += kTile) {
    const std::int64_t last_row = std::min(rows, row + kTile);
    for (std::int64_t column = 0; column < columns; column += kTile) {
      const std::int64_t last_column = std::min(columns, column + kTile);
      simd::dispatch([&](auto isa) __attribute__((always_inline)) {
        for (std::int64_t i = row; i < last_row; i += kSide) {
          for (std::int64_t j = column; j < last_column; j += kSide) {
            const Word* const from = x + j * x_stride + i;
            Word* const to = y + i * y_stride + j;
            if constexpr (sizeof(Word) > 1) {
              if (i + kSide <= last_row && j + kSide <= last_column) {
                // Prefetches these lines of the tile that follows, whose rows are pages apart.
                for (std::int64_t line = 0; line < kSide; ++line)
                  __builtin_prefetch(from + (kTile + line) * x_stride, 0, 2);
                transpose_line_square<decltype(isa)>(from, x_stride, to, y_stride, streamed);
                continue;
              }
            }
            transposition::elements(std::min(kSide, last_row - i), std::min(kSide, last_column - j),
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
