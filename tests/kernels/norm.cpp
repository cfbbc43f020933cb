#include "norm/kernels/norm.hpp"

#include "check.hpp"
#include "in_workspace.hpp"
#include "loss/kernels/cross_entropy.hpp"
#include "shared/kernels/parallel.hpp"

using namespace tessera::kernels;
using namespace tessera::kernels::test;

namespace {

struct Shape {
  std::int64_t rows;
  std::int64_t n;
};

Shape shapes() {
  return GENERATE(Shape{1, 1}, Shape{3, 5}, Shape{70, 16}, Shape{5, 33}, Shape{130, 100},
                  Shape{2, 256}, Shape{0, 8});
}

/// sum over outputs of dy * (y(x + h) - y(x - h)) / 2h, for each element of x.
template <class Function>
std::vector<double> differences(const std::vector<double>& x, const std::vector<double>& dy,
                                Function function) {
  constexpr double kStep = 1e-5;
  std::vector<double> result(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    auto moved = x;
    moved[i] = x[i] + kStep;
    const std::vector<double> up = function(moved);
    moved[i] = x[i] - kStep;
    const std::vector<double> down = function(moved);
    for (std::size_t j = 0; j < dy.size(); ++j)
      result[i] += dy[j] * (up[j] - down[j]) / (2 * kStep);
  }
  return result;
}

std::vector<double> rms_norm(std::int64_t n, const std::vector<double>& x,
                             const std::vector<double>& w) {
  auto y = x;
  const auto width = static_cast<std::size_t>(n);
  for (std::size_t row = 0; row < x.size(); row += width) {
    double squares = 0;
    for (std::size_t i = 0; i < width; ++i) squares += x[row + i] * x[row + i];
    for (std::size_t i = 0; i < width; ++i)
      y[row + i] *= w[i] / std::sqrt(squares / static_cast<double>(n) + 1e-5);
  }
  return y;
}

std::vector<double> layer_norm(std::int64_t n, const std::vector<double>& x,
                               const std::vector<double>& w, const std::vector<double>& bias) {
  auto y = x;
  const auto width = static_cast<std::size_t>(n);
  for (std::size_t row = 0; row < x.size(); row += width) {
    double mean = 0;
    double variance = 0;
    for (std::size_t i = 0; i < width; ++i) mean += x[row + i] / static_cast<double>(n);
    for (std::size_t i = 0; i < width; ++i)
      variance += (x[row + i] - mean) * (x[row + i] - mean) / static_cast<double>(n);
    for (std::size_t i = 0; i < width; ++i)
      y[row + i] = (x[row + i] - mean) / std::sqrt(variance + 1e-5) * w[i] + bias[i];
  }
  return y;
}

std::vector<double> softmax(std::int64_t n, const std::vector<double>& x, bool logarithm) {
  auto y = x;
  const auto width = static_cast<std::size_t>(n);
  for (std::size_t row = 0; row < x.size(); row += width) {
    double sum = 0;
    for (std::size_t i = 0; i < width; ++i) sum += std::exp(x[row + i]);
    for (std::size_t i = 0; i < width; ++i)
      y[row + i] = logarithm ? x[row + i] - std::log(sum) : std::exp(x[row + i]) / sum;
  }
  return y;
}

}  // namespace

TEMPLATE_TEST_CASE("rms_norm agrees with loops in double", "[norm]", float, double, BFloat16,
                   Half) {
  using C = Compute<TestType>;
  const auto [rows, n] = shapes();
  CAPTURE(rows, n);
  const auto x = values<TestType>(rows * n, 1, -2, 2);
  const auto w = values<TestType>(n, 2);
  std::vector<TestType> y(x.size());
  std::vector<C> rstd(static_cast<std::size_t>(rows));
  rms_norm_forward(rows, n, x.data(), w.data(), 1e-5, y.data(), rstd.data());
  CHECK(worst(y, rms_norm(n, as_double(x), as_double(w))) < tolerance<TestType>());
  auto in_place = x;
  rms_norm_forward(rows, n, in_place.data(), w.data(), 1e-5, in_place.data(), rstd.data());
  CHECK(worst(in_place, as_double(y)) == 0.0);
}

