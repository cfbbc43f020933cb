#include "reduce/kernels/scan.hpp"

#include <cstring>
#include <limits>
#include <numeric>

#include "check.hpp"
#include "shared/kernels/parallel.hpp"

using namespace tessera::kernels;
using namespace tessera::kernels::test;
using tessera::DType;

namespace {

/// Short and long lines, adjacent or not; the long ones are scanned in parts, one of them in
/// several rounds of parts.
ReduceShape shapes() {
  return GENERATE(ReduceShape{1, 1, 1}, ReduceShape{3, 5, 1}, ReduceShape{2, 33, 3},
                  ReduceShape{70, 64, 1}, ReduceShape{2, 100, 300}, ReduceShape{2, 40001, 1},
                  ReduceShape{1, 300007, 1}, ReduceShape{3, 4, 0}, ReduceShape{2, 0, 3});
}

/// join over the elements up to each one, in their order.
template <class T, class Join>
std::vector<double> expected_scan(const ReduceShape& s, bool from_end, const std::vector<T>& x,
                                  double start, Join join) {
  std::vector<double> y(x.size());
  for (std::int64_t o = 0; o < s.outer; ++o) {
    for (std::int64_t i = 0; i < s.inner; ++i) {
      double value = start;
      for (std::int64_t k = 0; k < s.reduced; ++k) {
        const std::int64_t r = from_end ? s.reduced - 1 - k : k;
        const auto at = static_cast<std::size_t>((o * s.reduced + r) * s.inner + i);
        value = join(value, static_cast<double>(x[at]));
        y[at] = value;
      }
    }
  }
  return y;
}

/// y by `run`; the same bits with one thread and with three.
template <class T, class Run>
std::vector<T> computed(std::size_t count, Run run) {
  std::vector<T> one(count);
  std::vector<T> three(count);
  run(one.data());
  set_threads(3);
  run(three.data());
  set_threads(1);
  CHECK((count == 0 || std::memcmp(one.data(), three.data(), count * sizeof(T)) == 0));
  return one;
}

}  // namespace

TEMPLATE_TEST_CASE("cumulative sums, products and log-sum-exps", "[scan]", float, double, BFloat16,
                   Half) {
  const ReduceShape s = shapes();
  const auto count = static_cast<std::size_t>(s.outer * s.reduced * s.inner);
  for (const bool from_end : {false, true}) {
    CAPTURE(s.outer, s.reduced, s.inner, from_end);
    const auto check = [&](ScanOp op, const std::vector<TestType>& x, double start, auto join) {
      const auto y = computed<TestType>(
          count, [&](TestType* to) { scan(op, from_end, dtype_of<TestType>, s, x.data(), to); });
      CHECK(worst(y, expected_scan(s, from_end, x, start, join)) < tolerance<TestType>());
    };
    const auto terms = values<TestType>(static_cast<std::int64_t>(count), 1, -1, 1);
    check(ScanOp::sum, terms, 0, std::plus<>());
    // Near 1, so that no product leaves the range of 16 bits.
    const auto factors = values<TestType>(static_cast<std::int64_t>(count), 2, 0.9999, 1.0001);
    check(ScanOp::prod, factors, 1, std::multiplies<>());
    check(ScanOp::log_sum_exp, terms, -std::numeric_limits<double>::infinity(),
          [](double a, double b) {
            const double larger = std::max(a, b);
            return larger + std::log(std::exp(a - larger) + std::exp(b - larger));
          });
  }
}

TEST_CASE("cumulative sums of integers are exact, NaN and infinities go on", "[scan]") {
  const ReduceShape s{2, 40001, 1};
  std::vector<std::int32_t> x(static_cast<std::size_t>(s.outer * s.reduced), 1 << 30);
  const auto y = computed<std::int64_t>(
      x.size(), [&](std::int64_t* to) { scan(ScanOp::sum, false, DType::i32, s, x.data(), to); });
  CHECK(y[40000] == std::int64_t{40001} << 30);
  CHECK(y[40001] == std::int64_t{1} << 30);

  std::vector<float> f(x.size(), 1.0F);
  f[20] = std::numeric_limits<float>::infinity();
  f[30000] = -f[20];
  const auto z = computed<float>(
      f.size(), [&](float* to) { scan(ScanOp::sum, false, DType::f32, s, f.data(), to); });
  CHECK(z[19] == 20);
  CHECK(z[29999] == f[20]);
  CHECK(std::isnan(z[30000]));
  CHECK(std::isnan(z[40000]));
  CHECK(z[40001] == 1);
}

TEST_CASE("a linear recurrence in both directions", "[scan]") {
  const ReduceShape s = shapes();
  const auto count = s.outer * s.reduced * s.inner;
  const auto x = values<double>(count, 1);
  auto factor = values<double>(count, 2);
  for (const bool from_end : {false, true}) {
    CAPTURE(s.outer, s.reduced, s.inner, from_end);
    const std::int64_t begin = from_end ? s.reduced - 1 : 0;
    for (std::int64_t i = 0; s.reduced > 0 && i < s.inner; ++i)  // the first one is not used
      factor[static_cast<std::size_t>(begin * s.inner + i)] =
          std::numeric_limits<double>::infinity();
    const auto y = computed<double>(x.size(), [&](double* to) {
      linear_recurrence(from_end, DType::f64, s, x.data(), factor.data(), to);
    });
    double difference = 0;
    for (std::int64_t at = 0; at < count; ++at) {
      const std::int64_t r = at / s.inner % s.reduced;
      const std::int64_t last = at + (from_end ? s.inner : -s.inner);
      const double gained =
          r == begin ? 0 : factor[static_cast<std::size_t>(at)] * y[static_cast<std::size_t>(last)];
      difference = std::max(difference, std::abs(x[static_cast<std::size_t>(at)] + gained -
                                                 y[static_cast<std::size_t>(at)]));
    }
    CHECK(difference < 1e-12);
    std::ranges::fill(factor, 0.5);
  }
}
