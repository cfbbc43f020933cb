// Exponentials of distances to a reference that is found while the elements are read: elements that
// rise far above it, fall far below it, or are infinite in between; and moments of elements that
// are far from the first ones.

#include <functional>
#include <string>

#include "check.hpp"
#include "in_workspace.hpp"
#include "loss/kernels/cross_entropy.hpp"
#include "reduce/kernels/scan.hpp"
#include "shared/kernels/parallel.hpp"

using namespace tessera::kernels;
using namespace tessera::kernels::test;

namespace {

constexpr std::int64_t kLine = 5000;  // several runs, and a tail
constexpr std::int64_t kInner = 19;   // a whole vector of columns, and three
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Course {
  std::string name;
  std::function<double(std::int64_t)> at;  // the element of a line
};

std::vector<Course> courses() {
  return {{"rises", [](auto i) { return static_cast<double>(i) * 0.5 - 600; }},
          {"falls", [](auto i) { return 600 - static_cast<double>(i) * 0.5; }},
          {"one is large", [](auto i) { return i == 3333 ? 500.0 : -3.0; }},
          {"the first is large", [](auto i) { return i == 0 ? 500.0 : -3.0; }},
          {"the first is small", [](auto i) { return i == 0 ? -3e38 : 1.0; }},
          {"the first are -infinity", [](auto i) { return i < 4000 ? -kInfinity : -700.0; }},
          {"some are -infinity", [](auto i) { return i % 3 == 1 ? -kInfinity : 2.0; }},
          {"all are -infinity", [](auto) { return -kInfinity; }},
          {"one is infinity", [](auto i) { return i == 4100 ? kInfinity : 1.0; }},
          {"one is NaN", [](auto i) { return i == 4100 ? std::nan("") : 1.0; }},
          {"NaN after infinity", [](auto i) { return i < 9    ? kInfinity
                                                     : i < 12 ? NAN
                                                              : 0.0; }}};
}

/// The lines of a course, `inner` columns of them; every other column is 100 higher.
std::vector<float> elements(const Course& course, std::int64_t inner) {
  std::vector<float> x(static_cast<std::size_t>(kLine * inner));
  for (std::int64_t i = 0; i < kLine * inner; ++i) {
    const double shift = i % inner % 2 == 0 ? 0 : 100;
    x[static_cast<std::size_t>(i)] = static_cast<float>(course.at(i / inner) + shift);
  }
  return x;
}

/// The logarithm of the sum of exponentials of the elements first, first + step, ... before last.
double log_sum(const std::vector<float>& x, std::int64_t first, std::int64_t last,
               std::int64_t step) {
  double top = -kInfinity;
  for (std::int64_t i = first; i < last; i += step) {
    const auto value = static_cast<double>(x[static_cast<std::size_t>(i)]);
    if (std::isnan(value)) return value;
    top = std::max(top, value);
  }
  if (std::isinf(top)) return top;
  double sum = 0;
  for (std::int64_t i = first; i < last; i += step)
    sum += std::exp(static_cast<double>(x[static_cast<std::size_t>(i)]) - top);
  return top + std::log(sum);
}

}  // namespace

