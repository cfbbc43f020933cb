#pragma once
// The two 16-bit floating formats as plain bits with explicit conversions, rounding to nearest
// even. Arithmetic is done in float: convert, compute, convert back.

#include <bit>
#include <cstdint>

namespace tessera::kernels {

/// The upper 16 bits of an IEEE float: 1 sign, 8 exponent, 7 fraction bits.
struct BFloat16 {
  std::uint16_t bits = 0;

  constexpr BFloat16() = default;
  constexpr explicit BFloat16(float value) : bits(from_float(value)) {}
  constexpr explicit BFloat16(double value) : BFloat16(static_cast<float>(value)) {}

  static constexpr BFloat16 from_bits(std::uint16_t raw) {
    BFloat16 result;
    result.bits = raw;
    return result;
  }

  constexpr explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  constexpr explicit operator double() const {
    return static_cast<double>(static_cast<float>(*this));
  }

  /// Same bits; so NaN equals itself and the two zeros differ.
  friend constexpr bool operator==(BFloat16, BFloat16) = default;

 private:
  static constexpr std::uint16_t from_float(float value) {
    const auto raw = std::bit_cast<std::uint32_t>(value);
    if ((raw & 0x7fffffffU) > 0x7f800000U) {  // NaN: keep it one, and quiet
      return static_cast<std::uint16_t>((raw >> 16) | 0x0040U);
    }
    return static_cast<std::uint16_t>((raw + 0x7fffU + ((raw >> 16) & 1U)) >> 16);
  }
};

/// IEEE binary16: 1 sign, 5 exponent, 10 fraction bits.
struct Half {
  std::uint16_t bits = 0;

  constexpr Half() = default;
  constexpr explicit Half(float value) : bits(from_float(value)) {}
  constexpr explicit Half(double value) : Half(static_cast<float>(value)) {}

  static constexpr Half from_bits(std::uint16_t raw) {
    Half result;
    result.bits = raw;
    return result;
  }

  constexpr explicit operator float() const {
    const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fffU) << 13;
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
    // The exponent's bias goes from 15 to 127 by a multiplication, which makes subnormals normal.
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p112F;
    std::uint32_t raw = std::bit_cast<std::uint32_t>(scaled);
    if (magnitude >= 0x0f800000U) raw |= 0x7f800000U;  // infinity or NaN
    return std::bit_cast<float>(raw | sign);
  }
  constexpr explicit operator double() const {
    return static_cast<double>(static_cast<float>(*this));
  }

  /// Same bits; so NaN equals itself and the two zeros differ.
  friend constexpr bool operator==(Half, Half) = default;

 private:
  static constexpr std::uint16_t from_float(float value) {
    const auto raw = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (raw >> 16) & 0x8000U;
    const std::uint32_t magnitude = raw & 0x7fffffffU;
    std::uint32_t result = 0;
    if (magnitude > 0x7f800000U) {
      result = 0x7e00U;  // NaN
    } else if (magnitude >= 0x47800000U) {
      result = 0x7c00U;  // 65536 and more: infinity
    } else if (magnitude < 0x38800000U) {
      // Below 2^-14: adding 0.5 lets the hardware round at the subnormals' unit, 2^-24.
      const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
      result = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U;
    } else {
      result = (magnitude + 0xc8000fffU + ((magnitude >> 13) & 1U)) >> 13;
    }
    return static_cast<std::uint16_t>(result | sign);
  }
};

static_assert(sizeof(BFloat16) == 2 && sizeof(Half) == 2);

}  // namespace tessera::kernels
