// The rotation of heads against its definition: pairs of features, each turned by its angle.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.nn;

#include "differences.hpp"

using namespace tessera;
using testing::largest_difference;

namespace {

constexpr std::int64_t tokens = 12;
constexpr std::int64_t width = 10;

/// Some heads [1, T, 1, D].
Tensor heads(double seed) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < tokens * width; ++i) {
    values.push_back(std::sin(seed + 1.7 * static_cast<double>(i)));
  }
  return from_values(std::span<const double>(values), {1, tokens, 1, width});
}

/// The product of query i with key j, whose first `dims` features are turned in pairs of
/// neighbours.
double score(const Tensor& q, const Tensor& k, std::int64_t i, std::int64_t j, std::int64_t dims,
             double theta) {
  const std::vector<double> a = to_doubles(q);
  const std::vector<double> b = to_doubles(k);
  const auto at = [](const std::vector<double>& x, std::int64_t token, std::int64_t feature) {
    return x[static_cast<std::size_t>(token * width + feature)];
  };
  double sum = 0;
  for (std::int64_t pair = 0; pair < dims / 2; ++pair) {
    const double turn =
        static_cast<double>(i - j) *
        std::pow(theta, -2.0 * static_cast<double>(pair) / static_cast<double>(dims));
    const double x = at(a, i, 2 * pair);
    const double y = at(a, i, 2 * pair + 1);
    sum += (x * std::cos(turn) - y * std::sin(turn)) * at(b, j, 2 * pair) +
           (x * std::sin(turn) + y * std::cos(turn)) * at(b, j, 2 * pair + 1);
  }
  for (std::int64_t feature = dims; feature < width; ++feature) {
    sum += at(a, i, feature) * at(b, j, feature);
  }
  return sum;
}

}  // namespace

TEST_CASE("products of rotated heads are those of turned pairs of neighbours") {
  const Tensor q = heads(0.3);
  const Tensor k = heads(2.1);
  for (const std::int64_t dims : {std::int64_t{4}, width}) {
    const nn::RotaryOptions options{.theta = 50, .dims = dims, .neighbours = true};
    const Tensor a = nn::rotate(q, options, {});
    const Tensor b = nn::rotate(k, options, {});
    for (const auto& [i, j] : {std::pair{0, 0}, {7, 3}, {11, 0}}) {
      INFO(dims << " dims, query " << i << ", key " << j);
      double sum = 0;
      for (std::int64_t feature = 0; feature < width; ++feature) {
        sum += to_doubles(a)[static_cast<std::size_t>(i * width + feature)] *
               to_doubles(b)[static_cast<std::size_t>(j * width + feature)];
      }
      CHECK(std::abs(sum - score(q, k, i, j, dims, 50)) < 1e-9);
    }
  }
}

TEST_CASE("a long row has a larger base") {
  const Tensor x = heads(1);
  const nn::RotaryOptions options{.theta = 50, .stretch = 2, .limit = 8};
  // Of 12 tokens and 3 before them.
  const double larger = 50 * std::pow(2.0 * 15 / 8 - 1, width / (width - 2.0));
  CHECK(largest_difference(nn::rotate(x, options, {.given = {}, .before = 3}),
                           ops::rotary(x, larger, 3)) == 0);
  const nn::RotaryOptions long_enough{.theta = 50, .stretch = 2, .limit = 15};
  CHECK(largest_difference(nn::rotate(x, long_enough, {.given = {}, .before = 3}),
                           ops::rotary(x, 50, 3)) == 0);
}

TEST_CASE("heads without a base stay as they are, and a part of a head that cannot be is refused") {
  const Tensor x = heads(1);
  CHECK(largest_difference(nn::rotate(x, {}, {}), x) == 0);
  for (const std::int64_t dims : {3, 12}) {
    const nn::RotaryOptions options{.theta = 50, .dims = dims};
    CHECK_THROWS_AS(options.check(width), Error);
  }
}

