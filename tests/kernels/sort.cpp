#include "sort/kernels/sort.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "check.hpp"
#include "in_workspace.hpp"
#include "shared/kernels/parallel.hpp"

using namespace tessera::kernels;
using namespace tessera::kernels::test;
using tessera::DType;

namespace {

/// Does a come before b? NaN is the largest element and is equal to NaN.
bool before(double a, double b, bool descending) {
  if (descending) std::swap(a, b);
  return !std::isnan(a) && (std::isnan(b) || a < b);
}

/// The positions of each line's elements in order, by the library's sort; equal ones by position.
template <class T>
std::vector<std::int64_t> expected_indices(const SortShape& s, bool descending,
                                           const std::vector<T>& x) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(s.outer * s.count * s.inner));
  for (std::int64_t o = 0; o < s.outer; ++o) {
    for (std::int64_t i = 0; i < s.inner; ++i) {
      std::vector<std::int64_t> order(static_cast<std::size_t>(s.reduced));
      std::iota(order.begin(), order.end(), 0);
      const auto element = [&](std::int64_t r) {
        return static_cast<double>(x[static_cast<std::size_t>((o * s.reduced + r) * s.inner + i)]);
      };
      std::ranges::sort(order, [&](std::int64_t a, std::int64_t b) {
        const bool first = before(element(a), element(b), descending);
        return first || (a < b && !before(element(b), element(a), descending));
      });
      for (std::int64_t k = 0; k < s.count; ++k)
        all[static_cast<std::size_t>((o * s.count + k) * s.inner + i)] =
            order[static_cast<std::size_t>(k)];
    }
  }
  return all;
}

template <class T>
void check_order(DType dtype, const SortShape& s, const std::vector<T>& x) {
  for (const bool descending : {false, true}) {
    const std::vector<std::int64_t> expected = expected_indices(s, descending, x);
    for (const int threads : {1, 3}) {
      CAPTURE(s.outer, s.reduced, s.inner, s.count, descending, threads);
      std::vector<T> values(expected.size());
      std::vector<std::int64_t> indices(expected.size(), -1);
      set_threads(threads);
      in_workspace::sort(dtype, s, descending, x.data(), values.data(), indices.data());
      set_threads(1);
      REQUIRE(indices == expected);
      std::vector<T> taken;
      for (std::size_t at = 0; at < indices.size(); ++at) {
        const auto inner = static_cast<std::int64_t>(at) % s.inner;
        const auto outer = static_cast<std::int64_t>(at) / s.inner / s.count;
        taken.push_back(
            x[static_cast<std::size_t>((outer * s.reduced + indices[at]) * s.inner + inner)]);
      }
      // The same bytes: -0 stays -0.
      CHECK(std::ranges::equal(std::as_bytes(std::span<const T>(values)),
                               std::as_bytes(std::span<const T>(taken))));
    }
  }
}

/// Short and long lines, adjacent or not; all of a line, or the first few.
SortShape shapes() {
  return GENERATE(SortShape{1, 1, 1, 1}, SortShape{3, 7, 1, 7}, SortShape{2, 40, 5, 40},
                  SortShape{2, 300, 1, 300}, SortShape{3, 1000, 21, 1000},
                  SortShape{2, 70001, 1, 70001}, SortShape{3, 500, 1, 3}, SortShape{2, 900, 9, 5},
                  SortShape{1, 200003, 1, 77}, SortShape{2, 4000, 1, 499}, SortShape{2, 0, 3, 0},
                  SortShape{2, 5, 3, 0});
}

}  // namespace

TEMPLATE_TEST_CASE("floats in order: NaN is the largest, equal ones keep their order", "[sort]",
                   float, double, BFloat16, Half) {
  const SortShape s = shapes();
  auto x = values<TestType>(s.outer * s.reduced * s.inner, 3, -2, 2);
  constexpr double kSpecial[] = {0.0,
                                 -0.0,
                                 1.0,
                                 std::numeric_limits<double>::infinity(),
                                 -std::numeric_limits<double>::infinity(),
                                 std::numeric_limits<double>::quiet_NaN()};
  for (std::size_t i = 0; i < x.size(); i += 3)
    x[i] = static_cast<TestType>(kSpecial[i / 3 % std::size(kSpecial)]);
  constexpr DType kType = std::is_same_v<TestType, float>      ? DType::f32
                          : std::is_same_v<TestType, double>   ? DType::f64
                          : std::is_same_v<TestType, BFloat16> ? DType::bf16
                                                               : DType::f16;
  check_order(kType, s, x);
}

TEST_CASE("integers in order, negative and large ones", "[sort]") {
  const SortShape s = shapes();
  const auto count = static_cast<std::size_t>(s.outer * s.reduced * s.inner);
  std::mt19937_64 generator(5);
  // Few different high digits: some passes of the sort have nothing to do.
  std::vector<std::int64_t> wide(count);
  for (auto& v : wide) v = static_cast<std::int64_t>(generator() & 0xfff) - 2000;
  for (std::size_t i = 0; i < count; i += 5)
    wide[i] = (i % 2 != 0 ? 1 : -1) * (std::int64_t{1} << 52);
  check_order(DType::i64, s, wide);
  std::vector<std::int32_t> narrow(count);
  for (auto& v : narrow) v = static_cast<std::int32_t>(generator());
  check_order(DType::i32, s, narrow);
  std::vector<std::uint8_t> bytes(count);
  for (auto& v : bytes) v = static_cast<std::uint8_t>(generator());
  check_order(DType::u8, s, bytes);
}

TEST_CASE("the first few of lines that are sorted, reversed or constant", "[sort]") {
  const SortShape s{1, 100000, 1, 60};
  std::vector<float> x(static_cast<std::size_t>(s.reduced));
  std::iota(x.begin(), x.end(), -500.0F);
  check_order(DType::f32, s, x);
  std::ranges::reverse(x);
  check_order(DType::f32, s, x);
  std::ranges::fill(x, 1.0F);
  check_order(DType::f32, s, x);
  std::ranges::fill(x, std::numeric_limits<float>::quiet_NaN());
  x[70000] = 1;
  check_order(DType::f32, s, x);
}
