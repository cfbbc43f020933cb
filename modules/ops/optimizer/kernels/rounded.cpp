#include "rounded.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "lanes.hpp"
#include "optimizer/functions/rounding.hpp"

namespace tessera::kernels {

using functions::Adam;
using functions::rounding_words;

namespace {

constexpr std::int64_t kBlock = 1024;  // elements whose numbers are made at once
constexpr std::int64_t kLanes = simd::kLanes<float>;
static_assert(Adam::states + 1 <= 2 * rounding_words);

using Halves = std::uint16_t __attribute__((vector_size(2 * kLanes)));

/// Stores the first `count` of the lanes, rounded.
[[gnu::always_inline]] inline void store_rounded(BFloat16* to, std::int64_t count, simd::F32 value,
                                                 simd::U32 noise) {
  const simd::U32 bits = functions::stochastic_bf16(simd::bits_as<simd::U32>(value), noise);
  const Halves halves = __builtin_convertvector(bits, Halves);
  std::memcpy(to, &halves, static_cast<std::size_t>(2 * std::min(count, kLanes)));
}

/// The first, or the second words of the elements of a vector.
template <int which>
[[gnu::always_inline]] inline simd::U32 words_of(const std::uint32_t* words) {
  const auto first = simd::raw_load<simd::U32>(words);
  const auto rest = simd::raw_load<simd::U32>(words + kLanes);
  return __builtin_shufflevector(first, rest, which, which + 2, which + 4, which + 6, which + 8,
                                 which + 10, which + 12, which + 14, which + 16, which + 18,
                                 which + 20, which + 22, which + 24, which + 26, which + 28,
                                 which + 30);
}

/// Elements [begin, end), of which there are at most kBlock, with their numbers.
template <class Gradient>
[[gnu::always_inline]] inline void step(const Adam& rule, std::int64_t begin, std::int64_t end,
                                        const std::uint32_t* words, BFloat16* parameter,
                                        const Gradient* gradient, BFloat16* const* states) {
  const Adam::Lanes<float> lanes(rule);
  const auto scale = static_cast<float>(rule.gradient.scale);
  const auto decay = static_cast<float>(rule.gradient.decay);
  for (std::int64_t i = begin; i < end; i += kLanes) {
    const std::int64_t rest = end - i;
    auto p = simd::load_some(parameter + i, rest);
    const auto g = simd::load_some(gradient + i, rest) * scale + p * decay;
    simd::F32 s[Adam::states];
    for (std::size_t k = 0; k < Adam::states; ++k) {
      s[k] = states[k] == nullptr ? simd::F32{} : simd::load_some(states[k] + i, rest);
    }
    lanes(p, g, s);
    const simd::U32 first = words_of<0>(words + rounding_words * (i - begin));
    const simd::U32 second = words_of<1>(words + rounding_words * (i - begin));
    const simd::U32 noise[] = {first & 0xffffU, first >> 16, second & 0xffffU, second >> 16};
    store_rounded(parameter + i, rest, p, noise[0]);
    for (std::size_t k = 0; k < Adam::states; ++k) {
      if (states[k] != nullptr) {
        store_rounded(states[k] + i, rest, s[k], noise[k + 1]);
      }
    }
  }
}

}  // namespace

bool rounded_adam(const Adam& rule, DType gradient_type, const RandomRange& range,
                  std::int64_t count, BFloat16* parameter, const void* gradient,
                  BFloat16* const* states) {
  bool known = true;
  const auto with_gradient = [&]<class Gradient>(Gradient) {
    parallel_for(0, count, 32 * kBlock, [&](std::int64_t begin, std::int64_t end) {
      // A vector reads whole ones.
      std::array<std::uint32_t, rounding_words*(kBlock + kLanes)> words{};
      for (std::int64_t i = begin; i < end; i += kBlock) {
        const std::int64_t last = std::min(i + kBlock, end);
        RandomRange own = range;
        own.first_index += static_cast<std::uint64_t>(rounding_words * i);
        fill_bits(own, rounding_words * (last - i), words.data());
        simd::dispatch([&](auto) __attribute__((always_inline)) {
          step(rule, i, last, words.data(), parameter, static_cast<const Gradient*>(gradient),
               states);
        });
      }
    });
  };
  visit<Types<float, BFloat16>>(gradient_type, with_gradient, [&] { known = false; });
  return known;
}

}  // namespace tessera::kernels
