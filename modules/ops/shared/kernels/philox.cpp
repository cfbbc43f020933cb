#include "philox.hpp"

#include <algorithm>
#include <cmath>

#include "parallel.hpp"
#include "simd.hpp"

// The bits are part of the interface: a product and a sum are fused where, and only where, the code
// says so.
#pragma clang fp contract(off)

namespace tessera::kernels {
namespace {

using simd::bits_as;
using simd::F32;
using simd::I32;
using simd::splat;
using simd::U32;
using WideU64 = std::uint64_t __attribute__((vector_size(128)));

constexpr std::uint32_t kMultiplier0 = 0xD2511F53;
constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9;  // golden ratio
constexpr std::uint32_t kWeyl1 = 0xBB67AE85;  // sqrt(3) - 1
constexpr int kRounds = 10;
constexpr std::int64_t kBlock = 64;  // elements of 16 counters
constexpr float kUnit = 0x1p-24F;

/// The words of 16 consecutive counters.
struct Words {
  U32 word[4];
};

[[gnu::always_inline]] inline WideU64 product(U32 a, std::uint32_t b) {
  return __builtin_convertvector(a, WideU64) * b;
}

[[gnu::always_inline]] inline U32 low(WideU64 v) { return __builtin_convertvector(v, U32); }
[[gnu::always_inline]] inline U32 high(WideU64 v) { return __builtin_convertvector(v >> 32, U32); }

/// Counters first, first + 1, ... first + 15; first is a multiple of 16, so the low word carries
/// nowhere.
[[gnu::always_inline]] inline Words generate(std::uint64_t first, PhiloxKey key) {
  U32 lane = {};
  for (std::uint32_t i = 0; i < 16; ++i) lane[i] = i;
  U32 c0 = lane + static_cast<std::uint32_t>(first);
  U32 c1 = splat<U32>(first >> 32);
  U32 c2 = {};
  U32 c3 = {};
  std::uint32_t k0 = key[0];
  std::uint32_t k1 = key[1];
  for (int round = 0; round < kRounds; ++round) {
    const WideU64 p0 = product(c0, kMultiplier0);
    const WideU64 p1 = product(c2, kMultiplier1);
    const U32 n0 = high(p1) ^ c1 ^ k0;
    const U32 n2 = high(p0) ^ c3 ^ k1;
    c1 = low(p1);
    c3 = low(p0);
    c0 = n0;
    c2 = n2;
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

[[gnu::always_inline]] inline F32 fused(F32 a, F32 b, F32 c) {
  return __builtin_elementwise_fma(a, b, c);
}
[[gnu::always_inline]] inline F32 fused(F32 a, F32 b, float c) {
  return fused(a, b, splat<F32>(c));
}

/// The upper 24 bits as a float: exact.
[[gnu::always_inline]] inline F32 upper_bits(U32 word) {
  return __builtin_convertvector(bits_as<I32>(word >> 8), F32);
}

/// sqrt(-2 log(u)), u in [2^-24, 1]: u = 2^e (1 + m), 1 + m in [sqrt(1/2), sqrt(2)); Cephes' logf.
[[gnu::always_inline]] inline F32 radius(F32 u) {
  const U32 raw = bits_as<U32>(u) - 0x3f3504f3U;
  const F32 e = __builtin_convertvector(bits_as<I32>(raw) >> 23, F32);
  const F32 m = bits_as<F32>((raw & 0x007fffffU) + 0x3f3504f3U) - 1.0F;
  F32 p = splat<F32>(7.0376836292e-2F);
  p = fused(p, m, -1.1514610310e-1F);
  p = fused(p, m, 1.1676998740e-1F);
  p = fused(p, m, -1.2420140846e-1F);
  p = fused(p, m, 1.4249322787e-1F);
  p = fused(p, m, -1.6668057665e-1F);
  p = fused(p, m, 2.0000714765e-1F);
  p = fused(p, m, -2.4999993993e-1F);
  p = fused(p, m, 3.3333331174e-1F);
  const F32 square = m * m;
  F32 y = (p * m) * square;
  y = fused(e, splat<F32>(-2.12194440e-4F), y);
  y = fused(square, splat<F32>(-0.5F), y);
  const F32 log_u = fused(e, splat<F32>(0.693359375F), m + y);
  const F32 twice = log_u * -2.0F;
  return simd::sqrt(twice > 0.0F ? twice : F32{});
}

/// Two normal values from two words. The angle is 2 pi k / 2^24, k the second word's upper 24 bits:
/// its multiple of pi / 2 is taken off k exactly; then Cephes' polynomials on [-pi / 4, pi / 4].
[[gnu::always_inline]] inline void box_muller(U32 word0, U32 word1, F32& z0, F32& z1) {
  const F32 r = radius((upper_bits(word0) + 1.0F) * kUnit);
  const I32 k = bits_as<I32>(word1 >> 8);
  const I32 quadrant = (k + (1 << 21)) >> 22;
  const F32 angle =
      __builtin_convertvector(k - (quadrant << 22), F32) * 3.7450703e-7F;  // 2 pi / 2^24
  const F32 z = angle * angle;
  F32 sine = splat<F32>(-1.9515295891e-4F);
  sine = fused(sine, z, 8.3321608736e-3F);
  sine = fused(sine, z, -1.6666654611e-1F);
  sine = fused(sine * z, angle, angle);
  F32 cosine = splat<F32>(2.443315711809948e-5F);
  cosine = fused(cosine, z, -1.388731625493765e-3F);
  cosine = fused(cosine, z, 4.166664568298827e-2F);
  cosine = fused(cosine, z * z, fused(z, splat<F32>(-0.5F), 1.0F));
  const auto odd = (quadrant & 1) != 0;
  const F32 c = odd ? sine : cosine;
  const F32 s = odd ? cosine : sine;
  z0 = r * (((quadrant + 1) & 2) != 0 ? -c : c);
  z1 = r * ((quadrant & 2) != 0 ? -s : s);
}

/// Writes the elements of [0, count) from blocks of 64 aligned in the whole sequence:
/// of_words(Words, values) gives the values of one block, [word][counter]; convert(value) an
/// element.
template <class Value, class T, class OfWords, class Convert>
void fill_blocks(const RandomRange& range, std::int64_t count, T* out, OfWords of_words,
                 Convert convert) {
  const PhiloxKey key = philox_key(range.seed, range.stream);
  const std::uint64_t start = range.offset + range.first_index;
  parallel_for(0, count, 1 << 13, [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      alignas(64) Value values[4][16];
      for (std::int64_t i = begin; i < end;) {
        const std::uint64_t element = start + static_cast<std::uint64_t>(i);
        const auto skip = static_cast<std::int64_t>(element % kBlock);
        const std::int64_t last = std::min(kBlock, skip + end - i);
        of_words(generate(element / kBlock * 16, key), values);
        if (skip == 0 && last == kBlock) {
          for (int counter = 0; counter < 16; ++counter) {
            for (int word = 0; word < 4; ++word)
              out[i + counter * 4 + word] = convert(values[word][counter]);
          }
        } else {
          for (std::int64_t at = skip; at < last; ++at) {
            out[i + at - skip] = convert(values[at % 4][at / 4]);
          }
        }
        i += last - skip;
      }
    });
  });
}

template <class Value, class V>
[[gnu::always_inline]] inline void store_words(Value (*values)[16], const V* words) {
#pragma unroll
  for (int word = 0; word < 4; ++word) std::memcpy(values[word], &words[word], sizeof(V));
}

}  // namespace

PhiloxBlock philox(PhiloxBlock counter, PhiloxKey key) {
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t p0 = std::uint64_t{counter[0]} * kMultiplier0;
    const std::uint64_t p1 = std::uint64_t{counter[2]} * kMultiplier1;
    counter = {
        static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

PhiloxKey philox_key(std::uint64_t seed, std::uint64_t stream) {
  std::uint64_t mixed = seed + (stream + 1) * 0x9e3779b97f4a7c15U;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9U;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
  mixed ^= mixed >> 31;
  return {static_cast<std::uint32_t>(mixed), static_cast<std::uint32_t>(mixed >> 32)};
}

template <class T>
void fill_uniform(const RandomRange& range, std::int64_t count, float low_bound, float high_bound,
                  T* out) {
  const float width = high_bound - low_bound;
  fill_blocks<float>(
      range, count, out,
      [=](const Words& words, float(*values)[16]) __attribute__((always_inline)) {
        F32 result[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          result[i] = fused(upper_bits(words.word[i]) * kUnit, splat<F32>(width), low_bound);
        }
        store_words(values, result);
      },
      [](float value) __attribute__((always_inline)) { return static_cast<T>(value); });
}

template <class T>
void fill_normal(const RandomRange& range, std::int64_t count, float mean, float standard_deviation,
                 T* out) {
  fill_blocks<float>(
      range, count, out,
      [=](const Words& words, float(*values)[16]) __attribute__((always_inline)) {
        F32 result[4];
        box_muller(words.word[0], words.word[1], result[0], result[1]);
        box_muller(words.word[2], words.word[3], result[2], result[3]);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          result[i] = fused(result[i], splat<F32>(standard_deviation), mean);
        store_words(values, result);
      },
      [](float value) __attribute__((always_inline)) { return static_cast<T>(value); });
}

void fill_bernoulli(const RandomRange& range, std::int64_t count, double probability,
                    std::uint8_t* out) {
  // 2^32 for probability 1 and more, so every word is below it.
  const auto limit =
      static_cast<std::uint64_t>(std::ceil(std::clamp(probability, 0.0, 1.0) * 0x1p32));
  fill_blocks<std::uint32_t>(
      range, count, out,
      [](const Words& words, std::uint32_t(*values)[16])
          __attribute__((always_inline)) { store_words(values, words.word); },
      [=](std::uint32_t word)
          __attribute__((always_inline)) { return static_cast<std::uint8_t>(word < limit); });
}

void fill_bits(const RandomRange& range, std::int64_t count, std::uint32_t* out) {
  fill_blocks<std::uint32_t>(
      range, count, out,
      [](const Words& words, std::uint32_t(*values)[16])
          __attribute__((always_inline)) { store_words(values, words.word); },
      [](std::uint32_t word) __attribute__((always_inline)) { return word; });
}

template decltype(fill_uniform<float>) fill_uniform<float>;
template decltype(fill_uniform<double>) fill_uniform<double>;
template decltype(fill_uniform<BFloat16>) fill_uniform<BFloat16>;
template decltype(fill_uniform<Half>) fill_uniform<Half>;
template decltype(fill_normal<float>) fill_normal<float>;
template decltype(fill_normal<double>) fill_normal<double>;
template decltype(fill_normal<BFloat16>) fill_normal<BFloat16>;
template decltype(fill_normal<Half>) fill_normal<Half>;

}  // namespace tessera::kernels
