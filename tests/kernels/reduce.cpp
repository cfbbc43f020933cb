#include "reduce/kernels/reduce.hpp"

#include <limits>
#include <utility>

#include "check.hpp"
#include "in_workspace.hpp"
#include "reduce/kernels/moments.hpp"
#include "shared/kernels/parallel.hpp"

using namespace tessera::kernels;
using namespace tessera::kernels::test;
using tessera::DType;

namespace {

/// Short and long lines, adjacent or not, with and without a rest; those of the last ones are
/// reduced in several blocks.
ReduceShape shapes() {
  return GENERATE(ReduceShape{1, 1, 1}, ReduceShape{3, 5, 1}, ReduceShape{2, 33, 3},
                  ReduceShape{7, 64, 1}, ReduceShape{1, 300, 200}, ReduceShape{2, 5, 300},
                  ReduceShape{2, 150001, 1}, ReduceShape{1, 20001, 7}, ReduceShape{1, 701, 257},
                  ReduceShape{3, 4, 0}, ReduceShape{2, 0, 3});
}

/// of(line) for each line of x, which is given in double.
template <class Of>
std::vector<double> each_line(const ReduceShape& s, const std::vector<double>& x, Of of) {
  std::vector<double> result;
  for (std::int64_t o = 0; o < s.outer; ++o) {
    for (std::int64_t i = 0; i < s.inner; ++i) {
      std::vector<double> line;
      for (std::int64_t r = 0; r < s.reduced; ++r)
        line.push_back(x[static_cast<std::size_t>((o * s.reduced + r) * s.inner + i)]);
      result.push_back(of(line));
    }
  }
  return result;
}

/// Computes with one thread and with three; the bits are the same.
template <class T, class Run>
std::vector<T> computed(const ReduceShape& s, Run run) {
  std::vector<T> one(static_cast<std::size_t>(s.outer * s.inner));
  std::vector<T> three(one);
  run(one.data());
  set_threads(3);
  run(three.data());
  set_threads(1);
  CHECK(worst(three, as_double(one)) == 0.0);
  return one;
}

double variance_of(const std::vector<double>& line, double correction) {
  double mean = 0;
  for (const double x : line) mean += x / static_cast<double>(line.size());
  double squares = 0;
  for (const double x : line) squares += (x - mean) * (x - mean);
  return squares / std::max(static_cast<double>(line.size()) - correction, 0.0);
}

double log_sum_of(const std::vector<double>& line) {
  double top = -std::numeric_limits<double>::infinity();
  for (const double x : line) {
    if (x != x) return x;
    top = std::max(top, x);
  }
  if (std::isinf(top)) return top;
  double sum = 0;
  for (const double x : line) sum += std::exp(x - top);
  return top + std::log(sum);
}

}  // namespace

TEMPLATE_TEST_CASE("variance", "[reduce]", float, double, BFloat16, Half) {
  const ReduceShape s = shapes();
  // Far from zero: a difference of mean squares would have no digit left in float.
  const auto x = values<TestType>(s.outer * s.reduced * s.inner, 1, 60, 62);
  for (const double correction : {0.0, 1.0}) {
    for (const bool root : {false, true}) {
      CAPTURE(s.outer, s.reduced, s.inner, correction, root);
      const auto y = computed<TestType>(s, [&](TestType* to) {
        in_workspace::variance(dtype_of<TestType>, s, x.data(), correction, root, to);
      });
      CHECK(worst(y, each_line(s, as_double(x), [&](const auto& line) {
                    const double value = variance_of(line, correction);
                    return root ? std::sqrt(value) : value;
                  })) < tolerance<TestType>());
    }
  }
}

TEST_CASE("the variance of columns whose mean moves, or whose first element is far away",
          "[reduce]") {
  const ReduceShape s{1, 5000, 40};
  auto x = values<float>(s.reduced * s.inner, 1);
  for (std::int64_t i = 0; i < s.reduced * s.inner; ++i) {
    const std::int64_t column = i % s.inner;
    const std::int64_t row = i / s.inner;
    float& element = x[static_cast<std::size_t>(i)];
    if (column < 10) element += static_cast<float>(row);                // a trend
    if (column >= 10 && column < 20) element += row == 0 ? 1e6F : 0;    // the first one
    if (column >= 20 && column < 30) element += row > 2500 ? 1e6F : 0;  // a step
    if (column >= 30) element = 0.1F;
  }
  const auto y = computed<float>(
      s, [&](float* to) { in_workspace::variance(DType::f32, s, x.data(), 1, false, to); });
  CHECK(worst(y, each_line(s, as_double(x), [](const auto& line) {
                return variance_of(line, 1);
              })) < tolerance<float>());
  CHECK(y.back() == 0.0F);  // equal elements
}