TEST_CASE("the norms' gradients agree with finite differences", "[norm]") {
  const auto [rows, n] = shapes();
  if (rows > 100) return;
  CAPTURE(rows, n);
  const auto x = values<double>(rows * n, 1, -2, 2);
  const auto w = values<double>(n, 2);
  const auto bias = values<double>(n, 3);
  const auto dy = values<double>(rows * n, 4);
  std::vector<double> y(x.size()), dx(x.size()), mean(static_cast<std::size_t>(rows)), rstd(mean),
      dw(w.size(), 9.0), db(w);
  rms_norm_forward(rows, n, x.data(), w.data(), 1e-5, y.data(), rstd.data());
  in_workspace::rms_norm_backward(rows, n, dy.data(), x.data(), w.data(), rstd.data(), dx.data(),
                                  dw.data());
  CHECK(worst(dx, differences(x, dy, [&](const auto& at) { return rms_norm(n, at, w); })) < 1e-6);
  CHECK(worst(dw, differences(w, dy, [&](const auto& at) { return rms_norm(n, x, at); })) < 1e-6);
  layer_norm_forward(rows, n, x.data(), w.data(), bias.data(), 1e-5, y.data(), mean.data(),
                     rstd.data());
  CHECK(worst(y, layer_norm(n, x, w, bias)) < 1e-11);
  in_workspace::layer_norm_backward(rows, n, dy.data(), x.data(), w.data(), mean.data(),
                                    rstd.data(), dx.data(), dw.data(), db.data());
  if (n > 1)
    CHECK(worst(dx, differences(
                        x, dy, [&](const auto& at) { return layer_norm(n, at, w, bias); })) < 1e-5);
  CHECK(worst(dw, differences(w, dy, [&](const auto& at) { return layer_norm(n, x, at, bias); })) <
        1e-6);
  CHECK(worst(db, differences(bias, dy, [&](const auto& at) { return layer_norm(n, x, w, at); })) <
        1e-6);
}

TEMPLATE_TEST_CASE("float, bfloat16 and half gradients of the norms agree with double's", "[norm]",
                   float, BFloat16, Half) {
  const auto [rows, n] = shapes();
  if (n == 1) return;  // the variance is nothing but eps
  const auto x = values<TestType>(rows * n, 1, -2, 2);
  const auto w = values<TestType>(n, 2);
  const auto dy = values<TestType>(rows * n, 4);
  const auto run = [&](const auto& in, const auto& weight, const auto& gradient) {
    using T = typename std::remove_cvref_t<decltype(in)>::value_type;
    std::vector<T> y(in.size()), dx(in.size()), dx2(in.size());
    std::vector<Compute<T>> mean(static_cast<std::size_t>(rows)), rstd(mean), dw(weight.size()),
        dw2(dw), db(dw);
    rms_norm_forward(rows, n, in.data(), weight.data(), 1e-5, y.data(), rstd.data());
    in_workspace::rms_norm_backward(rows, n, gradient.data(), in.data(), weight.data(), rstd.data(),
                                    dx.data(), dw.data());
    layer_norm_forward(rows, n, in.data(), weight.data(), weight.data(), 1e-5, y.data(),
                       mean.data(), rstd.data());
    in_workspace::layer_norm_backward(rows, n, gradient.data(), in.data(), weight.data(),
                                      mean.data(), rstd.data(), dx2.data(), dw2.data(), db.data());
    std::vector<double> all;
    const auto append = [&](const auto& part) {
      for (const auto& value : part) all.push_back(static_cast<double>(value));
    };
    append(dx), append(dw), append(dx2), append(dw2), append(db), append(y);
    return all;
  };
  const auto expected = run(as_double(x), as_double(w), as_double(dy));
  const auto one = run(x, w, dy);
  CHECK(worst(one, expected) < 3 * tolerance<TestType>());
  set_threads(2);
  CHECK(run(x, w, dy) == one);
  set_threads(1);
}

TEMPLATE_TEST_CASE("softmax and log_softmax", "[softmax]", float, double, BFloat16, Half) {
  const auto [rows, n] = shapes();
  const auto x = values<TestType>(rows * n, 1, -5, 5);
  const auto dy = values<TestType>(rows * n, 2);
  std::vector<TestType> y(x.size()), dx(x.size());
  in_workspace::softmax_forward(rows, n, x.data(), y.data());
  CHECK(worst(y, softmax(n, as_double(x), false)) < tolerance<TestType>());
  if (rows < 100) {
    softmax_backward(rows, n, dy.data(), y.data(), dx.data());
    CHECK(worst(dx, differences(as_double(x), as_double(dy), [&](const auto& at) {
                  return softmax(n, at, false);
                })) < 2 * tolerance<TestType>() + 1e-7);
  }
  log_softmax_forward(rows, n, x.data(), y.data());
  CHECK(worst(y, softmax(n, as_double(x), true)) < tolerance<TestType>());
  if (rows < 100 && tolerance<TestType>() < 1e-4) {
    log_softmax_backward(rows, n, dy.data(), y.data(), dx.data());
    CHECK(worst(dx, differences(as_double(x), as_double(dy),
                                [&](const auto& at) { return softmax(n, at, true); })) < 2e-5);
  }
}

