// Products of integers against a loop over their elements: bit by bit, for every type of codes. The
// same cases run with each instruction set (tests/coded/CMakeLists.txt).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.coded;

using namespace tessera;
using coded::Activations;
using coded::CodeType;

// Each operation is rounded.
#pragma STDC FP_CONTRACT OFF

namespace {

constexpr std::int64_t unit = 32;

/// 32 elements of a weight: value = scale * code - minimum; 16 of them have a scale.
struct WeightUnit {
  int codes[unit];
  float scale[2];
  float minimum = 0;
};

/// A number of 16 bits: 5 of the exponent, 10 of the fraction. Subnormal ones too.
float half_at(const std::uint8_t* bytes) {
  const int bits = bytes[0] | bytes[1] << 8;
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                   : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  return bits >> 15 != 0 ? -size : size;
}

/// Blocks of 32, as ggml's comments describe them: the scale, [the minimum], [fifth bits], codes.
WeightUnit small_block(CodeType type, const std::uint8_t* block) {
  WeightUnit result{};
  if (type == CodeType::mxfp4) {
    // The exponent of a power of two; twice the numbers of 4 bits.
    constexpr int sizes[] = {0, 1, 2, 3, 4, 6, 8, 12};
    result.scale[0] = result.scale[1] = std::ldexp(1.0F, block[0] - 128);
    for (int i = 0; i < unit; ++i) {
      const int code = i < 16 ? block[1 + i] % 16 : block[1 + i - 16] / 16;
      result.codes[i] = code < 8 ? sizes[code] : -sizes[code - 8];
    }
    return result;
  }
  result.scale[0] = result.scale[1] = half_at(block);
  const bool has_minimum = type == CodeType::q4_1;
  const bool fifth = type == CodeType::q5_0;
  result.minimum = has_minimum ? -half_at(block + 2) : 0;
  const std::uint8_t* const codes = block + (has_minimum ? 4 : fifth ? 6 : 2);
  for (int i = 0; i < unit; ++i) {
    if (type == CodeType::q8_0) {
      result.codes[i] = static_cast<std::int8_t>(codes[i]);
      continue;
    }
    int code = i < 16 ? codes[i] % 16 : codes[i - 16] / 16;
    if (fifth) {
      code += (block[2 + i / 8] >> (i % 8)) % 2 * 16 - 16;
    } else if (!has_minimum) {
      code -= 8;
    }
    result.codes[i] = code;
  }
  return result;
}

/// The n-th 32 elements of a block of 256 of 4 or 5 bits.
WeightUnit affine_unit(bool five, const std::uint8_t* block, int n) {
  const std::uint8_t* const bits = block + 4;
  const int scale = n < 4 ? bits[n] % 64 : bits[n + 4] % 16 + bits[n - 4] / 64 * 16;
  const int minimum = n < 4 ? bits[n + 4] % 64 : bits[n + 4] / 16 + bits[n] / 64 * 16;
  WeightUnit result{};
  result.scale[0] = result.scale[1] = half_at(block) * static_cast<float>(scale);
  result.minimum = half_at(block + 2) * static_cast<float>(minimum);
  for (int i = 0; i < unit; ++i) {
    const int both = block[(five ? 48 : 16) + n / 2 * 32 + i];
    const int code = n % 2 == 0 ? both % 16 : both / 16;
    result.codes[i] = code + (five ? (block[16 + i] >> n) % 2 * 16 : 0);
  }
  return result;
}

/// The n-th 32 elements of a block of 256 of 6 bits.
WeightUnit six_bits(const std::uint8_t* block, int n) {
  WeightUnit result{};
  for (int i = 0; i < unit; ++i) {
    const int at = n % 4;
    const int low = block[n / 4 * 64 + at % 2 * 32 + i];
    const int high = block[128 + n / 4 * 32 + i];
    result.codes[i] = (at < 2 ? low % 16 : low / 16) + (high >> (2 * at)) % 4 * 16 - 32;
  }
  for (int i = 0; i < 2; ++i) {
    result.scale[i] =
        half_at(block + 208) * static_cast<float>(static_cast<std::int8_t>(block[192 + 2 * n + i]));
  }
  return result;
}

WeightUnit weight_unit(const coded::CodeRows& weight, std::int64_t row, std::int64_t n) {
  const auto* const bytes =
      static_cast<const std::uint8_t*>(weight.codes.raw_data()) + row * weight.codes.size(1);
  const std::int64_t elements = coded::block_of(weight.type);
  const std::int64_t size = coded::bytes_of(weight.type, elements);
  const auto place = static_cast<int>(n % 8);
  switch (weight.type) {
    case CodeType::q4_k:
    case CodeType::q5_k:
      return affine_unit(weight.type == CodeType::q5_k, bytes + n / 8 * size, place);
    case CodeType::q6_k:
      return six_bits(bytes + n / 8 * size, place);
    case CodeType::int8:
      break;
    default:
      return small_block(weight.type, bytes + n * size);
  }
  WeightUnit result{};
  result.scale[0] = result.scale[1] = weight.scales.data<float>()[row];
  for (std::int64_t i = 0; i < unit && n * unit + i < weight.codes.size(1); ++i) {
    result.codes[i] = static_cast<std::int8_t>(bytes[n * unit + i]);
  }
  return result;
}

/// 32 elements of x, the last of them 0 where a row ends.
struct RoundedUnit {
  int codes[unit] = {};
  float scale = 0;
};

RoundedUnit rounded(const float* x, std::int64_t count) {
  RoundedUnit result;
  float largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(x[i])) {
      result.scale = std::numeric_limits<float>::quiet_NaN();
      return result;
    }
    largest = std::max(largest, std::abs(x[i]));
  }
  const float scale = largest / 127;
  if (scale >= std::numeric_limits<float>::min()) {
    result.scale = scale;
    for (std::int64_t i = 0; i < count; ++i) {
      result.codes[i] = static_cast<int>(std::nearbyint(x[i] * (1 / scale)));
    }
  }
  return result;
}

