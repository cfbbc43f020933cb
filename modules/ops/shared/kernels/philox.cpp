#include "philox.hpp"

#include <algorithm>
#include <cmath>

#include "parallel.hpp"
#include "shared/functions/philox.hpp"
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
using U64 = std::uint64_t __attribute__((vector_size(64)));

constexpr std::uint32_t kMultiplier0 = 0xD2511F53;
constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9;  // golden ratio
constexpr std::uint32_t kWeyl1 = 0xBB67AE85;  // sqrt(3) - 1
constexpr int kRounds = 10;
constexpr std::int64_t kBlock = 64;  // elements of 16 counters
constexpr float kUnit = 0x1p-24F;

/// The words of 16 consecutive counters: lane 4 i + j is of counter 4 j + i, so that `in_order`
/// needs few instructions.
struct Words {
  U32 word[4];
};

/// Two blocks are computed as one vector: each round waits for the one before.
constexpr std::int64_t kBlocks = 2;
using ManyU32 = std::uint32_t __attribute__((vector_size(64 * kBlocks)));
using ManyU64 = std::uint64_t __attribute__((vector_size(64 * kBlocks)));
struct Blocks {
  Words block[kBlocks];
};

/// The upper 32 bits of the products.
[[gnu::always_inline]] inline ManyU32 high_product(ManyU32 a, std::uint32_t b) {
  const ManyU64 pairs = bits_as<ManyU64>(a);
  const ManyU64 even = (pairs & 0xffffffffU) * b;
  const ManyU64 odd = (pairs >> 32) * b;
  return bits_as<ManyU32>((even >> 32) | (odd & 0xffffffff00000000U));
}

/// Counters first, first + 1, ... first + 31; first is a multiple of 32, so the low word carries
/// nowhere.
[[gnu::always_inline]] inline Blocks generate(std::uint64_t first, PhiloxKey key) {
  ManyU32 c0 = ManyU32{0,  4,  8,  12, 1,  5,  9,  13, 2,  6,  10, 14, 3,  7,  11, 15,
                       16, 20, 24, 28, 17, 21, 25, 29, 18, 22, 26, 30, 19, 23, 27, 31} +
               static_cast<std::uint32_t>(first);
  ManyU32 c1 = splat<ManyU32>(first >> 32);
  ManyU32 c2 = {};
  ManyU32 c3 = {};
  std::uint32_t k0 = key[0];
  std::uint32_t k1 = key[1];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const ManyU32 n0 = high_product(c2, kMultiplier1) ^ c1 ^ k0;
    const ManyU32 n2 = high_product(c0, kMultiplier0) ^ c3 ^ k1;
    c1 = c2 * kMultiplier1;
    c3 = c0 * kMultiplier0;
    c0 = n0;
    c2 = n2;
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  Blocks result;
  const ManyU32 words[] = {c0, c1, c2, c3};
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    U32 parts[kBlocks];
    std::memcpy(parts, &words[word], sizeof(parts));
    for (std::int64_t block = 0; block < kBlocks; ++block)
      result.block[block].word[word] = parts[block];
  }
  return result;
}

/// Stores the values of words 0 to 3, vector j the elements 16 j to 16 j + 15: counter by counter.
template <class V>
[[gnu::always_inline]] inline void in_order(const V* words, V* elements) {
  const auto first_of = [](V a, V b) __attribute__((always_inline)) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
  };
  const auto last_of = [](V a, V b) __attribute__((always_inline)) {
    return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15,
                                   31);
  };
  const auto even_pairs = [](V a, V b) __attribute__((always_inline)) {
    return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
  };
  const auto odd_pairs = [](V a, V b) __attribute__((always_inline)) {
    return __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30,
                                   31);
  };
  const V first01 = first_of(words[0], words[1]);
  const V first23 = first_of(words[2], words[3]);
  const V last01 = last_of(words[0], words[1]);
  const V last23 = last_of(words[2], words[3]);
  elements[0] = even_pairs(first01, first23);
  elements[1] = odd_pairs(first01, first23);
  elements[2] = even_pairs(last01, last23);
  elements[3] = odd_pairs(last01, last23);
}

template <class V>
[[gnu::always_inline]] inline V fused(V a, V b, V c) {
  return __builtin_elementwise_fma(a, b, c);
}
template <class V>
[[gnu::always_inline]] inline V fused(V a, V b, float c) {
  return fused(a, b, splat<V>(c));
}

