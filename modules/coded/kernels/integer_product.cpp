#include "integer_product.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <tessera/half.hpp>
#include <vector>

#include "panels.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd.hpp"

// Each operation is rounded: the bits are those of every machine.
#pragma STDC FP_CONTRACT OFF

namespace tessera::kernels {
namespace {

using simd::F32;
using simd::I32;
using simd::U16;
using Bytes16 = unsigned char __attribute__((vector_size(16)));
using Bytes32 = unsigned char __attribute__((vector_size(32)));
using Quads8 = std::int32_t __attribute__((vector_size(32)));

constexpr std::int64_t kUnit = kRoundedElements;
constexpr std::int64_t kQuads = kUnit / 4;
/// Rows of the weight that are computed together: one in each lane.
constexpr std::int64_t kTogether = 16;

// ---- what a machine does with four unsigned codes of a lane and four signed ones ----

/// On any machine: products of words of 16 bits.
struct PlainDots {
  static constexpr bool kSigned8 = false;  // the right operand is `even` and `odd`
  [[gnu::always_inline]] static I32 pairs(I32 left, I32 right) {
    return (left & 0xffff) * (right << 16 >> 16) + (left >> 16) * (right >> 16);
  }
  [[gnu::always_inline]] static void add(I32& sum, const I32& codes, const I32& even,
                                         const I32& odd) {
    sum += pairs(codes & 0x00ff00ff, even) + pairs((codes >> 8) & 0x00ff00ff, odd);
  }
};

#if defined(__x86_64__)
// A function with more instructions than its caller cannot be always inlined. These are inlined
// all the same when their callers are in a function that has the instructions. They pass no
// vectors, as who has wider registers passes them otherwise.

// The halves of other vectors, for machines with registers of 32 bytes.
using Shorts16 = std::int16_t __attribute__((vector_size(32), may_alias));
using Words8 = std::int32_t __attribute__((vector_size(32), may_alias));
using Shorts32 = std::int16_t __attribute__((vector_size(64), may_alias));

struct Avx2Dots {
  static constexpr bool kSigned8 = false;
  __attribute__((target("avx2"))) static void add(I32& sum, const I32& codes, const I32& even,
                                                  const I32& odd) {
    const I32 low = codes & 0x00ff00ff;
    const I32 high = (codes >> 8) & 0x00ff00ff;
    const auto* const left = reinterpret_cast<const Shorts16*>(&low);
    const auto* const right = reinterpret_cast<const Shorts16*>(&even);
    const auto* const left_odd = reinterpret_cast<const Shorts16*>(&high);
    const auto* const right_odd = reinterpret_cast<const Shorts16*>(&odd);
    auto* const to = reinterpret_cast<Words8*>(&sum);
    for (int half = 0; half < 2; ++half) {
      to[half] += __builtin_ia32_pmaddwd256(left[half], right[half]);
      to[half] += __builtin_ia32_pmaddwd256(left_odd[half], right_odd[half]);
    }
  }
};

struct Avx512Dots {
  static constexpr bool kSigned8 = false;
  __attribute__((target("avx512f,avx512bw"))) static void add(I32& sum, const I32& codes,
                                                              const I32& even, const I32& odd) {
    const I32 low = codes & 0x00ff00ff;
    const I32 high = (codes >> 8) & 0x00ff00ff;
    sum += __builtin_ia32_pmaddwd512(reinterpret_cast<const Shorts32&>(low),
                                     reinterpret_cast<const Shorts32&>(even));
    sum += __builtin_ia32_pmaddwd512(reinterpret_cast<const Shorts32&>(high),
                                     reinterpret_cast<const Shorts32&>(odd));
  }
};

/// By the instruction for unsigned and signed bytes.
struct AvxVnniDots {
  static constexpr bool kSigned8 = true;  // the right operand is `four`
  __attribute__((target("avx2,avxvnni"))) static void add(I32& sum, const I32& codes,
                                                          const I32& four, const I32&) {
    const auto* const left = reinterpret_cast<const Words8*>(&codes);
    const auto* const right = reinterpret_cast<const Words8*>(&four);
    auto* const to = reinterpret_cast<Words8*>(&sum);
    to[0] = __builtin_ia32_vpdpbusd256(to[0], left[0], right[0]);
    to[1] = __builtin_ia32_vpdpbusd256(to[1], left[1], right[1]);
  }
};

struct Avx512VnniDots {
  static constexpr bool kSigned8 = true;
  __attribute__((target("avx512f,avx512vnni"))) static void add(I32& sum, const I32& codes,
                                                                const I32& four, const I32&) {
    sum = __builtin_ia32_vpdpbusd512(sum, codes, four);
  }
};

template <class Body>
__attribute__((flatten, min_vector_width(512),
               target("avx2,fma,bmi,bmi2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"))) void
run_avx512_vnni(Body& body) {
  body(simd::Isa<simd::Level::avx512>{}, Avx512VnniDots{});
}
template <class Body>
__attribute__((flatten, target("avx2,fma,bmi,bmi2,f16c,avxvnni"))) void run_avx_vnni(Body& body) {
  body(simd::Isa<simd::Level::avx2>{}, AvxVnniDots{});
}
#endif

/// Calls body(isa, dots) with the fastest of them that this machine has. TESSERA_SIMD (for tests)
/// chooses a level alone, without what some of its machines have besides, or `avx_vnni`.
template <class Body>
void dispatch_dots(Body&& body) {
#if defined(__x86_64__)
  enum class Bytes : std::uint8_t { none, avx, avx512 };
  static const Bytes best = [] {
    const char* const wanted = std::getenv("TESSERA_SIMD");
    const std::string_view limit = wanted == nullptr ? "" : wanted;
    __builtin_cpu_init();
    if (limit.empty() && simd::level() == simd::Level::avx512 &&
        __builtin_cpu_supports("avx512vnni")) {
      return Bytes::avx512;
    }
    const bool takes_avx =
        limit == "avx_vnni" || (limit.empty() && simd::level() == simd::Level::avx2);
    return takes_avx && simd::level() != simd::Level::base && __builtin_cpu_supports("avxvnni")
               ? Bytes::avx
               : Bytes::none;
  }();
  if (best == Bytes::avx512) return run_avx512_vnni(body);
  if (best == Bytes::avx) return run_avx_vnni(body);
#endif
  simd::dispatch([&]<class Isa>(Isa isa) __attribute__((always_inline)) {
#if defined(__x86_64__)
    if constexpr (Isa::kLevel == simd::Level::avx512) return body(isa, Avx512Dots{});
    if constexpr (Isa::kLevel == simd::Level::avx2) return body(isa, Avx2Dots{});
#endif
    if constexpr (Isa::kLevel == simd::Level::base) return body(isa, PlainDots{});
  });
}

// ---- the codes of 32 elements ----

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

// ---- x ----

}  // namespace

/// Rows of x in codes.
struct RoundedRows {
  std::int64_t m;
  std::int64_t units;              // of a row
  bool signed8;                    // see below
  std::vector<std::int32_t> even;  // [m, units, 8] four codes of 8 bits; else their first and third
  std::vector<std::int32_t> odd;   // with 16 bits, and here their second and fourth
  std::vector<float> scale;        // [m, units]
  std::vector<float> sum;          // [m, units] of the codes, times the scale
  std::vector<std::int32_t> halves;  // [m, units, 2] the sums of 16 codes