/// An element of the product.
float reference(const float* x, const coded::CodeRows& weight, std::int64_t row,
                std::int64_t columns) {
  float sum = 0;
  for (std::int64_t n = 0; n * unit < columns; ++n) {
    const RoundedUnit left = rounded(x + n * unit, std::min(unit, columns - n * unit));
    const WeightUnit right = weight_unit(weight, row, n);
    int products[2] = {};
    int codes = 0;
    for (int i = 0; i < unit; ++i) {
      products[i / 16] += left.codes[i] * right.codes[i];
      codes += left.codes[i];
    }
    if (weight.type == CodeType::q6_k) {
      for (int i = 0; i < 2; ++i) {
        sum += static_cast<float>(products[i]) * (right.scale[i] * left.scale);
      }
      continue;
    }
    float term = static_cast<float>(products[0] + products[1]) * (right.scale[0] * left.scale);
    const bool has_minimum = weight.type == CodeType::q4_1 || weight.type == CodeType::q4_k ||
                             weight.type == CodeType::q5_k;
    if (has_minimum) {
      term -= right.minimum * (static_cast<float>(codes) * left.scale);
    }
    sum += term;
  }
  return sum;
}

constexpr CodeType types[] = {CodeType::int8, CodeType::q4_0, CodeType::q4_1,
                              CodeType::q5_0, CodeType::q8_0, CodeType::q4_k,
                              CodeType::q5_k, CodeType::q6_k, CodeType::mxfp4};

/// Where halves of a block are scales, whose random bits would be NaN or huge.
std::vector<std::int64_t> scale_places(CodeType type) {
  switch (type) {
    case CodeType::q4_1:
    case CodeType::q4_k:
    case CodeType::q5_k:
      return {0, 2};
    case CodeType::q6_k:
      return {208};
    case CodeType::int8:
      return {};
    default:
      return {0};
  }
}