using ManyF32 = simd::ManyF32<2>;  // the two pairs of words of a counter as one
using ManyI32 = simd::Integers<ManyF32>;

/// The upper 24 bits as floats: exact.
template <class V, class Word>
[[gnu::always_inline]] inline V upper_bits(Word word) {
  return __builtin_convertvector(bits_as<simd::Integers<V>>(word >> 8), V);
}

/// sqrt(-2 log(u)), u in [2^-24, 1]: u = 2^e (1 + m), 1 + m in [sqrt(1/2), sqrt(2)); Cephes' logf.
[[gnu::always_inline]] inline ManyF32 radius(ManyF32 u) {
  const ManyU32 raw = bits_as<ManyU32>(u) - 0x3f3504f3U;
  const ManyF32 e = __builtin_convertvector(bits_as<ManyI32>(raw) >> 23, ManyF32);
  const ManyF32 m = bits_as<ManyF32>((raw & 0x007fffffU) + 0x3f3504f3U) - 1.0F;
  ManyF32 p = splat<ManyF32>(7.0376836292e-2F);
  p = fused(p, m, -1.1514610310e-1F);
  p = fused(p, m, 1.1676998740e-1F);
  p = fused(p, m, -1.2420140846e-1F);
  p = fused(p, m, 1.4249322787e-1F);
  p = fused(p, m, -1.6668057665e-1F);
  p = fused(p, m, 2.0000714765e-1F);
  p = fused(p, m, -2.4999993993e-1F);
  p = fused(p, m, 3.3333331174e-1F);
  const ManyF32 square = m * m;
  ManyF32 y = (p * m) * square;
  y = fused(e, splat<ManyF32>(-2.12194440e-4F), y);
  y = fused(square, splat<ManyF32>(-0.5F), y);
  const ManyF32 log_u = fused(e, splat<ManyF32>(0.693359375F), m + y);
  const ManyF32 twice = log_u * -2.0F;
  return simd::sqrt(twice > 0.0F ? twice : ManyF32{});
}

/// Two normal values from two words. The angle is 2 pi k / 2^24, k the second word's upper 24 bits:
/// its multiple of pi / 2 is taken off k exactly; then Cephes' polynomials on [-pi / 4, pi / 4].
[[gnu::always_inline]] inline void box_muller(ManyU32 word0, ManyU32 word1, ManyF32& z0,
                                              ManyF32& z1) {
  const ManyF32 r = radius((upper_bits<ManyF32>(word0) + 1.0F) * kUnit);
  const ManyI32 k = bits_as<ManyI32>(word1 >> 8);
  const ManyI32 quadrant = (k + (1 << 21)) >> 22;
  const ManyF32 angle =
      __builtin_convertvector(k - (quadrant << 22), ManyF32) * 3.7450703e-7F;  // 2 pi / 2^24
  const ManyF32 z = angle * angle;
  ManyF32 sine = splat<ManyF32>(-1.9515295891e-4F);
  sine = fused(sine, z, 8.3321608736e-3F);
  sine = fused(sine, z, -1.6666654611e-1F);
  sine = fused(sine * z, angle, angle);
  ManyF32 cosine = splat<ManyF32>(2.443315711809948e-5F);
  cosine = fused(cosine, z, -1.388731625493765e-3F);
  cosine = fused(cosine, z, 4.166664568298827e-2F);
  cosine = fused(cosine, z * z, fused(z, splat<ManyF32>(-0.5F), 1.0F));
  const auto odd = (quadrant & 1) != 0;
  const ManyF32 c = odd ? sine : cosine;
  const ManyF32 s = odd ? cosine : sine;
  z0 = r * (((quadrant + 1) & 2) != 0 ? -c : c);
  z1 = r * ((quadrant & 2) != 0 ? -s : s);
}