TEST_CASE("logarithms of sums do not depend on where the largest elements are", "[range]") {
  for (const Course& course : courses()) {
    for (const std::int64_t inner : {std::int64_t{1}, kInner}) {
      CAPTURE(course.name, inner);
      const std::vector<float> x = elements(course, inner);
      const auto columns = static_cast<std::size_t>(inner);
      std::vector<double> expected;
      for (std::int64_t i = 0; i < inner; ++i)
        expected.push_back(log_sum(x, i, kLine * inner, inner));
      std::vector<float> y(columns);
      in_workspace::log_sum_exp(DType::f32, {1, kLine, inner}, x.data(), y.data());
      CHECK(worst(y, expected) < 1e-6);

      std::vector<float> scanned(x.size());
      for (const bool from_end : {false, true}) {
        scan(ScanOp::log_sum_exp, from_end, DType::f32, {1, kLine, inner}, x.data(),
             scanned.data());
        for (const std::int64_t row : {std::int64_t{0}, std::int64_t{300}, kLine - 1}) {
          const std::int64_t begin = from_end ? row * inner : 0;
          const std::int64_t end = from_end ? kLine * inner : (row + 1) * inner;
          for (std::int64_t i = 0; i < inner; ++i) {
            CAPTURE(from_end, row, i);
            CHECK(worst(std::vector{scanned[static_cast<std::size_t>(row * inner + i)]},
                        {log_sum(x, begin + i, end, inner)}) < 3e-6);
          }
        }
      }

      std::vector<float> normal(x.size());
      for (const bool logarithm : {false, true}) {
        in_workspace::softmax_columns_forward(logarithm, 1, kLine, inner, x.data(), normal.data());
        std::vector<double> shares;
        for (std::size_t i = 0; i < x.size(); ++i) {
          const double all = expected[i % columns];
          const double share = static_cast<double>(x[i]) - all;
          // With an infinite sum there are no shares.
          shares.push_back(std::isinf(all) ? std::nan("") : logarithm ? share : std::exp(share));
        }
        std::vector<float> finite = normal;
        for (std::size_t i = 0; i < x.size(); ++i)
          if (std::isinf(expected[i % columns]) && logarithm) finite[i] = NAN;
        CHECK(worst(finite, shares) < 1e-5);
      }
    }
  }
}

TEST_CASE("the loss of a row with NaN is NaN, and of others as their elements say", "[range]") {
  for (const Course& course : courses()) {
    CAPTURE(course.name);
    const std::vector<float> x = elements(course, 1);
    const double all = log_sum(x, 0, kLine, 1);
    const std::int64_t target = 7;
    float loss = 0;
    float log_sum_exp = 0;
    CHECK(cross_entropy_forward({1, kLine, 0, -100}, x.data(), &target, &loss, &log_sum_exp) == -1);
    CHECK(worst(std::vector{log_sum_exp}, {all}) < 1e-6);
    CHECK(worst(std::vector{loss}, {all - static_cast<double>(x[7])}) < 1e-5);
    float maximum = 0;
    float sum = 0;
    float picked = 0;
    cross_entropy_partial({1, kLine, 0, -100}, x.data(), &target, &maximum, &sum, &picked);
    if (std::isnan(all)) {
      CHECK(std::isnan(sum));
    } else {
      const float largest = *std::max_element(x.begin(), x.end());
      CHECK(maximum == largest);
      if (std::isfinite(largest))
        CHECK(static_cast<double>(maximum) + std::log(static_cast<double>(sum)) == Approx(all));
    }
  }
}

TEST_CASE("variances keep their digits far from 0 and from the first element", "[range]") {
  for (const double first : {0.0, 1e6}) {
    for (const double offset : {0.0, 1e4, -3e6}) {
      for (const std::int64_t inner : {std::int64_t{1}, kInner}) {
        CAPTURE(first, offset, inner);
        auto x = values<double>(kLine * inner, 5, offset - 1, offset + 1);
        for (std::int64_t i = 0; i < inner; ++i) x[static_cast<std::size_t>(i)] += first;
        std::vector<double> expected;
        for (std::int64_t i = 0; i < inner; ++i) {
          long double mean = 0;
          for (std::int64_t r = 0; r < kLine; ++r)
            mean += static_cast<long double>(x[static_cast<std::size_t>(r * inner + i)]);
          mean /= kLine;
          long double squares = 0;
          for (std::int64_t r = 0; r < kLine; ++r) {
            const long double distance =
                static_cast<long double>(x[static_cast<std::size_t>(r * inner + i)]) - mean;
            squares += distance * distance;
          }
          expected.push_back(static_cast<double>(squares / (kLine - 1)));
        }
        std::vector<double> y(static_cast<std::size_t>(inner));
        in_workspace::variance(DType::f64, {1, kLine, inner}, x.data(), 1, false, y.data());
        for (std::size_t i = 0; i < y.size(); ++i) CHECK(y[i] == Approx(expected[i]).epsilon(1e-9));
      }
    }
  }
}