TEST_CASE("wavelengths with factors turn as their angles say, and other ones in long rows") {
  const Tensor x = heads(1);
  const nn::RotaryOptions options{
      .theta = 50,
      .dims = 4,
      .factors = {.short_rows = {1.5, 2}, .long_rows = {3, 5}, .limit = 12, .amplitude = 1.25}};
  const nn::Attention layer({.dim = width, .heads = 1, .rotary = options});
  const Tensor& angles = layer.buffer("angles")->initial;
  const std::vector<double> given = to_doubles(x);
  for (const std::int64_t before : {0, 3}) {
    const bool is_long = before > 0;
    const std::vector<double> turned =
        to_doubles(nn::rotate(x, options, {.given = {}, .before = before}, angles));
    const std::vector<double>& factors =
        is_long ? options.factors.long_rows : options.factors.short_rows;
    for (std::int64_t token = 0; token < x.size(1); ++token) {
      for (std::int64_t pair = 0; pair < 2; ++pair) {
        const double angle = static_cast<double>(token + before) * std::pow(50, -pair / 2.0) /
                             factors[static_cast<std::size_t>(pair)];
        const auto at = static_cast<std::size_t>(token * width + pair);
        const double a = given[at];
        const double b = given[at + 2];
        CHECK(std::abs(turned[at] - 1.25 * (a * std::cos(angle) - b * std::sin(angle))) < 1e-6);
        CHECK(std::abs(turned[at + 2] - 1.25 * (b * std::cos(angle) + a * std::sin(angle))) < 1e-6);
      }
      const auto rest = static_cast<std::size_t>(token * width + 4);
      CHECK(turned[rest] == given[rest]);
    }
  }
}

TEST_CASE("a cache of a short row does not become that of a long one") {
  const nn::RotaryOptions rotary{
      .theta = 50,
      .dims = 4,
      .factors = {.short_rows = {1.5, 2}, .long_rows = {3, 5}, .limit = 7, .amplitude = 1.25}};
  const auto layer = std::make_shared<nn::Attention>(
      nn::AttentionOptions{.dim = width, .heads = 1, .rotary = rotary, .standard_deviation = 0.5});
  nn::materialize(*layer);
  nn::initialize(*layer);
  const NoGrad no_grad;
  const Tensor x = ops::cast(ops::flatten(heads(1), 2, 3), DType::f32);  // [1, T, D]
  nn::AttentionCache cache;
  layer->set_cache(&cache);
  (*layer)(ops::narrow(x, 1, 0, 5));
  (*layer)(ops::narrow(x, 1, 5, 2));  // still short
  const std::string error = testing::input_error([&] { (*layer)(ops::narrow(x, 1, 7, 1)); });
  CHECK(error.find("expected at most 7 tokens, got 8") != std::string::npos);
  cache.clear();
  (*layer)(ops::narrow(x, 1, 0, 8));
  const Tensor last = (*layer)(ops::narrow(x, 1, 8, tokens - 8));
  layer->set_cache(nullptr);
  const Tensor whole = (*layer)(x);
  CHECK(largest_difference(last, ops::narrow(whole, 1, 8, tokens - 8)) < 1e-6);
}

TEST_CASE("factors of wavelengths that do not fit are refused") {
  nn::RotaryOptions options{
      .theta = 50, .dims = 4, .factors = {.short_rows = {1, 2}, .long_rows = {1}, .limit = 8}};
  const std::string counts = testing::input_error([&] { options.check(width); });
  CHECK(counts.find("2 and 1") != std::string::npos);
  options.factors.long_rows = {1, 0};
  CHECK_THROWS_AS(options.check(width), Error);
  options.factors.long_rows = {1, 1};
  options.factors.limit = 0;
  CHECK_THROWS_AS(options.check(width), Error);
  options.factors.limit = 1;
  options.check(width);
}