/// The columns of [outer, n, inner] as rows, or rows put back.
template <class T>
std::vector<T> transposed(std::int64_t outer, std::int64_t n, std::int64_t inner,
                          const std::vector<T>& x) {
  std::vector<T> result(x.size());
  for (std::int64_t o = 0; o < outer; ++o) {
    for (std::int64_t r = 0; r < n; ++r) {
      for (std::int64_t i = 0; i < inner; ++i) {
        result[static_cast<std::size_t>((o * inner + i) * n + r)] =
            x[static_cast<std::size_t>((o * n + r) * inner + i)];
      }
    }
  }
  return result;
}

TEMPLATE_TEST_CASE("softmax and log_softmax of columns", "[softmax]", float, double, BFloat16,
                   Half) {
  struct Shape {
    std::int64_t outer, n, inner;
  };
  const auto [outer, n, inner] =
      GENERATE(Shape{1, 1, 16}, Shape{2, 5, 40}, Shape{1, 70, 129}, Shape{3, 33, 200},
               Shape{1, 1500, 48}, Shape{1, 9, 1}, Shape{2, 0, 20}, Shape{0, 3, 20});
  CAPTURE(outer, n, inner);
  const auto x = values<TestType>(outer * n * inner, 1, -5, 5);
  const auto dy = values<TestType>(outer * n * inner, 2);
  for (const bool logarithm : {false, true}) {
    std::vector<TestType> y(x.size()), dx(x.size()), other(x);
    in_workspace::softmax_columns_forward(logarithm, outer, n, inner, x.data(), y.data());
    if (n > 0) {
      const auto rows = softmax(n, transposed(outer, n, inner, as_double(x)), logarithm);
      CHECK(worst(y, transposed(outer, inner, n, rows)) < tolerance<TestType>());
    }
    softmax_columns_backward(logarithm, outer, n, inner, dy.data(), y.data(), dx.data());
    const auto expected = [&] {
      const auto g = as_double(dy), of_y = as_double(y);
      std::vector<double> result(g.size());
      for (std::int64_t column = 0; column < outer * inner; ++column) {
        const auto at = [&, column = column](std::int64_t row) {
          return static_cast<std::size_t>((column / inner * n + row) * inner + column % inner);
        };
        double sum = 0;
        for (std::int64_t r = 0; r < n; ++r) sum += g[at(r)] * (logarithm ? 1 : of_y[at(r)]);
        for (std::int64_t r = 0; r < n; ++r) {
          result[at(r)] =
              logarithm ? g[at(r)] - std::exp(of_y[at(r)]) * sum : of_y[at(r)] * (g[at(r)] - sum);
        }
      }
      return result;
    }();
    CHECK(worst(dx, expected) < 2 * tolerance<TestType>());
    set_threads(3);
    in_workspace::softmax_columns_forward(logarithm, outer, n, inner, other.data(), other.data());
    CHECK(worst(other, as_double(y)) == 0.0);
    softmax_columns_backward(logarithm, outer, n, inner, dy.data(), other.data(), other.data());
    CHECK(worst(other, as_double(dx)) == 0.0);
    set_threads(1);
  }
}

TEMPLATE_TEST_CASE("results larger than the caches have the bits of small ones", "[softmax]", float,
                   double, BFloat16) {
  constexpr std::int64_t n = 1024;
  const std::int64_t rows = 16 * (1 << 20) / n / static_cast<std::int64_t>(sizeof(TestType));
  const auto x = values<TestType>(rows * n, 1, -5, 5);
  const auto w = values<TestType>(n, 2);
  std::vector<Compute<TestType>> mean(static_cast<std::size_t>(rows)), rstd(mean);
  // One call, and calls for parts: `at` is the first row.
  const auto check = [&](auto run) {
    std::vector<TestType> whole(x.size()), parts(x.size());
    run(std::int64_t{0}, rows, whole);
    for (std::int64_t at = 0; at < rows; at += rows / 16) run(at, rows / 16, parts);
    CHECK(worst(whole, as_double(parts)) == 0.0);
  };
  check([&](std::int64_t at, std::int64_t count, auto& y) {
    in_workspace::softmax_forward(count, n, x.data() + at * n, y.data() + at * n);
  });
  check([&](std::int64_t at, std::int64_t count, auto& y) {
    log_softmax_forward(count, n, x.data() + at * n, y.data() + at * n);
  });
  check([&](std::int64_t at, std::int64_t count, auto& y) {
    layer_norm_forward(count, n, x.data() + at * n, w.data(), w.data(), 1e-5, y.data() + at * n,
                       mean.data(), rstd.data());
  });
  check([&](std::int64_t at, std::int64_t count, auto& y) {
    in_workspace::softmax_columns_forward(false, count / 32, 32, n, x.data() + at * n,
                                          y.data() + at * n);
  });
}

