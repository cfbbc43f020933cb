#include "quantized_adam.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "lanes.hpp"

namespace tessera::kernels {

using functions::Adam;

namespace {

/// A map with what finds the nearest code of a number from -1 to 1. A table over the upper bits of
/// a float (sign, exponent, 8 bits of the mantissa) has the code of the smallest number with these
/// bits. No two borders between codes are so near that both lie within one such interval, so the
/// code is that one or the next.
struct Codes {
  static constexpr int kDropped = 15;
  static constexpr std::size_t kIntervals = std::size_t{1} << (32 - kDropped);

  explicit Codes(bool is_signed) : values(make_quantization_map(is_signed)), table(kIntervals) {
    for (std::size_t i = 0; i + 1 < values.size(); ++i) {
      borders[i] = functions::border_between(values[i], values[i + 1]);
    }
    borders.back() = HUGE_VALF;
    for (std::size_t i = 0; i < kIntervals; ++i) {
      const bool negative = i >= kIntervals / 2;  // then the smallest number has the largest bits
      const auto bits = static_cast<std::uint32_t>(i << kDropped) |
                        (negative ? (std::uint32_t{1} << kDropped) - 1 : 0);
      const auto smallest = simd::bits_as<float>(bits);
      table[i] =
          static_cast<std::uint8_t>(std::ranges::lower_bound(borders, smallest) - borders.begin());
    }
  }

  std::array<float, 256> values;
  std::array<float, 256> borders;
  std::vector<std::uint8_t> table;
};

const Codes& codes_of(bool is_signed) {
  static const Codes with_sign(true);
  static const Codes without_sign(false);
  return is_signed ? with_sign : without_sign;
}

// The codes' bytes could alias everything: what is read is in local pointers.
template <class C>
[[gnu::always_inline]] inline void decode(const Codes& map, std::int64_t count,
                                          const std::uint8_t* codes, C scale, C* values) {
  const float* const __restrict of_codes = map.values.data();
  for (std::int64_t i = 0; i < count; ++i) {
    values[i] = static_cast<C>(of_codes[codes[i]]) * scale;
  }
}

template <class C>
[[gnu::always_inline]] inline void encode(const Codes& map, std::int64_t count, const C* values,
                                          C scale, std::uint8_t* codes) {
  const std::uint8_t* const __restrict table = map.table.data();
  const float* const __restrict borders = map.borders.data();
  const C factor = scale > 0 ? 1 / scale : C{0};
  float shares[kQuantizedBlock];
  for (std::int64_t i = 0; i < count; ++i) {
    shares[i] = static_cast<float>(values[i] * factor);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint8_t code = table[simd::bits_as<std::uint32_t>(shares[i]) >> Codes::kDropped];
    codes[i] = static_cast<std::uint8_t>(code + (borders[code] < shares[i] ? 1 : 0));
  }
}

template <class C, class Gradient>
void step(const Adam& rule, std::int64_t rows, std::int64_t row, C* parameter,
          const Gradient* gradient, QuantizedState average, QuantizedState square) {
  constexpr std::int64_t kGrain = 128;  // blocks
  const std::int64_t blocks = (row + kQuantizedBlock - 1) / kQuantizedBlock;
  const auto scale = static_cast<C>(rule.gradient.scale);
  const auto decay = static_cast<C>(rule.gradient.decay);
  const Codes& of_average = codes_of(true);
  const Codes& of_square = codes_of(false);
  auto* const average_scales = static_cast<C*>(average.scales);
  auto* const square_scales = static_cast<C*>(square.scales);
  parallel_for(0, rows * blocks, kGrain, [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      const Adam::Lanes<C> lanes(rule);
      C m[kQuantizedBlock] = {};
      C v[kQuantizedBlock] = {};
      for (std::int64_t block = begin; block < end; ++block) {
        const std::int64_t first = block % blocks * kQuantizedBlock;
        const std::int64_t count = std::min(kQuantizedBlock, row - first);
        const std::int64_t at = block / blocks * row + first;
        decode(of_average, count, average.codes + at, average_scales[block], m);
        decode(of_square, count, square.codes + at, square_scales[block], v);
        simd::Vector<C> largest_m = {};
        simd::Vector<C> largest_v = {};
        for (std::int64_t i = 0; i < count; i += simd::kLanes<C>) {
          const std::int64_t rest = count - i;
          auto p = simd::load_some(parameter + at + i, rest);
          const auto g = simd::load_some(gradient + at + i, rest) * scale + p * decay;
          simd::Vector<C> s[Adam::states] = {
              simd::load_some(m + i, rest), simd::load_some(v + i, rest), {}};
          lanes(p, g, s);
          largest_m = simd::maximum(largest_m, s[0] < 0 ? -s[0] : s[0]);
          largest_v = simd::maximum(largest_v, s[1]);
          simd::store_some(m + i, rest, s[0]);
          simd::store_some(v + i, rest, s[1]);
          simd::store_some(parameter + at + i, rest, p);
        }
        average_scales[block] = simd::max_lanes(largest_m);
        square_scales[block] = simd::max_lanes(largest_v);
        encode(of_average, count, m, average_scales[block], average.codes + at);
        encode(of_square, count, v, square_scales[block], square.codes + at);
      }
    });
  });
}

}  // namespace

const QuantizationMap& quantization_map(bool is_signed) { return codes_of(is_signed).values; }

bool adam_8bit(const Adam& rule, DType parameter_type, DType gradient_type, std::int64_t rows,
               std::int64_t row, void* parameter, const void* gradient, QuantizedState average,
               QuantizedState square) {
  return visit_update_types(parameter_type, gradient_type, [&]<class C, class G>(C, G) {
    step(rule, rows, row, static_cast<C*>(parameter), static_cast<const G*>(gradient), average,
         square);
  });
}

}  // namespace tessera::kernels
