#include "rounded_rows.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd.hpp"

// Each operation is rounded: the bits are those of every machine.
#pragma STDC FP_CONTRACT OFF

namespace tessera::kernels {
namespace {

using integers::kQuads;
using simd::F32;
using simd::I32;

constexpr std::int64_t kUnit = kRoundedElements;
using CodeVector = signed char __attribute__((vector_size(16)));

/// The largest |x|, as its bits: those of what is not finite are larger than all others.
[[gnu::always_inline]] inline std::uint32_t largest_bits(F32 a, F32 b) {
  const simd::U32 mask = simd::U32{} + 0x7fffffffU;
  const auto left = simd::bits_as<simd::U32>(a) & mask;
  const auto right = simd::bits_as<simd::U32>(b) & mask;
  return __builtin_reduce_max(left > right ? left : right);
}

/// 32 elements of x, the last of them 0 where the row ends.
template <class Isa>
[[gnu::always_inline]] inline void round_unit(Isa, const float* from, std::int64_t left,
                                              RoundedRows& to, std::int64_t at) {
  const F32 x[2] = {left >= 16 ? simd::load(from) : simd::load_partial(from, left),
                    left >= 32  ? simd::load(from + 16)
                    : left > 16 ? simd::load_partial(from + 16, left - 16)
                                : F32{}};
  constexpr std::uint32_t kInfinite = 0x7f800000;
  const std::uint32_t bits = largest_bits(x[0], x[1]);
  float scale = simd::bits_as<float>(bits) / 127;
  float inverse = 0;
  if (bits >= kInfinite) {
    scale = __builtin_nanf("");
  } else if (scale < 0x1p-126F) {
    scale = 0;
  } else {
    inverse = 1 / scale;
  }
  const auto index = static_cast<std::size_t>(at);
  signed char codes[kUnit];
  for (int i = 0; i < 2; ++i) {
    // A sum with this is rounded to an integer, in its low bits. What is not finite has no codes.
    const F32 shifted = (inverse == 0 ? F32{} : x[i] * inverse) + 0x1.8p23F;
    const I32 rounded = simd::bits_as<I32>(shifted) - 0x4b400000;
    const auto narrow = __builtin_convertvector(rounded, CodeVector);
    std::memcpy(codes + i * 16, &narrow, sizeof narrow);
    to.halves[2 * index + static_cast<std::size_t>(i)] = __builtin_reduce_add(rounded);
  }
  to.scale[index] = scale;
  to.sum[index] = static_cast<float>(to.halves[2 * index] + to.halves[2 * index + 1]) * scale;
  std::int32_t* const even = to.even.data() + at * kQuads;
  if (to.signed8) {
    std::memcpy(even, codes, sizeof codes);
    return;
  }
  std::int32_t* const odd = to.odd.data() + at * kQuads;
  const auto pair = [&](std::int64_t first) __attribute__((always_inline)) {
    const auto low = static_cast<std::uint32_t>(static_cast<std::uint16_t>(codes[first]));
    const auto high = static_cast<std::uint32_t>(static_cast<std::uint16_t>(codes[first + 2]));
    return static_cast<std::int32_t>(low | high << 16);
  };
  for (std::int64_t quad = 0; quad < kQuads; ++quad) {
    even[quad] = pair(4 * quad);
    odd[quad] = pair(4 * quad + 1);
  }
}

}  // namespace

RoundedRows rounded_rows(const float* x, std::int64_t m, std::int64_t k, bool signed8) {
  RoundedRows rows(m, k, signed8);
  constexpr std::int64_t kGrainElements = 1 << 14;
  parallel_for(0, m, 1 + kGrainElements / k, [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto isa) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        for (std::int64_t unit = 0; unit < rows.units; ++unit) {
          round_unit(isa, x + row * k + unit * kUnit, k - unit * kUnit, rows,
                     row * rows.units + unit);
        }
      }
    });
  });
  return rows;
}

}  // namespace tessera::kernels