  RoundedRows(std::int64_t rows, std::int64_t k, bool as_signed8)
      : m(rows), units((k + kUnit - 1) / kUnit), signed8(as_signed8) {
    const auto count = static_cast<std::size_t>(m * units);
    even.resize(count * kQuads);
    odd.resize(signed8 ? 0 : count * kQuads);
    scale.resize(count);
    sum.resize(count);
    halves.resize(count * 2);
  }
};

namespace {

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

// ---- sums ----

/// Two rows of the weight next to each other, eight of these: the rows of number 0 to 3 and 8 to
/// 11, each with the one that is 4 further.
constexpr std::int64_t kPairs = kTogether / 2;
[[gnu::always_inline]] constexpr int first_of_pair(int pair) { return pair % 4 + pair / 4 * 8; }

template <class Unit>
[[gnu::always_inline]] inline I32 pair_codes(const WeightRows& rows, int pair, std::int64_t unit,
                                             std::int64_t left) {
  using Bytes64 = unsigned char __attribute__((vector_size(64)));
  const int first = first_of_pair(pair);
  const Bytes32 halves[2] = {Unit::codes(rows.row[first], unit, left),
                             Unit::codes(rows.row[first + 4], unit, left)};
  return simd::bits_as<I32>(simd::raw_load<Bytes64>(halves));
}

[[gnu::always_inline]] inline I32 low_words(I32 a, I32 b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
}
[[gnu::always_inline]] inline I32 high_words(I32 a, I32 b) {
  return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
[[gnu::always_inline]] inline I32 low_pairs(I32 a, I32 b) {
  return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
}
[[gnu::always_inline]] inline I32 high_pairs(I32 a, I32 b) {
  return __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}
/// The first and the third quarters of both, and the second and the fourth ones.
[[gnu::always_inline]] inline I32 first_quarters(I32 a, I32 b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
}
[[gnu::always_inline]] inline I32 second_quarters(I32 a, I32 b) {
  return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}

/// Sums of the first and of the second 16 elements of a unit, of each row in its lane.
struct HalfSums {
  I32 first;
  I32 second;
};

/// Of eight sums for each row, four for each half.
[[gnu::always_inline]] inline HalfSums sums_of_rows(const I32 (&v)[kPairs]) {
  I32 half[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const I32 a = low_words(v[4 * i], v[4 * i + 1]) + high_words(v[4 * i], v[4 * i + 1]);
    const I32 b = low_words(v[4 * i + 2], v[4 * i + 3]) + high_words(v[4 * i + 2], v[4 * i + 3]);
    half[i] = low_pairs(a, b) + high_pairs(a, b);
  }
  return {first_quarters(half[0], half[1]), second_quarters(half[0], half[1])};
}

/// The sum with a unit's terms, of each row in its lane; see integer_product().
template <class Unit>
[[gnu::always_inline]] inline F32 with_unit(F32 sum, const HalfSums& sums,
                                            const GroupScales& scales, const RoundedRows& x,
                                            std::int64_t at) {
  const auto index = static_cast<std::size_t>(at);
  const float scale = x.scale[index];
  const auto floats = [](I32 v) __attribute__((always_inline)) {
    return __builtin_convertvector(v, F32);
  };
  if constexpr (Unit::kHasHalves) {
    sum += floats(sums.first) * (scales.scale * scale);
    return sum + floats(sums.second) * (scales.second * scale);
  } else {
    const F32 term = floats(sums.first + sums.second) * (scales.scale * scale);
    if constexpr (Unit::kHasMinimum) {
      return sum + (term - scales.minimum * x.sum[index]);
    } else {
      return sum + term;
    }
  }
}

/// Where the rows of the weight and their elements are.
struct Target {
  const CodedProduct& product;
  const RoundedRows& x;
  std::int64_t first_row;  // of x
  std::int64_t column;
  std::int64_t count;  // at most kTogether

  [[gnu::always_inline]] WeightRows rows() const {
    WeightRows rows{};
    for (int i = 0; i < kTogether; ++i) {
      const std::int64_t row = column + std::min<std::int64_t>(i, count - 1);
      rows.row[i] = product.codes + row * product.row_bytes;
      rows.scale[i] = product.scales == nullptr ? 0 : product.scales[row];
    }
    return rows;
  }
  [[gnu::always_inline]] void write(std::int64_t row, F32 sums) const {
    float* const to = product.c + row * product.n + column;
    if (count == kTogether) {
      simd::store(to, sums);
    } else {
      simd::store_partial(to, count, sums);
    }
  }
};

[[gnu::always_inline]] inline I32 twice(const std::int32_t* words) {
  const auto v = simd::raw_load<Quads8>(words);
  return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
}

/// Fetches a unit's share of the rows after these: the machine itself foresees no 16 rows that are
/// read side by side.
[[gnu::always_inline]] inline void fetch_next(const CodedProduct& product, const std::byte* rows,
                                              std::int64_t unit, std::int64_t units) {
  constexpr std::int64_t kLine = 64;
  const std::int64_t all = kTogether * product.row_bytes;
  const std::byte* const from = rows + all + unit * all / units;
  for (std::int64_t i = 0; i < all / units; i += kLine) __builtin_prefetch(from + i, 0, 2);
}

/// One row of x: the codes are read once, and summed as they are.
template <class Unit, class Isa, class Dots>
[[gnu::always_inline]] inline void one_row(Isa, Dots, const Target& target, std::int64_t row) {
  const RoundedRows& x = target.x;
  const WeightRows rows = target.rows();
  F32 sum = {};
  for (std::int64_t unit = 0; unit < x.units; ++unit) {
    const std::int64_t at = (target.first_row + row) * x.units + unit;
    const std::int64_t left = target.product.k - unit * kUnit;
    fetch_next(target.product, rows.row[0], unit, x.units);
    const I32 even = twice(x.even.data() + at * kQuads);
    const I32 odd = Dots::kSigned8 ? I32{} : twice(x.odd.data() + at * kQuads);
    I32 v[kPairs];
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const I32 codes = pair_codes<Unit>(rows, pair, unit, left);
      I32 dots = {};
      Dots::add(dots, codes, even, odd);
      v[pair] = dots;
    }
    HalfSums sums = sums_of_rows(v);
    if constexpr (Unit::kOffset != 0) {
      sums.first -= Unit::kOffset * x.halves[static_cast<std::size_t>(2 * at)];
      sums.second -= Unit::kOffset * x.halves[static_cast<std::size_t>(2 * at + 1)];
    }
    sum = with_unit<Unit>(sum, sums, Unit::template scales<Isa>(rows, unit), x, at);
  }
  target.write(row, sum);
}

/// Rows of the weight in the order of the sums: of each unit, four elements of all rows after the
/// other.
struct CodeTile {
  struct Unit {
    I32 quads[kQuads];
    GroupScales scales;
  };
  std::vector<Unit> units;
};

template <class Unit, class Isa>
[[gnu::always_inline]] inline void fill(Isa, const Target& target, CodeTile& tile) {
  const WeightRows rows = target.rows();
  for (std::int64_t unit = 0; unit < target.x.units; ++unit) {
    fetch_next(target.product, rows.row[0], unit, target.x.units);
    CodeTile::Unit& to = tile.units[static_cast<std::size_t>(unit)];
    const std::int64_t left = target.product.k - unit * kUnit;
    I32 quarters[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      I32 v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = pair_codes<Unit>(rows, 4 * i + j, unit, left);
      const I32 low[2] = {low_words(v[0], v[1]), low_words(v[2], v[3])};
      const I32 high[2] = {high_words(v[0], v[1]), high_words(v[2], v[3])};
      quarters[i][0] = low_pairs(low[0], low[1]);
      quarters[i][1] = high_pairs(low[0], low[1]);
      quarters[i][2] = low_pairs(high[0], high[1]);
      quarters[i][3] = high_pairs(high[0], high[1]);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      to.quads[j] = first_quarters(quarters[0][j], quarters[1][j]);
      to.quads[j + 4] = second_quarters(quarters[0][j], quarters[1][j]);
    }
    to.scales = Unit::template scales<Isa>(rows, unit);
  }
}

template <class Unit, int kRows, class Isa, class Dots>
[[gnu::always_inline]] inline void tiled_rows(Isa, Dots, const Target& target, const CodeTile& tile,
                                              std::int64_t row) {
  const RoundedRows& x = target.x;
  const std::int64_t from = target.first_row + row;
  F32 sum[kRows] = {};
  for (std::int64_t unit = 0; unit < x.units; ++unit) {
    const CodeTile::Unit& codes = tile.units[static_cast<std::size_t>(unit)];
    HalfSums sums[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const auto at = static_cast<std::size_t>((from + i) * x.units + unit);
      sums[i].first = simd::splat<I32>(-Unit::kOffset * x.halves[2 * at]);
      sums[i].second = simd::splat<I32>(-Unit::kOffset * x.halves[2 * at + 1]);
    }
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const std::int64_t word = ((from + i) * x.units + unit) * kQuads + quad;
        const I32 even = simd::splat<I32>(x.even[static_cast<std::size_t>(word)]);
        const I32 odd =
            Dots::kSigned8 ? I32{} : simd::splat<I32>(x.odd[static_cast<std::size_t>(word)]);
        Dots::add(quad < kQuads / 2 ? sums[i].first : sums[i].second, codes.quads[quad], even, odd);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      sum[i] = with_unit<Unit>(sum[i], sums[i], codes.scales, x, (from + i) * x.units + unit);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) target.write(row + i, sum[i]);
}

/// All rows of x, several at a time: the codes are put in their order once.
template <class Unit, class Isa, class Dots>
[[gnu::always_inline]] inline void many_rows(Isa isa, Dots dots, const Target& target,
                                             CodeTile& tile) {
  tile.units.resize(static_cast<std::size_t>(target.x.units));
  fill<Unit>(isa, target, tile);
  constexpr int kRows = Isa::kManyRegisters ? 4 : 2;
  std::int64_t row = 0;
  for (; row + kRows <= target.product.m; row += kRows) {
    tiled_rows<Unit, kRows>(isa, dots, target, tile, row);
  }
  for (; row + 2 <= target.product.m; row += 2) tiled_rows<Unit, 2>(isa, dots, target, tile, row);
  if (row < target.product.m) tiled_rows<Unit, 1>(isa, dots, target, tile, row);
}

bool takes_signed8() {
  bool result = false;
  dispatch_dots([&]<class Dots>(auto, Dots)
                    __attribute__((always_inline)) { result = Dots::kSigned8; });
  return result;
}

std::int64_t panels_of(const CodedProduct& product) {
  return product.m == 0 ? 0 : (product.n + kTogether - 1) / kTogether;
}

template <class Codes>
void panels(const CodedProduct& product, const RoundedRows& x, std::int64_t row, std::int64_t first,
            std::int64_t last) {
  using Unit = UnitCodes<Codes>;
  CodeTile tile;
  dispatch_dots([&](auto isa, auto dots) __attribute__((always_inline)) {
    for (std::int64_t panel = first; panel < last; ++panel) {
      const std::int64_t column = panel * kTogether;
      const Target target{product, x, row, column, std::min(kTogether, product.n - column)};
      if (product.m == 1) {
        one_row<Unit>(isa, dots, target, 0);
      } else {
        many_rows<Unit>(isa, dots, target, tile);
      }
    }
  });
}

}  // namespace

template <class Codes>
  requires is_integer<Codes>
IntegerTask integer_task(const CodedProduct& product) {
  return {product, panels<Codes>};
}

void integer_products(const float* x, std::int64_t m, std::int64_t k,
                      std::span<const IntegerTask> tasks) {
  if (k == 0) {
    for (const IntegerTask& task : tasks) {
      std::fill_n(task.product.c, task.product.m * task.product.n, 0.0F);
    }
    return;
  }
  const RoundedRows rounded = rounded_rows(x, m, k, takes_signed8());
  // Less work than this, some 2 microseconds, is not worth another piece.
  constexpr std::int64_t kGrainWork = 1 << 15;
  for_panels(
      tasks, kGrainWork, [](const IntegerTask& task) { return panels_of(task.product); },
      [](const IntegerTask& task) { return task.product.m * task.product.k * kTogether; },
      [&](const IntegerTask& task, std::int64_t first, std::int64_t last) {
        task.panels(task.product, rounded, (task.product.a - x) / k, first, last);
      });
}

template IntegerTask integer_task<Int8Codes>(const CodedProduct&);
template IntegerTask integer_task<Q4_0Codes>(const CodedProduct&);
template IntegerTask integer_task<Q4_1Codes>(const CodedProduct&);
template IntegerTask integer_task<Q5_0Codes>(const CodedProduct&);
template IntegerTask integer_task<Q8_0Codes>(const CodedProduct&);
template IntegerTask integer_task<Q4KCodes>(const CodedProduct&);
template IntegerTask integer_task<Q5KCodes>(const CodedProduct&);
template IntegerTask integer_task<Q6KCodes>(const CodedProduct&);
template IntegerTask integer_task<Mxfp4Codes>(const CodedProduct&);

}  // namespace tessera::kernels