/// Any bytes are codes; scales are small.
coded::CodeRows random_weight(CodeType type, std::int64_t rows, std::int64_t columns,
                              std::mt19937& random) {
  const std::int64_t bytes = coded::bytes_of(type, columns);
  coded::CodeRows weight{.type = type, .codes = empty({rows, bytes}, DType::u8)};
  auto* const first = static_cast<std::uint8_t*>(weight.codes.raw_data());
  for (std::int64_t i = 0; i < weight.codes.numel(); ++i) {
    first[i] = static_cast<std::uint8_t>(random());
  }
  const std::int64_t size = coded::bytes_of(type, coded::block_of(type));
  for (std::int64_t block = 0; block < rows * bytes; block += size) {
    if (type == CodeType::mxfp4) {  // 2^-10 and less, some of them subnormal
      first[block] =
          static_cast<std::uint8_t>(random() % 20 == 0 ? random() % 3 : 108 + random() % 10);
      continue;
    }
    for (const std::int64_t place : scale_places(type)) {
      // At most 2^-5, some of them subnormal.
      const auto scale = static_cast<std::uint16_t>((random() % 10) << 10 | random() % 1024 |
                                                    (random() % 2) << 15);
      std::memcpy(first + block + place, &scale, sizeof scale);
    }
  }
  if (type == CodeType::int8) {
    weight.scales = empty({rows}, DType::f32);
    for (std::int64_t i = 0; i < rows; ++i) {
      weight.scales.data<float>()[i] = 0.01F / static_cast<float>(1 + random() % 7);
    }
  }
  return weight;
}

Tensor random_rows(std::int64_t rows, std::int64_t columns, std::mt19937& random) {
  const Tensor x = empty({rows, columns}, DType::f32);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const float value = static_cast<float>(static_cast<int>(random() % 20001) - 10000) * 1e-4F;
    x.data<float>()[i] = random() % 40 == 0 ? value * 30 : value;
  }
  return x;
}

bool same_bits(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

std::int64_t differences_of(const Tensor& x, const coded::CodeRows& weight) {
  const Tensor y = coded::product(x, weight, Activations::int8);
  const std::int64_t columns = x.size(1);
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < y.numel(); ++i) {
    const std::int64_t row = i / weight.codes.size(0);
    const float expected =
        reference(x.data<float>() + row * columns, weight, i % weight.codes.size(0), columns);
    count += same_bits(y.data<float>()[i], expected) ? 0 : 1;
  }
  return count;
}

}  // namespace

TEST_CASE("products of integers have the bits of a loop over their elements", "[integers]") {
  const NoGrad no_grad;
  std::mt19937 random(7);
  for (const CodeType type : types) {
    for (const std::int64_t rows : {1, 15, 16, 17, 50}) {
      const coded::CodeRows weight = random_weight(type, rows, 512, random);
      for (const std::int64_t count : {1, 2, 3, 4, 5, 7, 9}) {
        INFO("type " << static_cast<int>(type) << ", " << rows << " rows, " << count << " of x");
        CHECK(differences_of(random_rows(count, 512, random), weight) == 0);
      }
    }
  }
}

TEST_CASE("products of integers with rows of any length", "[integers]") {
  const NoGrad no_grad;
  std::mt19937 random(11);
  for (const std::int64_t columns : {1, 15, 16, 17, 31, 32, 33, 47, 63, 65, 300}) {
    INFO(columns << " columns");
    const coded::CodeRows weight = random_weight(CodeType::int8, 19, columns, random);
    CHECK(differences_of(random_rows(3, columns, random), weight) == 0);
    CHECK(differences_of(random_rows(1, columns, random), weight) == 0);
  }
  for (const CodeType type : types) {
    const std::int64_t block = std::max<std::int64_t>(coded::block_of(type), unit);
    const coded::CodeRows weight = random_weight(type, 20, block, random);
    CHECK(differences_of(random_rows(6, block, random), weight) == 0);
    CHECK(coded::product(random_rows(0, block, random), weight, Activations::int8).shape() ==
          Dims{0, 20});
    CHECK(to_doubles(coded::product(zeros({2, block}, DType::f32), weight, Activations::int8)) ==
          std::vector<double>(40, 0.0));
  }
}

