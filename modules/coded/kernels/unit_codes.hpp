#pragma once
// The codes of 32 elements of a weight, and what their sums are multiplied with, for each type.
// For sources of this folder only.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "integer_product.hpp"
#include "shared/kernels/simd.hpp"

// Each operation is rounded: the bits are those of every machine.
#pragma STDC FP_CONTRACT OFF

namespace tessera::kernels::integers {

using simd::F32;
using simd::I32;
using simd::U16;
using Bytes16 = unsigned char __attribute__((vector_size(16)));
using Bytes32 = unsigned char __attribute__((vector_size(32)));

inline constexpr std::int64_t kUnit = kRoundedElements;
/// Rows of the weight that are computed together: one in each lane.
inline constexpr std::int64_t kTogether = 16;

template <class Isa>
[[gnu::always_inline]] inline F32 widen(U16 halves) {
  if constexpr (Isa::kLevel != simd::Level::base) {
    using Halves = _Float16 __attribute__((vector_size(32)));
    return __builtin_convertvector(simd::bits_as<Halves>(halves), F32);
  } else {
    return simd::widen_half(halves);
  }
}

/// So many rows of the weight, whose last ones may be the same.
struct WeightRows {
  const std::byte* row[kTogether];
  F32 scale;  // of the rows, where they have one
};

/// The halves at a place of all rows.
template <class Isa>
[[gnu::always_inline]] inline F32 halves_at(const WeightRows& rows, std::int64_t place) {
  U16 halves;
#pragma unroll
  for (int i = 0; i < kTogether; ++i) {
    halves[i] = simd::raw_load<std::uint16_t>(rows.row[i] + place);
  }
  return widen<Isa>(halves);
}

/// What the sums of a group's codes are multiplied with.
struct GroupScales {
  F32 scale = {};
  F32 second = {};   // of the second 16 elements
  F32 minimum = {};  // subtracted
};

[[gnu::always_inline]] inline Bytes32 joined(Bytes16 a, Bytes16 b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17,
                                 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
}

[[gnu::always_inline]] inline Bytes32 nibbles(const std::byte* from) {
  const auto bytes = simd::raw_load<Bytes16>(from);
  return joined(bytes & 0xf, bytes >> 4);
}

/// Twice the numbers of 4 bits: 0 to 4, 6, 8 and 12, and a sign.
[[gnu::always_inline]] inline Bytes32 twice_small_numbers(Bytes32 code) {
  const Bytes32 size = code & 7;
  const Bytes32 twice = size + __builtin_elementwise_sub_sat(size, Bytes32{} + 4) +
                        __builtin_elementwise_sub_sat(size, Bytes32{} + 6) * 2;
  const Bytes32 negative = Bytes32{} - (code >> 3);
  return (twice ^ negative) - negative;
}

/// The bits of a word, as bytes that are 0 or `value`.
[[gnu::always_inline]] inline Bytes32 bits_of(const std::byte* word, unsigned char value) {
  using Bytes4 = unsigned char __attribute__((vector_size(4)));
  const auto four = simd::raw_load<Bytes4>(word);
  const Bytes32 spread =
      __builtin_shufflevector(four, four, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                              2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const Bytes32 bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128,
                       1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const Bytes32 set = simd::bits_as<Bytes32>((spread & bit) != 0);
  return set & value;
}

/// A type: its bytes; what is subtracted from codes, which are unsigned here; whether a minimum is
/// subtracted from values; whether 16 elements have a scale; the codes of 32 elements.
template <std::int64_t kOffsetOf, bool kMinimum = false, bool kHalves = false>
struct Kind {
  static constexpr std::int32_t kOffset = kOffsetOf;
  static constexpr bool kHasMinimum = kMinimum;
  static constexpr bool kHasHalves = kHalves;
};

template <class Codes>
struct UnitCodes;

template <>
struct UnitCodes<Int8Codes> : Kind<128> {
  /// `left`: elements of the row from the unit on; those beyond it are multiplied with 0.
  [[gnu::always_inline]] static Bytes32 codes(const std::byte* row, std::int64_t unit,
                                              std::int64_t left) {
    Bytes32 signed_codes = {};
    if (left < kUnit) {
      std::memcpy(&signed_codes, row + unit * kUnit, static_cast<std::size_t>(left));
    } else {
      signed_codes = simd::raw_load<Bytes32>(row + unit * kUnit);
    }
    return signed_codes ^ 0x80;
  }
  template <class Isa>
  [[gnu::always_inline]] static GroupScales scales(const WeightRows& rows, std::int64_t) {
    return {.scale = rows.scale};
  }
};

template <>
struct UnitCodes<Q8_0Codes> : Kind<128> {
  static constexpr std::int64_t kBytes = 34;
  [[gnu::always_inline]] static Bytes32 codes(const std::byte* row, std::int64_t unit,
                                              std::int64_t) {
    return simd::raw_load<Bytes32>(row + unit * kBytes + 2) ^ 0x80;
  }
  template <class Isa>
  [[gnu::always_inline]] static GroupScales scales(const WeightRows& rows, std::int64_t unit) {
    return {.scale = halves_at<Isa>(rows, unit * kBytes)};
  }
};

template <>
struct UnitCodes<Q4_0Codes> : Kind<8> {
  static constexpr std::int64_t kBytes = 18;
  [[gnu::always_inline]] static Bytes32 codes(const std::byte* row, std::int64_t unit,
                                              std::int64_t) {
    return nibbles(row + unit * kBytes + 2);
  }
  template <class Isa>
  [[gnu::always_inline]] static GroupScales scales(const WeightRows& rows, std::int64_t unit) {
    return {.scale = halves_at<Isa>(rows, unit * kBytes)};
  }
};

template <>
struct UnitCodes<Mxfp4Codes> : Kind<12> {
  static constexpr std::int64_t kBytes = 17;
  [[gnu::always_inline]] static Bytes32 codes(const std::byte* row, std::int64_t unit,
                                              std::int64_t) {
    return twice_small_numbers(nibbles(row + unit * kBytes + 1)) + 12;
  }
  template <class Isa>
  [[gnu::always_inline]] static GroupScales scales(const WeightRows& rows, std::int64_t unit) {
    simd::U32 exponents;
    for (int i = 0; i < kTogether; ++i) {
      exponents[i] = static_cast<std::uint32_t>(rows.row[i][unit * kBytes]);
    }
    const simd::U32 bits =
        exponents < 2 ? (simd::U32{} + 0x00200000U) << (exponents & 1) : (exponents - 1) << 23;
    return {.scale = simd::bits_as<F32>(bits)};
  }
};

template <>
struct UnitCodes<Q4_1Codes> : Kind<0, true> {
  static constexpr std::int64_t kBytes = 20;
  [[gnu::always_inline]] static Bytes32 codes(const std::byte* row, std::int64_t unit,
                                              std::int64_t) {
    return nibbles(row + unit * kBytes + 4);
  }
  template <class Isa>
  [[gnu::always_inline]] static GroupScales scales(const WeightRows& rows, std::int64_t unit) {
    return {.scale = halves_at<Isa>(rows, unit * kBytes),
            .minimum = -halves_at<Isa>(rows, unit * kBytes + 2)};
  }
};

template <>
struct UnitCodes<Q5_0Codes> : Kind<16> {
  static constexpr std::int64_t kBytes = 22;
  [[gnu::always_inline]] static Bytes32 codes(const std::byte* row, std::int64_t unit,
                                              std::int64_t) {
    const std::byte* const block = row + unit * kBytes;
    return nibbles(block + 6) | bits_of(block + 2, 16);
  }
  template <class Isa>
  [[gnu::always_inline]] static GroupScales scales(const WeightRows& rows, std::int64_t unit) {
    return {.scale = halves_at<Isa>(rows, unit * kBytes)};
  }
};

/// The scale and the minimum of a group of a block of 256, of 6 bits each in 12 bytes.
template <class Isa>
[[gnu::always_inline]] inline GroupScales group_scales(const WeightRows& rows, std::int64_t block,
                                                       std::int64_t group) {
  I32 scales;
  I32 minimums;
  for (int i = 0; i < kTogether; ++i) {
    const std::byte* const from = rows.row[i] + block + 4 + group % 4;
    const auto first = static_cast<std::int32_t>(from[0]);
    const auto second = static_cast<std::int32_t>(from[4]);
    const auto third = static_cast<std::int32_t>(from[group < 4 ? 0 : 8]);
    scales[i] = group < 4 ? first & 63 : (third & 15) | first >> 6 << 4;
    minimums[i] = group < 4 ? second & 63 : third >> 4 | second >> 6 << 4;
  }
  return {.scale = halves_at<Isa>(rows, block) * __builtin_convertvector(scales, F32),
          .minimum = halves_at<Isa>(rows, block + 2) * __builtin_convertvector(minimums, F32)};
}

template <>
struct UnitCodes<Q4KCodes> : Kind<0, true> {
  static constexpr std::int64_t kBytes = 144;
  [[gnu::always_inline]] static Bytes32 codes(const std::byte* row, std::int64_t unit,
                                              std::int64_t) {
    const auto bytes = simd::raw_load<Bytes32>(row + unit / 8 * kBytes + 16 + unit % 8 / 2 * kUnit);
    return unit % 2 == 0 ? bytes & 0xf : bytes >> 4;
  }
  template <class Isa>
  [[gnu::always_inline]] static GroupScales scales(const WeightRows& rows, std::int64_t unit) {
    return group_scales<Isa>(rows, unit / 8 * kBytes, unit % 8);
  }
};

template <>
struct UnitCodes<Q5KCodes> : Kind<0, true> {
  static constexpr std::int64_t kBytes = 176;
  [[gnu::always_inline]] static Bytes32 codes(const std::byte* row, std::int64_t unit,
                                              std::int64_t) {
    const std::byte* const block = row + unit / 8 * kBytes;
    const auto bytes = simd::raw_load<Bytes32>(block + 48 + unit % 8 / 2 * kUnit);
    const auto mask = static_cast<unsigned char>(1 << unit % 8);
    const Bytes32 set =
        simd::bits_as<Bytes32>((simd::raw_load<Bytes32>(block + 16) & mask) != 0) & 16;
    return (unit % 2 == 0 ? bytes & 0xf : bytes >> 4) | set;
  }
  template <class Isa>
  [[gnu::always_inline]] static GroupScales scales(const WeightRows& rows, std::int64_t unit) {
    return group_scales<Isa>(rows, unit / 8 * kBytes, unit % 8);
  }
};

template <>
struct UnitCodes<Q6KCodes> : Kind<32, false, true> {
  static constexpr std::int64_t kBytes = 210;
  [[gnu::always_inline]] static Bytes32 codes(const std::byte* row, std::int64_t unit,
                                              std::int64_t) {
    const std::byte* const block = row + unit / 8 * kBytes;
    const std::int64_t half = unit % 8 / 4;
    const std::int64_t quarter = unit % 4;
    const auto low = simd::raw_load<Bytes32>(block + half * 64 + quarter % 2 * kUnit);
    const auto high = simd::raw_load<Bytes32>(block + 128 + half * 32);
    const Bytes32 two = quarter == 0   ? high << 4
                        : quarter == 1 ? high << 2
                        : quarter == 2 ? high
                                       : high >> 2;
    return (quarter < 2 ? low & 0xf : low >> 4) | (two & 0x30);
  }
  template <class Isa>
  [[gnu::always_inline]] static GroupScales scales(const WeightRows& rows, std::int64_t unit) {
    const std::int64_t block = unit / 8 * kBytes;
    const F32 scale = halves_at<Isa>(rows, block + 208);
    I32 first;
    I32 second;
    for (int i = 0; i < kTogether; ++i) {
      const std::byte* const from = rows.row[i] + block + 192 + unit % 8 * 2;
      first[i] = static_cast<std::int8_t>(from[0]);
      second[i] = static_cast<std::int8_t>(from[1]);
    }
    return {.scale = scale * __builtin_convertvector(first, F32),
            .second = scale * __builtin_convertvector(second, F32)};
  }
};

}  // namespace tessera::kernels::integers