TEMPLATE_TEST_CASE("log_sum_exp", "[reduce]", float, double, BFloat16, Half) {
  const ReduceShape s = shapes();
  CAPTURE(s.outer, s.reduced, s.inner);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto given = values<TestType>(s.outer * s.reduced * s.inner, 1, -30, 30);
  const auto check = [&](const std::vector<TestType>& x) {
    const auto y = computed<TestType>(
        s, [&](TestType* to) { in_workspace::log_sum_exp(dtype_of<TestType>, s, x.data(), to); });
    CHECK(worst(y, each_line(s, as_double(x), log_sum_of)) < tolerance<TestType>());
  };
  check(given);
  for (const auto& [first, last] : {std::pair{infinity, 0.0},
                                    {-infinity, -infinity},
                                    {0.0, std::nan("")},
                                    {infinity, std::nan("")},
                                    {infinity, infinity},
                                    {infinity, -infinity}}) {
    auto x = given;
    if (x.empty()) return;
    x.front() = static_cast<TestType>(first);
    x.back() = static_cast<TestType>(last);
    check(x);
  }
  check(std::vector<TestType>(given.size(), static_cast<TestType>(-infinity)));
}

TEMPLATE_TEST_CASE("norms over a dim", "[reduce]", float, double, BFloat16, Half) {
  const ReduceShape s = shapes();
  const auto x = values<TestType>(s.outer * s.reduced * s.inner, 1);
  for (const double p : {1.0, 2.0, 3.0}) {
    CAPTURE(s.outer, s.reduced, s.inner, p);
    const auto y = computed<TestType>(
        s, [&](TestType* to) { in_workspace::norm(dtype_of<TestType>, s, x.data(), p, to); });
    CHECK(worst(y, each_line(s, as_double(x), [&](const auto& line) {
                  double sum = 0;
                  for (const double value : line) sum += std::pow(std::abs(value), p);
                  return static_cast<double>(static_cast<TestType>(std::pow(sum, 1 / p)));
                })) < tolerance<TestType>());
  }
}

TEMPLATE_TEST_CASE("sums, extremes and their places", "[reduce]", float, double, BFloat16, Half) {
  const ReduceShape s = shapes();
  CAPTURE(s.outer, s.reduced, s.inner);
  auto x = values<TestType>(s.outer * s.reduced * s.inner, 1);
  for (TestType& value : x) {  // many are equal: the first one counts
    value = static_cast<TestType>(std::round(static_cast<double>(value) * 50));
  }
  const bool nan = GENERATE(false, true);
  if (nan && !x.empty()) x[x.size() / 2] = x.back() = static_cast<TestType>(std::nan(""));
  const DType dtype = dtype_of<TestType>;
  const auto sum = computed<TestType>(
      s, [&](TestType* to) { in_workspace::reduce(ReduceOp::sum, dtype, s, x.data(), to); });
  CHECK(worst(sum, each_line(s, as_double(x), [](const auto& line) {
                double all = 0;
                for (const double value : line) all += value;
                return static_cast<double>(static_cast<TestType>(all));
              })) == 0.0);
  if (s.reduced == 0) return;
  for (const double sign : {1.0, -1.0}) {
    const auto place_of = [&](const std::vector<double>& line) {
      std::size_t best = 0;
      for (std::size_t r = 1; r < line.size() && line[best] == line[best]; ++r) {
        if (line[r] != line[r] || sign * line[r] > sign * line[best]) best = r;
      }
      return best;
    };
    const auto values_found = computed<TestType>(s, [&](TestType* to) {
      in_workspace::reduce(sign > 0 ? ReduceOp::amax : ReduceOp::amin, dtype, s, x.data(), to);
    });
    CHECK(worst(values_found, each_line(s, as_double(x), [&](const auto& line) {
                  return line[place_of(line)];
                })) == 0.0);
    const auto places = computed<std::int64_t>(s, [&](std::int64_t* to) {
      sign > 0 ? in_workspace::argmax(dtype, s, x.data(), to)
               : in_workspace::argmin(dtype, s, x.data(), to);
    });
    CHECK(worst(places, each_line(s, as_double(x), [&](const auto& line) {
                  return static_cast<double>(place_of(line));
                })) == 0.0);
  }
}