TEST_CASE("the largest codes do not overflow a sum of integers", "[integers]") {
  const NoGrad no_grad;
  std::mt19937 random(3);
  for (const CodeType type : types) {
    INFO("type " << static_cast<int>(type));
    coded::CodeRows weight = random_weight(type, 17, 512, random);
    auto* const bytes = static_cast<std::uint8_t*>(weight.codes.raw_data());
    const std::int64_t size = coded::bytes_of(type, coded::block_of(type));
    for (const int code : {0x00, 0x7f, 0x80, 0xff}) {
      for (std::int64_t i = 0; i < weight.codes.numel(); ++i) {
        const auto places = scale_places(type);
        const bool is_scale = std::ranges::any_of(
            places, [&](std::int64_t place) { return i % size == place || i % size == place + 1; });
        bytes[i] = is_scale ? bytes[i] : static_cast<std::uint8_t>(code);
      }
      for (const double value : {-1.0, 1.0}) {
        CHECK(differences_of(full({5, 512}, value, DType::f32), weight) == 0);
        CHECK(differences_of(full({1, 512}, value, DType::f32), weight) == 0);
      }
    }
  }
}

TEST_CASE("what is not finite stays in its row, and what is tiny is rounded to zero",
          "[integers]") {
  const NoGrad no_grad;
  std::mt19937 random(5);
  for (const CodeType type : types) {
    INFO("type " << static_cast<int>(type));
    const coded::CodeRows weight = random_weight(type, 18, 512, random);
    const Tensor x = random_rows(6, 512, random);
    float* const values = x.data<float>();
    values[512 + 3] = std::numeric_limits<float>::infinity();
    values[2 * 512 + 511] = -std::numeric_limits<float>::infinity();
    values[3 * 512 + 40] = std::numeric_limits<float>::quiet_NaN();
    for (std::int64_t i = 0; i < 512; ++i) {
      values[4 * 512 + i] = i % 3 == 0 ? 1e-40F : -2e-38F;
      values[5 * 512 + i] *= 1e36F;
    }
    CHECK(differences_of(x, weight) == 0);
    const Tensor y = coded::product(x, weight, Activations::int8);
    for (std::int64_t i = 0; i < 18; ++i) {
      CHECK(std::isfinite(y.data<float>()[i]));
      for (const std::int64_t row : {1, 2, 3}) {
        CHECK(std::isnan(y.data<float>()[row * 18 + i]));
      }
      CHECK(y.data<float>()[4 * 18 + i] == 0);
    }
  }
}

TEST_CASE("products of integers are near those of the decoded weight", "[integers]") {
  const NoGrad no_grad;
  std::mt19937 random(13);
  for (const CodeType type : types) {
    INFO("type " << static_cast<int>(type));
    const coded::CodeRows weight = random_weight(type, 33, 768, random);
    const Tensor x = random_rows(4, 768, random);
    const Tensor y = coded::product(x, weight, Activations::int8);
    const Tensor exact = coded::product(x, weight);
    const Tensor values = coded::decoded(weight);
    for (std::int64_t i = 0; i < y.numel(); ++i) {
      // Half a step of each element, of the largest of its 32.
      double error = 0;
      for (std::int64_t j = 0; j < 768; ++j) {
        float largest = 0;
        for (std::int64_t k = j / unit * unit; k < (j / unit + 1) * unit; ++k) {
          largest = std::max(largest, std::abs(x.data<float>()[i / 33 * 768 + k]));
        }
        error += std::abs(values.data<float>()[i % 33 * 768 + j]) * largest / 127 * 0.501;
      }
      CHECK(std::abs(y.data<float>()[i] - exact.data<float>()[i]) <= error);
    }
  }
}

TEST_CASE("weights of 16 bits are multiplied in float32 all the same", "[integers]") {
  const NoGrad no_grad;
  std::mt19937 random(17);
  const Tensor values = random_rows(5, 96, random);
  const Tensor x = random_rows(3, 96, random);
  for (const CodeType type : {CodeType::f16, CodeType::bf16}) {
    CHECK_FALSE(coded::is_integer(type));
    const coded::CodeRows weight = coded::encoded(type, values);
    CHECK(to_doubles(coded::product(x, weight, Activations::int8)) ==
          to_doubles(coded::product(x, weight)));
  }
  CHECK_THROWS_AS(coded::activations_named("int4"), Error);
  for (const std::string_view name : coded::activations_names()) {
    CHECK_NOTHROW(coded::activations_named(name));
  }
}
