#pragma once
// The two 8-bit floating formats as plain bits with explicit conversions, rounding to nearest even.
// They are stored, moved and converted; arithmetic is done in other types. Wider types are
// converted through float, as torch does it.

#include <bit>
#include <cstdint>

namespace tessera::kernels {

namespace float8_detail {

/// The magnitude of a float (its bits without the sign) in a format with `fraction` fraction bits
/// and this exponent bias, rounded to nearest even; larger than the format's largest number where
/// that is exceeded. `magnitude` is a finite number below the format's next power of two.
template <int fraction, int bias>
constexpr std::uint32_t rounded(std::uint32_t magnitude) {
  constexpr int dropped = 23 - fraction;
  // The smallest normal number; below it, adding this power of two lets the hardware round at the
  // unit of the subnormals, 2^(1 - bias - fraction).
  constexpr std::uint32_t smallest_normal = static_cast<std::uint32_t>(128 - bias) << 23;
  constexpr std::uint32_t unit = static_cast<std::uint32_t>(128 - bias + dropped) << 23;
  const float shifted = std::bit_cast<float>(magnitude) + std::bit_cast<float>(unit);
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - unit;
  const std::uint32_t odd = (magnitude >> dropped) & 1U;
  const std::uint32_t normal = (magnitude - (static_cast<std::uint32_t>(127 - bias) << 23) +
                                ((1U << (dropped - 1)) - 1U) + odd) >>
                               dropped;
  return magnitude < smallest_normal ? subnormal : normal;
}

/// The float of the magnitude of a code: its exponent's bias goes to 127 by a multiplication, which
/// makes subnormals normal.
template <int fraction, int bias>
constexpr float widened(std::uint32_t magnitude) {
  constexpr std::uint32_t factor = static_cast<std::uint32_t>(254 - bias) << 23;
  return std::bit_cast<float>(magnitude << (23 - fraction)) * std::bit_cast<float>(factor);
}

}  // namespace float8_detail

/// A sign, `exponent` bits of an exponent with this bias, and the fraction in the rest of 8 bits.
/// `infinite`: the largest exponent has infinities and NaN, as in IEEE formats, and what rounds to
/// more than the largest number is infinite. Otherwise only 0x7f and 0xff are NaN, and larger
/// numbers and infinities become the largest number.
template <int exponent, int bias, bool infinite>
struct Float8 {
  std::uint8_t bits = 0;

  constexpr Float8() = default;
  constexpr explicit Float8(float value) : bits(from_float(value)) {}
  constexpr explicit Float8(double value) : Float8(static_cast<float>(value)) {}

  static constexpr Float8 from_bits(std::uint8_t raw) {
    Float8 result;
    result.bits = raw;
    return result;
  }

  constexpr explicit operator float() const {
    const std::uint32_t magnitude = bits & 0x7fU;
    std::uint32_t value =
        std::bit_cast<std::uint32_t>(float8_detail::widened<fraction, bias>(magnitude));
    if constexpr (infinite) {
      value |= magnitude >= overflow ? 0x7f800000U : 0U;
    } else {
      value = magnitude > overflow ? 0x7fc00000U : value;
    }
    return std::bit_cast<float>(value | (static_cast<std::uint32_t>(bits & 0x80U) << 24));
  }
  constexpr explicit operator double() const {
    return static_cast<double>(static_cast<float>(*this));
  }

  /// Same bits; so NaN equals itself and the two zeros differ.
  friend constexpr bool operator==(Float8, Float8) = default;

 private:
  static constexpr int fraction = 7 - exponent;
  /// Result for numbers that are too large: infinity, or the largest number.
  static constexpr std::uint32_t overflow = infinite ? ((1U << exponent) - 1U) << fraction : 0x7eU;
  /// The power of two (the bits of a float) that is too large in any case.
  static constexpr std::uint32_t too_large =
      static_cast<std::uint32_t>(127 + (1 << exponent) - (infinite ? 1 : 0) - bias) << 23;

  static constexpr std::uint8_t from_float(float value) {
    const auto raw = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = raw & 0x7fffffffU;
    const std::uint32_t finite =
        magnitude >= too_large ? overflow : float8_detail::rounded<fraction, bias>(magnitude);
    const std::uint32_t result = magnitude > 0x7f800000U ? 0x7fU  // NaN
                                 : finite < overflow     ? finite
                                                         : overflow;
    return static_cast<std::uint8_t>(result | ((raw >> 24) & 0x80U));
  }
};

/// The largest number is 448; torch's float8_e4m3fn, which saturates from torch 2.12 on.
using Float8E4M3 = Float8<4, 7, false>;
/// Infinities are 0x7c and 0xfc, the largest number is 57344; torch's float8_e5m2.
using Float8E5M2 = Float8<5, 15, true>;

static_assert(sizeof(Float8E4M3) == 1 && sizeof(Float8E5M2) == 1);
static_assert(Float8E4M3(448.0F).bits == 0x7e && Float8E4M3(465.0F).bits == 0x7e);
static_assert(Float8E5M2(57344.0F).bits == 0x7b && Float8E5M2(61440.0F).bits == 0x7c);
static_assert(Float8E4M3(512.0F).bits == 0x7e && Float8E5M2(65536.0F).bits == 0x7c);

}  // namespace tessera::kernels