TEST_CASE("softmax of large and infinite values", "[softmax]") {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> x{1e30F, 1e30F, -infinity, -1e30F};
  in_workspace::softmax_forward(1, 4, x.data(), x.data());
  CHECK(x == std::vector<float>{0.5F, 0.5F, 0.0F, 0.0F});
}

TEMPLATE_TEST_CASE("cross-entropy and its gradient", "[cross_entropy]", float, double, BFloat16,
                   Half) {
  using C = Compute<TestType>;
  const auto [rows, n] = shapes();
  CAPTURE(rows, n);
  const auto x = values<TestType>(rows * n, 1, -8, 8);
  std::vector<std::int64_t> targets(static_cast<std::size_t>(rows));
  for (std::size_t r = 0; r < targets.size(); ++r)
    targets[r] = r % 7 == 3 ? -100 : static_cast<std::int64_t>(r * 31) % n;
  const auto dloss = values<C>(rows, 5);
  std::vector<C> loss(targets.size()), lse(targets.size());
  const CrossEntropyShape shape{rows, n, 0, -100};
  REQUIRE(cross_entropy_forward(shape, x.data(), targets.data(), loss.data(), lse.data()) == -1);
  const auto logs = softmax(n, as_double(x), true);
  std::vector<double> expected_loss(targets.size());
  std::vector<double> expected(x.size());
  for (std::size_t r = 0; r < targets.size(); ++r) {
    if (targets[r] < 0) continue;
    const std::size_t row = r * static_cast<std::size_t>(n);
    expected_loss[r] = -logs[row + static_cast<std::size_t>(targets[r])];
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      expected[row + i] =
          (std::exp(logs[row + i]) - (static_cast<std::int64_t>(i) == targets[r] ? 1.0 : 0.0)) *
          static_cast<double>(dloss[r]);
    }
  }
  const double bound = std::is_same_v<C, double> ? 1e-11 : 1e-5;
  CHECK(worst(loss, expected_loss) < bound);
  auto in_place = x;
  cross_entropy_backward(shape, in_place.data(), targets.data(), lse.data(), dloss.data(),
                         in_place.data());
  CHECK(worst(in_place, expected) < tolerance<TestType>());

  // The vocabulary in two parts gives the same.
  const std::int64_t left = n / 3;
  std::vector<std::vector<C>> part(6, std::vector<C>(targets.size()));
  for (const std::int64_t second : {0, 1}) {
    const std::int64_t width = second == 0 ? left : n - left;
    std::vector<TestType> columns;
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto from = x.begin() + r * n + second * left;
      columns.insert(columns.end(), from, from + width);
    }
    auto* results = part.data() + second * 3;
    cross_entropy_partial(CrossEntropyShape{rows, width, second * left, -100}, columns.data(),
                          targets.data(), results[0].data(), results[1].data(), results[2].data());
  }
  for (std::size_t r = 0; r < targets.size(); ++r) {
    const C top = std::max(part[0][r], part[3][r]);
    const C total = top + std::log(part[1][r] * std::exp(part[0][r] - top) +
                                   part[4][r] * std::exp(part[3][r] - top));
    CHECK(static_cast<double>(std::abs(total - lse[r])) <
          bound * (1 + std::abs(static_cast<double>(total))));
    if (targets[r] >= 0) {
      CHECK(static_cast<double>(std::abs(total - part[2][r] - part[5][r] - loss[r])) <
            2 * bound * 10);
    }
  }
}

TEST_CASE("cross-entropy reports a target outside the vocabulary", "[cross_entropy]") {
  const std::vector<float> x{1, 2, 3, 4};
  const std::vector<std::int64_t> targets{0, 2};
  std::vector<float> loss(2), lse(2);
  CHECK(cross_entropy_forward(CrossEntropyShape{2, 2, 0, -100}, x.data(), targets.data(),
                              loss.data(), lse.data()) == 1);
  CHECK(std::isnan(loss[1]));
}
