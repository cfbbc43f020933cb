// exact_sum and exact_value against integers of 128 bits, which are exact too.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.tensor;
import tessera.ops;

using namespace tessera;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

Tensor tensor_of(const std::vector<double>& values, DType dtype = DType::f64) {
  const Tensor x =
      from_values(std::span<const double>(values), {static_cast<std::int64_t>(values.size())});
  return ops::cast(x, dtype);
}

double sum_of(const std::vector<double>& values) {
  return ops::exact_value(ops::exact_sum(tensor_of(values))).item();
}

/// Numbers of very different sizes and both signs: integers times 2^-40.
std::vector<std::int64_t> integers(std::size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int64_t> all(count);
  for (std::int64_t& x : all) {
    const std::int64_t magnitude = static_cast<std::int64_t>(random() >> 41) << (random() % 32);
    x = random() % 2 == 0 ? magnitude : -magnitude;
  }
  return all;
}

}  // namespace

TEST_CASE("an exact sum is the nearest double to the sum of integers") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const std::size_t count : {1, 7, 1000, 100'000}) {
      INFO(name_of(dtype) << " " << count);
      std::vector<double> values;
      for (const std::int64_t x : integers(count, 3)) {
        values.push_back(static_cast<double>(x));
      }
      const Tensor kept = ops::cast(tensor_of(values, dtype), DType::f64);  // what the type has
      __int128 sum = 0;
      for (const double x : to_doubles(kept)) {
        sum += static_cast<std::int64_t>(x);
      }
      const Tensor x = ops::mul_scalar(ops::cast(kept, dtype), std::ldexp(1.0, -40));
      CHECK(ops::exact_value(ops::exact_sum(x)).item() ==
            std::ldexp(static_cast<double>(sum), -40));
    }
  }
}

TEST_CASE("an exact sum of squares is the nearest double to that of integers") {
  std::mt19937 random(11);
  std::vector<double> values(100'000);
  __int128 sum = 0;
  for (double& x : values) {
    const auto integer = static_cast<std::int64_t>(random() >> 8) << (random() % 16);
    x = static_cast<double>(integer);  // 24 bits
    sum += static_cast<__int128>(integer) * integer;
  }
  const Tensor x = tensor_of(values, DType::f32);
  CHECK(ops::exact_value(ops::exact_sum(x, ops::ExactTerm::square)).item() ==
        static_cast<double>(sum));
}

TEST_CASE("squares of f32 are exact") {
  const float x = 1.0F + std::ldexp(1.0F, -23);
  const std::vector<double> values = {x, std::ldexp(1.0, -20), 4096, -4096, std::ldexp(1.0, -70)};
  // (1 + 2^-23)^2 + 2^-40 + 2^25 + 2^-140, of which the last is lost in rounding to f64.
  const double wanted = std::ldexp(1.0, 25) +
                        (1 + std::ldexp(1.0, -22) + std::ldexp(1.0, -46) + std::ldexp(1.0, -40));
  CHECK(ops::exact_value(ops::exact_sum(tensor_of(values, DType::f32), ops::ExactTerm::square))
            .item() == wanted);
}

TEST_CASE("an exact sum loses nothing between numbers of any size") {
  CHECK(sum_of({1e300, 1, -1e300}) == 1);
  CHECK(sum_of({1, std::ldexp(1.0, -53)}) == 1);  // halfway, to even
  CHECK(sum_of({1, std::ldexp(1.0, -53), 5e-324}) == 1 + std::ldexp(1.0, -52));
  CHECK(sum_of({1 + std::ldexp(1.0, -52), std::ldexp(1.0, -53)}) == 1 + std::ldexp(1.0, -51));
  CHECK(sum_of({5e-324, 5e-324, 1, -1}) == 1e-323);
  CHECK(sum_of({-5e-324}) == -5e-324);
  CHECK(sum_of({1.5, -1.5}) == 0);
  CHECK(sum_of({}) == 0);
  CHECK(sum_of({-3, 1}) == -2);
  CHECK(sum_of({std::numeric_limits<double>::max(), std::numeric_limits<double>::max()}) ==
        infinity);
  CHECK(sum_of({std::numeric_limits<double>::max(), std::numeric_limits<double>::max(),
                -std::numeric_limits<double>::max()}) == std::numeric_limits<double>::max());
}

TEST_CASE("what is not finite in a sum is not finite after it") {
  CHECK(sum_of({1, infinity}) == infinity);
  CHECK(sum_of({1, -infinity}) == -infinity);
  CHECK(std::isnan(sum_of({infinity, -infinity})));
  CHECK(std::isnan(sum_of({1, std::nan("")})));
  const Tensor x = tensor_of({-infinity, 2}, DType::f32);
  CHECK(ops::exact_value(ops::exact_sum(x)).item() == -infinity);
  CHECK(ops::exact_value(ops::exact_sum(x, ops::ExactTerm::square)).item() == infinity);
}

TEST_CASE("digits of parts are added up in any order") {
  std::vector<double> values;
  for (const std::int64_t x : integers(50'000, 5)) {
    values.push_back(std::ldexp(static_cast<double>(x), -20));
  }
  const Tensor x = tensor_of(values, DType::f32);
  const double whole = ops::exact_value(ops::exact_sum(x)).item();
  for (const std::int64_t parts : {2, 3, 7}) {
    Tensor digits;
    for (std::int64_t part = parts; part-- > 0;) {
      const std::int64_t begin = x.numel() * part / parts;
      const std::int64_t end = x.numel() * (part + 1) / parts;
      const Tensor of_part = ops::exact_sum(ops::narrow(x, 0, begin, end - begin));
      digits = digits ? ops::add(digits, of_part) : of_part;
    }
    CHECK(ops::exact_value(digits).item() == whole);
  }
}

TEST_CASE("exact sums say what they cannot add up") {
  const auto error_of = [](auto f) {
    try {
      f();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  CHECK(error_of([] {
          static_cast<void>(ops::exact_sum(full({2}, 1, DType::i64)));
        }).starts_with("exact_sum: "));
  CHECK(error_of([] {
          static_cast<void>(ops::exact_value(full({3}, 1, DType::i64)));
        }).starts_with("exact_value: "));
}
