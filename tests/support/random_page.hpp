// docs/random-numbers.md, written again from that page alone: nothing of Tessera is in it.
#pragma once
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace random_page {

using Words = std::array<std::uint32_t, 4>;

inline Words philox(Words c, std::uint32_t k0, std::uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{c[0]} * 0xD2511F53U;
    const std::uint64_t p1 = std::uint64_t{c[2]} * 0xCD9E8D57U;
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return c;
}

/// splitmix64's output function.
inline std::uint64_t finish(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

/// The four words of the counter that holds an element.
inline Words words(std::uint64_t seed, std::string_view stream, std::uint64_t element) {
  std::uint64_t number = 0xcbf29ce484222325U;
  for (const char c : stream) {
    number = (number ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  }
  const std::uint64_t key = finish(seed + (number + 1) * 0x9e3779b97f4a7c15U);
  const std::uint64_t counter = element / 4;
  return philox(
      {static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0},
      static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32));
}

inline std::uint32_t word(std::uint64_t seed, std::string_view stream, std::uint64_t element) {
  return words(seed, stream, element)[element % 4];
}

inline float uniform(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24F; }

inline bool bernoulli(std::uint32_t word, double p) { return word < p * 0x1p32; }

/// Horner's rule in fused multiply-adds, the highest coefficient first.
template <std::size_t N>
float polynomial(float x, const std::array<float, N>& coefficients) {
  float p = coefficients[0];
  for (std::size_t i = 1; i < N; ++i) {
    p = std::fma(p, x, coefficients[i]);
  }
  return p;
}

/// The normal of an element, with mean 0 and standard deviation 1.
inline float normal(std::uint64_t seed, std::string_view stream, std::uint64_t element) {
  const Words block = words(seed, stream, element);
  const std::size_t pair = element % 4 / 2 * 2;
  const float u = static_cast<float>((block[pair] >> 8) + 1) * 0x1p-24F;
  const std::uint32_t raw = std::bit_cast<std::uint32_t>(u) - 0x3f3504f3U;
  const auto e = static_cast<float>(static_cast<std::int32_t>(raw) >> 23);
  const float m = std::bit_cast<float>((raw & 0x7fffffU) + 0x3f3504f3U) - 1.0F;
  const float p = polynomial<9>(m, {7.0376836292e-2F, -1.1514610310e-1F, 1.1676998740e-1F,
                                    -1.2420140846e-1F, 1.4249322787e-1F, -1.6668057665e-1F,
                                    2.0000714765e-1F, -2.4999993993e-1F, 3.3333331174e-1F});
  const float square = m * m;
  const float pm = p * m;
  float y = pm * square;
  y = std::fma(e, -2.12194440e-4F, y);
  y = std::fma(square, -0.5F, y);
  const float sum = m + y;
  const float twice = std::fma(e, 0.693359375F, sum) * -2.0F;
  const float radius = std::sqrt(twice > 0 ? twice : 0.0F);

  const auto k = static_cast<std::int32_t>(block[pair + 1] >> 8);
  const std::int32_t quadrant = (k + (1 << 21)) >> 22;
  const float a = static_cast<float>(k - quadrant * (1 << 22)) * 3.7450703e-7F;
  const float z = a * a;
  float sine = polynomial<3>(z, {-1.9515295891e-4F, 8.3321608736e-3F, -1.6666654611e-1F});
  const float sz = sine * z;
  sine = std::fma(sz, a, a);
  float cosine =
      polynomial<3>(z, {2.443315711809948e-5F, -1.388731625493765e-3F, 4.166664568298827e-2F});
  const float zz = z * z;
  cosine = std::fma(cosine, zz, std::fma(z, -0.5F, 1.0F));
  if (quadrant % 2 != 0) {
    std::swap(sine, cosine);
  }
  const bool even = element % 2 == 0;
  const bool negative = ((even ? quadrant + 1 : quadrant) & 2) != 0;
  const float value = radius * (even ? cosine : sine);
  return negative ? -value : value;
}

/// The number of element i of a micro-batch's tensor among the elements of the whole step's:
/// `row` elements for each row of the batch, the step's `batch` rows in `parts` parts, of each of
/// which the micro-batch has `rows` from `first` on.
inline std::uint64_t place_in_step(std::uint64_t i, std::uint64_t row, std::uint64_t batch,
                                   std::uint64_t parts, std::uint64_t first, std::uint64_t rows) {
  const std::uint64_t mine = i / row;
  const std::uint64_t in_step = mine / rows * (batch / parts) + first + mine % rows;
  return in_step * row + i % row;
}

inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  return finish(a ^ (b + 0x9e3779b97f4a7c15U + (a << 6) + (a >> 2)));
}

/// The window at `place` of an epoch's order of `size` windows.
inline std::uint64_t order(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch,
                           std::uint64_t place) {
  int half = 1;
  while (half < 32 && (std::uint64_t{1} << (2 * half)) < size) {
    ++half;
  }
  const std::uint64_t limit = std::uint64_t{1} << half;
  do {
    std::uint64_t key = mix(mix(0x7465737365726121U, seed), epoch);
    std::uint64_t left = place / limit;
    std::uint64_t right = place % limit;
    for (int round = 0; round < 8; ++round) {
      key = mix(key, 1);
      const std::uint64_t next = left ^ (mix(key, right) % limit);
      left = right;
      right = next;
    }
    place = left * limit + right;
  } while (place >= size);
  return place;
}

}  // namespace random_page
