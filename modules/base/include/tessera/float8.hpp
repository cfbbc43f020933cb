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

/// 1 sign, 4 exponent (bias 7), 3 fraction bits; no infinities: 0x7f and 0xff are NaN, the largest
/// number is 448. Larger numbers and infinities become 448, as in torch (float8_e4m3fn) from 2.12
/// on.
struct Float8E4M3 {
  std::uint8_t bits = 0;

  constexpr Float8E4M3() = default;
  constexpr explicit Float8E4M3(float value) : bits(from_float(value)) {}
  constexpr explicit Float8E4M3(double value) : Float8E4M3(static_cast<float>(value)) {}

  static constexpr Float8E4M3 from_bits(std::uint8_t raw) {
    Float8E4M3 result;
    result.bits = raw;
    return result;
  }

  constexpr explicit operator float() const {
    const std::uint32_t magnitude = bits & 0x7fU;
    const std::uint32_t value =
        magnitude == 0x7fU ? 0x7fc00000U
                           : std::bit_cast<std::uint32_t>(float8_detail::widened<3, 7>(magnitude));
    return std::bit_cast<float>(value | (static_cast<std::uint32_t>(bits & 0x80U) << 24));
  }
  constexpr explicit operator double() const {
    return static_cast<double>(static_cast<float>(*this));
  }

  /// Same bits; so NaN equals itself and the two zeros differ.
  friend constexpr bool operator==(Float8E4M3, Float8E4M3) = default;

 private:
  static constexpr std::uint8_t from_float(float value) {
    const auto raw = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = raw & 0x7fffffffU;
    // 480 is the number that 0x7f would be.
    const std::uint32_t finite =
        magnitude >= 0x43f00000U ? 0x7eU : float8_detail::rounded<3, 7>(magnitude);
    const std::uint32_t result = magnitude > 0x7f800000U ? 0x7fU : finite < 0x7eU ? finite : 0x7eU;
    return static_cast<std::uint8_t>(result | ((raw >> 24) & 0x80U));
  }
};

/// 1 sign, 5 exponent (bias 15), 2 fraction bits, as IEEE formats are: infinities are 0x7c and
/// 0xfc, the largest number is 57344, and what rounds to more is infinite (torch's float8_e5m2).
struct Float8E5M2 {
  std::uint8_t bits = 0;

  constexpr Float8E5M2() = default;
  constexpr explicit Float8E5M2(float value) : bits(from_float(value)) {}
  constexpr explicit Float8E5M2(double value) : Float8E5M2(static_cast<float>(value)) {}

  static constexpr Float8E5M2 from_bits(std::uint8_t raw) {
    Float8E5M2 result;
    result.bits = raw;
    return result;
  }

  constexpr explicit operator float() const {
    const std::uint32_t magnitude = bits & 0x7fU;
    const std::uint32_t value =
        std::bit_cast<std::uint32_t>(float8_detail::widened<2, 15>(magnitude)) |
        (magnitude >= 0x7cU ? 0x7f800000U : 0U);
    return std::bit_cast<float>(value | (static_cast<std::uint32_t>(bits & 0x80U) << 24));
  }
  constexpr explicit operator double() const {
    return static_cast<double>(static_cast<float>(*this));
  }

  /// Same bits; so NaN equals itself and the two zeros differ.
  friend constexpr bool operator==(Float8E5M2, Float8E5M2) = default;

 private:
  static constexpr std::uint8_t from_float(float value) {
    const auto raw = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = raw & 0x7fffffffU;
    const std::uint32_t result = magnitude > 0x7f800000U ? 0x7fU  // NaN
                                 : magnitude >= 0x47800000U
                                     ? 0x7cU  // 65536 and more
                                     : float8_detail::rounded<2, 15>(magnitude);
    return static_cast<std::uint8_t>(result | ((raw >> 24) & 0x80U));
  }
};

static_assert(sizeof(Float8E4M3) == 1 && sizeof(Float8E5M2) == 1);
static_assert(Float8E4M3(448.0F).bits == 0x7e && Float8E4M3(465.0F).bits == 0x7e);
static_assert(Float8E5M2(57344.0F).bits == 0x7b && Float8E5M2(61440.0F).bits == 0x7c);

}  // namespace tessera::kernels