/// Goes through the elements of [0, count) by blocks of 128, aligned in the whole sequence:
/// of_words(Words, vectors) gives the values of half a block, one vector for each word; put(place,
/// vector) writes 16 elements, put_one(place, value) one.
template <class V, class OfWords, class Put, class PutOne>
void fill_blocks(const RandomRange& range, std::int64_t count, OfWords of_words, Put put,
                 PutOne put_one) {
  constexpr std::int64_t kElements = kBlock * kBlocks;
  const PhiloxKey key = philox_key(range.seed, range.stream);
  const std::uint64_t start = range.offset + range.first_index;
  parallel_for(0, count, 1 << 13, [=](std::int64_t begin, std::int64_t end) {
    simd::dispatch([=](auto) __attribute__((always_inline)) {
      for (std::int64_t i = begin; i < end;) {
        const std::uint64_t element = start + static_cast<std::uint64_t>(i);
        const auto skip = static_cast<std::int64_t>(element % kElements);
        const std::int64_t last = std::min(kElements, skip + end - i);
        const Blocks blocks = generate(element / kElements * (kElements / 4), key);
        V values[4 * kBlocks];
#pragma unroll
        for (std::int64_t block = 0; block < kBlocks; ++block) {
          V words[4];
          of_words(blocks.block[block], words);
          in_order(words, values + 4 * block);
        }
        if (skip == 0 && last == kElements) {
#pragma unroll
          for (std::int64_t j = 0; j < 4 * kBlocks; ++j) put(i + 16 * j, values[j]);
        } else {
          for (std::int64_t at = skip; at < last; ++at)
            put_one(i + at - skip, values[at / 16][at % 16]);
        }
        i += last - skip;
      }
    });
  });
}

/// 16 floats as elements of T.
template <class T>
[[gnu::always_inline]] inline void put_floats(T* out, F32 value) {
  if constexpr (std::is_same_v<T, double>) {
    const auto [low, high] = simd::to_double(value);
    simd::store(out, low);
    simd::store(out + 8, high);
  } else {
    simd::store(out, value);
  }
}

template <class T, class OfWords>
void fill_floats(const RandomRange& range, std::int64_t count, T* out, OfWords of_words) {
  fill_blocks<F32>(
      range, count, of_words,
      [=](std::int64_t i, F32 value) __attribute__((always_inline)) { put_floats(out + i, value); },
      [=](std::int64_t i, float value)
          __attribute__((always_inline)) { out[i] = static_cast<T>(value); });
}

/// Calls put(place, the words of 16 elements) and put_one(place, word).
template <class Put, class PutOne>
void fill_words(const RandomRange& range, std::int64_t count, Put put, PutOne put_one) {
  fill_blocks<U32>(
      range, count,
      [](const Words& words, U32* values) __attribute__((always_inline)) {
        for (int i = 0; i < 4; ++i) values[i] = words.word[i];
      },
      put, put_one);
}

/// The words below probability * 2^32: those up to `last`, or none.
struct WordThreshold {
  explicit WordThreshold(double probability) {
    const auto limit =
        static_cast<std::uint64_t>(std::ceil(std::clamp(probability, 0.0, 1.0) * 0x1p32));
    none = limit == 0;
    last = static_cast<std::uint32_t>(none ? 0 : limit - 1);
  }
  bool none;
  std::uint32_t last;
};

}  // namespace

PhiloxBlock philox(PhiloxBlock counter, PhiloxKey key) {
  const auto words =
      functions::philox({{counter[0], counter[1], counter[2], counter[3]}}, {{key[0], key[1]}});
  return {words.word[0], words.word[1], words.word[2], words.word[3]};
}

PhiloxKey philox_key(std::uint64_t seed, std::uint64_t stream) {
  const auto key = functions::philox_key(seed, stream);
  return {key.word[0], key.word[1]};
}

template <class T>
void fill_uniform(const RandomRange& range, std::int64_t count, float low_bound, float high_bound,
                  T* out) {
  const float width = high_bound - low_bound;
  fill_floats(
      range, count, out, [=](const Words& words, F32* values) __attribute__((always_inline)) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          values[i] = fused(upper_bits<F32>(words.word[i]) * kUnit, splat<F32>(width), low_bound);
        }
      });
}

template <class T>
void fill_normal(const RandomRange& range, std::int64_t count, float mean, float standard_deviation,
                 T* out) {
  fill_floats(range, count, out,
              [=](const Words& words, F32* values) __attribute__((always_inline)) {
                struct TwoF32 {
                  F32 of[2];
                };
                struct TwoU32 {
                  U32 of[2];
                };
                ManyF32 z0;
                ManyF32 z1;
                box_muller(bits_as<ManyU32>(TwoU32{words.word[0], words.word[2]}),
                           bits_as<ManyU32>(TwoU32{words.word[1], words.word[3]}), z0, z1);
                const auto even = bits_as<TwoF32>(z0);
                const auto odd = bits_as<TwoF32>(z1);
                values[0] = even.of[0];
                values[1] = odd.of[0];
                values[2] = even.of[1];
                values[3] = odd.of[1];
#pragma unroll
                for (int i = 0; i < 4; ++i)
                  values[i] = fused(values[i], splat<F32>(standard_deviation), mean);
              });
}

void fill_bernoulli(const RandomRange& range, std::int64_t count, double probability,
                    std::uint8_t* out) {
  const WordThreshold below(probability);
  if (below.none) {
    std::fill_n(out, count, std::uint8_t{0});
    return;
  }
  using Bytes = std::uint8_t __attribute__((vector_size(16)));
  fill_words(
      range, count,
      [=](std::int64_t i, U32 words) __attribute__((always_inline)) {
        const U32 ones = words <= below.last ? U32{} + 1 : U32{};
        const Bytes bytes = __builtin_convertvector(ones, Bytes);
        std::memcpy(out + i, &bytes, sizeof(bytes));
      },
      [=](std::int64_t i, std::uint32_t word)
          __attribute__((always_inline)) { out[i] = word <= below.last ? 1 : 0; });
}

void fill_bits(const RandomRange& range, std::int64_t count, std::uint32_t* out) {
  fill_words(
      range, count,
      [=](std::int64_t i, U32 words)
          __attribute__((always_inline)) { std::memcpy(out + i, &words, sizeof(words)); },
      [=](std::int64_t i, std::uint32_t word) __attribute__((always_inline)) { out[i] = word; });
}

template <class T>
void drop(const RandomRange& range, std::int64_t count, double probability, const T* x, T* y) {
  using C = Compute<T>;
  using V = simd::Vector<T>;
  const WordThreshold below(probability);
  const C factor = probability < 1 ? static_cast<C>(1 / (1 - probability)) : C{0};
  const bool none = below.none;
  // The numbers take so many instructions that the machine does not look ahead to the next loads.
  constexpr std::int64_t kAhead = 1024;  // elements
  fill_words(
      range, count,
      [=](std::int64_t i, U32 words) __attribute__((always_inline)) {
        using Masks = simd::Integers<V>;
        __builtin_prefetch(x + i + kAhead);
        __builtin_prefetch(y + i + kAhead, 1);
        const simd::I32 dropped = none ? simd::I32{} : words <= below.last;
        if constexpr (std::is_same_v<T, double>) {
          const Masks low = __builtin_convertvector(
              __builtin_shufflevector(dropped, dropped, 0, 1, 2, 3, 4, 5, 6, 7), Masks);
          const Masks high = __builtin_convertvector(
              __builtin_shufflevector(dropped, dropped, 8, 9, 10, 11, 12, 13, 14, 15), Masks);
          simd::store(y + i, low != 0 ? V{} : simd::load(x + i) * factor);
          simd::store(y + i + 8, high != 0 ? V{} : simd::load(x + i + 8) * factor);
        } else {
          simd::store(y + i, dropped != 0 ? V{} : simd::load(x + i) * factor);
        }
      },
      [=](std::int64_t i, std::uint32_t word) __attribute__((always_inline)) {
        y[i] = !none && word <= below.last ? T{} : static_cast<T>(static_cast<C>(x[i]) * factor);
      });
}

template decltype(drop<float>) drop<float>;
template decltype(drop<double>) drop<double>;
template decltype(drop<BFloat16>) drop<BFloat16>;
template decltype(drop<Half>) drop<Half>;
template decltype(fill_uniform<float>) fill_uniform<float>;
template decltype(fill_uniform<double>) fill_uniform<double>;
template decltype(fill_uniform<BFloat16>) fill_uniform<BFloat16>;
template decltype(fill_uniform<Half>) fill_uniform<Half>;
template decltype(fill_normal<float>) fill_normal<float>;
template decltype(fill_normal<double>) fill_normal<double>;
template decltype(fill_normal<BFloat16>) fill_normal<BFloat16>;
template decltype(fill_normal<Half>) fill_normal<Half>;

}  // namespace tessera::kernels
