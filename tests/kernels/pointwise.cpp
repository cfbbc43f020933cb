#include "pointwise/kernels/pointwise.hpp"

#include <functional>

#include "check.hpp"
#include "pointwise/functions/arithmetic.hpp"
#include "pointwise/functions/comparisons.hpp"
#include "pointwise/functions/unary.hpp"
#include "pointwise/kernels/apply.hpp"
#include "shared/kernels/parallel.hpp"

using namespace tessera::kernels;
using namespace tessera::kernels::test;
using namespace tessera::functions;

namespace {

struct Checked {
  const char* name;
  const FunctionKernels& value;
  const FunctionKernels* gradient;  // null: that of a linear function
  double low;
  double high;
  std::function<double(double)> reference;
};

template <class F>
Checked checked(const char* name, double low, double high,
                std::function<double(double)> reference) {
  const FunctionKernels* gradient = nullptr;
  if constexpr (requires { F::template slope<float>; }) {
    gradient = &kernels_of<GradientOf<F>, 2>();
  }
  return {name, kernels_of<F, 1>(), gradient, low, high, std::move(reference)};
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

std::vector<Checked> all_functions() {
  return {checked<Neg>("neg", -9, 9, [](double x) { return -x; }),
          checked<Abs>("abs", -9, 9, [](double x) { return std::abs(x); }),
          checked<Square>("square", -9, 9, [](double x) { return x * x; }),
          checked<Sign>("sign", -9, 9, [](double x) { return x > 0 ? 1.0 : -1.0; }),
          checked<Exp>("exp", -87, 88, [](double x) { return std::exp(x); }),
          checked<Log>("log", 1e-6, 1e6, [](double x) { return std::log(x); }),
          checked<Log>("log", 0.5, 2, [](double x) { return std::log(x); }),
          checked<Sqrt>("sqrt", 0, 100, [](double x) { return std::sqrt(x); }),
          checked<Rsqrt>("rsqrt", 0.01, 100, [](double x) { return 1 / std::sqrt(x); }),
          checked<Reciprocal>("reciprocal", 0.01, 100, [](double x) { return 1 / x; }),
          checked<Sin>("sin", -3, 3, [](double x) { return std::sin(x); }),
          checked<Cos>("cos", -1.5, 1.5, [](double x) { return std::cos(x); }),
          checked<Tanh>("tanh", -9, 9, [](double x) { return std::tanh(x); }),
          checked<Tanh>("tanh", -0.7, 0.7, [](double x) { return std::tanh(x); }),
          checked<Sigmoid>("sigmoid", -30, 30, ::sigmoid),
          checked<Relu>("relu", -9, 9, [](double x) { return std::max(x, 0.0); }),
          checked<Silu>("silu", -30, 30, [](double x) { return x * ::sigmoid(x); }),
          checked<Gelu>("gelu", 0, 9,
                        [](double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }),
          checked<GeluTanh>(
              "gelu_tanh", 0, 9,
              [](double x) {
                return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
              }),
          checked<Erf>("erf", -5, 5, [](double x) { return std::erf(x); }),
          checked<Floor>("floor", -9, 9, [](double x) { return std::floor(x); }),
          checked<Ceil>("ceil", -9, 9, [](double x) { return std::ceil(x); }),
          checked<Round>("round", -9, 9, [](double x) { return std::nearbyint(x); }),
          checked<Log1p>("log1p", -0.9, 9, [](double x) { return std::log1p(x); }),
          checked<Expm1>("expm1", -9, 9, [](double x) { return std::expm1(x); })};
}

template <class T>
std::vector<T> applied(const FunctionKernels& function, DType dtype, const std::vector<T>& x) {
  std::vector<T> y(x.size());
  apply(function, dtype, static_cast<std::int64_t>(x.size()), {{x.data()}}, {}, y.data());
  return y;
}

template <class F, class T>
std::vector<T> applied(DType dtype, const std::vector<T>& x) {
  return applied(kernels_of<F, 1>(), dtype, x);
}

}  // namespace

TEST_CASE("unary functions of floats are within units of the last place", "[pointwise]") {
  for (const Checked& function : all_functions()) {
    const auto x = values<float>(5003, 1, function.low, function.high);
    const auto y = applied(function.value, DType::f32, x);
    double units = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = function.reference(static_cast<double>(x[i]));
      const double unit = std::max(std::abs(exact) * 0x1p-23, 0x1p-149);
      units = std::max(units, std::abs(static_cast<double>(y[i]) - exact) / unit);
    }
    CAPTURE(function.name, units);
    CHECK(units < 3.0);
  }
}

TEST_CASE("unary functions of the other floating types, and their gradients", "[pointwise]") {
  for (const Checked& function : all_functions()) {
    CAPTURE(function.name);
    const double low = std::max(function.low, -4.0) + (function.low >= 0 ? 0.1 : 0.0);
    const auto x = values<double>(601, 2, low, std::min(function.high, 4.0));
    std::vector<double> expected, slope;
    for (const double at : x) {
      expected.push_back(function.reference(at));
      slope.push_back((function.reference(at + 1e-6) - function.reference(at - 1e-6)) / 2e-6);
    }
    CHECK(worst(applied(function.value, DType::f64, x), expected) < 1e-13);
    std::vector<BFloat16> narrow;
    std::vector<Half> half;
    for (double& at : expected) at = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      narrow.emplace_back(x[i]);
      expected[i] = function.reference(static_cast<double>(narrow[i]));
      half.push_back(Half(static_cast<float>(narrow[i])));
    }
    CHECK(worst(applied(function.value, DType::bf16, narrow), expected) < 1.0 / 256);
    CHECK(worst(applied(function.value, DType::f16, half), expected) < 1.0 / 2048);
    if (function.gradient == nullptr) continue;
    std::vector<double> dy(x.size(), 2.0), dx(x.size());
    apply(*function.gradient, DType::f64, static_cast<std::int64_t>(x.size()),
          {{x.data(), dy.data()}}, {}, dx.data());
    for (double& value : slope) value *= 2;
    CHECK(worst(dx, slope) < 1e-6);
  }
}

TEST_CASE("gelu of negative floats keeps most of its digits", "[pointwise]") {
  const auto x = values<float>(5003, 1, -9, 0);
  const auto y = applied<Gelu>(DType::f32, x);
  std::vector<float> dx(x.size());
  const std::vector<float> ones(x.size(), 1.0F);
  apply(kernels_of<GradientOf<Gelu>, 2>(), DType::f32, static_cast<std::int64_t>(x.size()),
        {{x.data(), ones.data()}}, {}, dx.data());
  double relative = 0;  // down to -6
  double below = 0;
  double slope = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto at = static_cast<double>(x[i]);
    const double tail = std::erfc(-at / std::sqrt(2.0)) / 2;
    const double difference = std::abs(static_cast<double>(y[i]) - at * tail);
    at > -6 ? relative = std::max(relative, difference / std::abs(at * tail))
            : below = std::max(below, difference);
    const double density = std::exp(-at * at / 2) / std::sqrt(2 * M_PI);
    slope = std::max(slope, std::abs(static_cast<double>(dx[i]) - tail - at * density));
  }
  CHECK(relative < 5e-6);
  CHECK(below < 1e-8);
  CHECK(slope < 2e-7);
}

TEST_CASE("unary functions at the edges", "[pointwise]") {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  using F = std::vector<float>;
  CHECK(applied<Exp>(DType::f32, F{-inf, inf, 89.0F, -104.0F, 0.0F}) == F{0, inf, inf, 0, 1});
  CHECK(applied<Exp>(DType::f32, F{-100.0F})[0] == Approx(std::exp(-100.0)).epsilon(0.05));
  CHECK(applied<Log>(DType::f32, F{0.0F, inf, 1.0F}) == F{-inf, inf, 0});
  CHECK(applied<Log>(DType::f32, F{1e-42F})[0] == Approx(std::log(1e-42F)));
  CHECK(std::isnan(applied<Log>(DType::f32, F{-1.0F})[0]));
  CHECK(applied<Tanh>(DType::f32, F{-inf, inf}) == F{-1, 1});
  CHECK(applied<Sigmoid>(DType::f32, F{-inf, inf, -200.0F}) == F{0, 1, 0});
  CHECK(applied<Sin>(DType::f32, F{1e6F})[0] == Approx(std::sin(1e6F)));
  CHECK(applied<Gelu>(DType::f32, F{-inf, inf, 0.0F, -50.0F}) == F{0, inf, 0, 0});
  for (const FunctionKernels* const function :
       {&kernels_of<Exp, 1>(), &kernels_of<Log, 1>(), &kernels_of<Tanh, 1>(),
        &kernels_of<Relu, 1>(), &kernels_of<Erf, 1>(), &kernels_of<Sigmoid, 1>(),
        &kernels_of<Sin, 1>(), &kernels_of<Gelu, 1>(), &kernels_of<GeluTanh, 1>()}) {
    CHECK(std::isnan(applied(*function, DType::f32, F{nan})[0]));
  }
  CHECK(applied<Neg>(DType::i64, std::vector<std::int64_t>{3, -4}) ==
        std::vector<std::int64_t>{-3, 4});
  CHECK_THROWS_AS(applied<Exp>(DType::i32, std::vector<std::int32_t>{1}), std::invalid_argument);
}

TEST_CASE("binary operations, in place and with a scalar", "[pointwise]") {
  for (const std::int64_t n : {0, 1, 17, 600, 70000}) {
    const auto a = values<float>(n, 1, 0.1, 4);
    const auto b = values<float>(n, 2, 0.1, 4);
    struct Operation {
      const FunctionKernels& of_two;
      std::function<double(double, double)> reference;
    };
    const std::vector<Operation> operations{
        {kernels_of<Add, 2>(), std::plus<>{}},
        {kernels_of<Sub, 2>(), std::minus<>{}},
        {kernels_of<Mul, 2>(), std::multiplies<>{}},
        {kernels_of<Div, 2>(), std::divides<>{}},
        {kernels_of<Maximum, 2>(), [](double x, double y) { return std::max(x, y); }},
        {kernels_of<Minimum, 2>(), [](double x, double y) { return std::min(x, y); }},
        {kernels_of<Pow, 2>(), [](double x, double y) { return std::pow(x, y); }}};
    const float two = 2;
    const std::vector<std::int64_t> extents{n}, each{1}, repeated{0};
    for (const auto& [of_two, reference] : operations) {
      std::vector<double> expected, with_scalar, scalar_first;
      for (std::size_t i = 0; i < a.size(); ++i) {
        expected.push_back(reference(static_cast<double>(a[i]), static_cast<double>(b[i])));
        with_scalar.push_back(reference(static_cast<double>(a[i]), 2.0));
        scalar_first.push_back(reference(2.0, static_cast<double>(a[i])));
      }
      auto y = a;
      apply(of_two, DType::f32, n, {{y.data(), b.data()}}, {}, y.data());
      CHECK(worst(y, expected) < 1e-6);
      apply_strided(of_two, DType::f32, extents, {{{a.data(), each}, {&two, repeated}}}, {},
                    y.data());
      CHECK(worst(y, with_scalar) < 1e-6);
      apply_strided(of_two, DType::f32, extents, {{{&two, repeated}, {a.data(), each}}}, {},
                    y.data());
      CHECK(worst(y, scalar_first) < 1e-6);
    }
    auto y = a;
    with_number<Mul>(DType::f32, n, a.data(), 2.0, y.data());
    for (std::size_t i = 0; i < a.size(); ++i) REQUIRE(y[i] == a[i] * 2);
    y = a;
    add(DType::f32, n, a.data(), y.data(), -1.0, y.data());
    CHECK(std::all_of(y.begin(), y.end(), [](float v) { return v == 0.0F; }));
  }
  std::vector<std::int32_t> x{7, -7, 7, 0, std::numeric_limits<std::int32_t>::min()};
  const std::vector<std::int32_t> d{2, 2, 0, 5, -1};
  binary<Div>(DType::i32, 5, x.data(), d.data(), x.data());
  CHECK(x == std::vector<std::int32_t>{3, -3, 0, 0, std::numeric_limits<std::int32_t>::min()});
  with_number<Pow>(DType::i32, 2, x.data(), 3, x.data());
  CHECK(x[0] == 27);
  std::vector<std::uint8_t> flags{0, 1, 1};
  const std::vector<std::uint8_t> others{1, 0, 1};
  binary<Mul>(DType::boolean, 3, flags.data(), others.data(), flags.data());
  CHECK(flags == std::vector<std::uint8_t>{0, 0, 1});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> nans{nan, 1.0F};
  const std::vector<float> swapped{1.0F, nan};
  binary<Maximum>(DType::f32, 2, nans.data(), swapped.data(), nans.data());
  CHECK((std::isnan(nans[0]) && std::isnan(nans[1])));
}

TEST_CASE("strided operations broadcast, transpose and compare", "[pointwise]") {
  // y[i, j, k] = a[k, i] + b[j], with a transposed view and a broadcast one.
  const std::int64_t I = 7, J = 13, K = 37;
  const std::vector<std::int64_t> extents{I, J, K}, a_strides{1, 0, I}, b_strides{0, 1, 0},
      y_strides{J * K, K, 1};
  const auto dtype = GENERATE(DType::f32, DType::bf16);
  CAPTURE(static_cast<int>(dtype));
  const auto run = [&](auto element) {
    using T = decltype(element);
    const auto a = values<T>(I * K, 1);
    const auto b = values<T>(J, 2);
    std::vector<T> y(static_cast<std::size_t>(I * J * K));
    std::vector<std::uint8_t> less(y.size()), expected_less;
    std::vector<double> expected, chosen;
    for (std::int64_t i = 0; i < I; ++i) {
      for (std::int64_t j = 0; j < J; ++j) {
        for (std::int64_t k = 0; k < K; ++k) {
          const auto left = static_cast<double>(a[static_cast<std::size_t>(k * I + i)]);
          const auto right = static_cast<double>(b[static_cast<std::size_t>(j)]);
          expected.push_back(left + right);
          expected_less.push_back(left < right ? 1 : 0);
          chosen.push_back(left < right ? left : right);
        }
      }
    }
    const Operand operands[] = {{a.data(), a_strides}, {b.data(), b_strides}};
    apply_strided(kernels_of<Add, 2>(), dtype, extents, operands, {}, y.data());
    CHECK(worst(y, expected) < tolerance<T>());
    apply_strided(kernels_of<Less, 2>(), dtype, extents, operands, {}, less.data());
    CHECK(less == expected_less);
    where_strided(dtype, extents, less.data(), y_strides, a.data(), a_strides, b.data(), b_strides,
                  y.data(), y_strides);
    CHECK(worst(y, chosen) == 0.0);
  };
  dtype == DType::f32 ? run(float{}) : run(BFloat16{});
}

TEST_CASE("strided copies", "[pointwise]") {
  const auto check = [](std::vector<std::int64_t> extents, std::vector<std::int64_t> x_strides,
                        std::vector<std::int64_t> y_strides) {
    std::int64_t x_size = 1, y_size = 1, count = 1;
    for (std::size_t d = 0; d < extents.size(); ++d) {
      count *= extents[d];
      x_size += (extents[d] - 1) * x_strides[d];
      y_size += (extents[d] - 1) * y_strides[d];
    }
    const auto x = values<float>(std::max<std::int64_t>(1, x_size), 1);
    std::vector<float> y(static_cast<std::size_t>(std::max<std::int64_t>(1, y_size))), expected(y);
    for (std::int64_t number = 0; number < count; ++number) {
      std::int64_t rest = number, from = 0, to = 0;
      for (std::size_t d = extents.size(); d-- > 0;) {
        from += rest % extents[d] * x_strides[d];
        to += rest % extents[d] * y_strides[d];
        rest /= extents[d];
      }
      expected[static_cast<std::size_t>(to)] = x[static_cast<std::size_t>(from)];
    }
    copy_strided(DType::f32, extents, x.data(), x_strides, y.data(), y_strides);
    CHECK(y == expected);
  };
  check({}, {}, {});
  check({0, 4}, {4, 1}, {4, 1});
  check({5}, {1}, {1});
  check({70, 45}, {1, 70}, {45, 1});
  check({70, 45}, {0, 1}, {45, 1});
  check({3, 70, 45}, {1, 135, 3}, {3150, 45, 1});
  check({2, 3, 4, 5, 6}, {360, 1, 90, 18, 3}, {360, 120, 30, 6, 1});
  check({4, 6, 8}, {96, 2, 12}, {1, 64, 8});
  check({3, 33, 65}, {5000, 70, 1}, {2145, 65, 1});
  set_threads(2);
  check({700, 450}, {1, 700}, {450, 1});
  check({30, 70, 45}, {1, 1350, 30}, {3150, 45, 1});
  set_threads(1);
}

TEMPLATE_TEST_CASE("matrices of all widths are transposed", "[pointwise]", std::uint8_t, BFloat16,
                   std::int32_t, double) {
  const auto [rows, columns] = GENERATE(std::pair<std::int64_t, std::int64_t>{64, 64},
                                        std::pair<std::int64_t, std::int64_t>{70, 33},
                                        std::pair<std::int64_t, std::int64_t>{1, 200},
                                        std::pair<std::int64_t, std::int64_t>{150, 97});
  CAPTURE(rows, columns);
  std::vector<TestType> x, y(static_cast<std::size_t>(rows * columns));
  for (std::int64_t i = 0; i < rows * columns; ++i)
    x.push_back(static_cast<TestType>(static_cast<float>(i * 37 % 251)));
  const DType dtype = std::is_same_v<TestType, std::uint8_t>   ? DType::u8
                      : std::is_same_v<TestType, std::int32_t> ? DType::i32
                      : std::is_same_v<TestType, double>       ? DType::f64
                                                               : DType::bf16;
  const std::vector<std::int64_t> extents{rows, columns}, x_strides{1, rows}, y_strides{columns, 1};
  copy_strided(dtype, extents, x.data(), x_strides, y.data(), y_strides);
  bool equal = true;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      equal = equal && static_cast<double>(y[static_cast<std::size_t>(i * columns + j)]) ==
                           static_cast<double>(x[static_cast<std::size_t>(j * rows + i)]);
    }
  }
  CHECK(equal);
}

TEST_CASE("casts between all types", "[pointwise]") {
  const std::vector<double> x{0, 1, -1, 2.5, 200, 3.9, 300, -1e30, 1e30, std::nan("")};
  const auto n = static_cast<std::int64_t>(x.size());
  std::vector<std::int64_t> wide(x.size());
  cast(DType::f64, DType::i64, n, x.data(), wide.data());
  CHECK(wide == std::vector<std::int64_t>{0, 1, -1, 2, 200, 3, 300,
                                          std::numeric_limits<std::int64_t>::min(),
                                          std::numeric_limits<std::int64_t>::max(), 0});
  std::vector<std::uint8_t> bytes(x.size());
  cast(DType::f64, DType::u8, n, x.data(), bytes.data());
  CHECK(bytes == std::vector<std::uint8_t>{0, 1, 0, 2, 200, 3, 255, 0, 255, 0});
  cast(DType::f64, DType::boolean, n, x.data(), bytes.data());
  CHECK(bytes == std::vector<std::uint8_t>{0, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  for (int from = 0; from < 8; ++from) {
    for (int to = 0; to < 8; ++to) {  // 0 and 1 exist in all of them
      std::vector<std::int64_t> a(20), b(20), back(20);
      const std::vector<std::int64_t> bits{0, 1, 1, 0, 1, 0, 0, 0, 1, 1,
                                           1, 0, 1, 0, 0, 1, 1, 0, 1, 1};
      cast(DType::i64, static_cast<DType>(from), 20, bits.data(), a.data());
      cast(static_cast<DType>(from), static_cast<DType>(to), 20, a.data(), b.data());
      cast(static_cast<DType>(to), DType::i64, 20, b.data(), back.data());
      CAPTURE(from, to);
      CHECK(back == bits);
    }
  }
}

TEST_CASE("16-bit conversions: every pattern returns, and rounding is to nearest even", "[half]") {
  std::vector<std::uint16_t> patterns(65536), back(65536);
  std::vector<float> wide(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    cast(dtype, DType::f32, 65536, patterns.data(), wide.data());
    cast(DType::f32, dtype, 65536, wide.data(), back.data());
    int differing = 0;
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      const float scalar = dtype == DType::bf16
                               ? static_cast<float>(BFloat16::from_bits(patterns[i]))
                               : static_cast<float>(Half::from_bits(patterns[i]));
      const bool same = scalar == wide[i] || (std::isnan(scalar) && std::isnan(wide[i]));
      differing += same && (std::isnan(wide[i]) || back[i] == patterns[i]) ? 0 : 1;
    }
    CHECK(differing == 0);
  }
  CHECK(static_cast<float>(Half(1.0F / 3)) == 0.333251953125F);
  CHECK(Half(65519.0F).bits == 0x7bff);
  CHECK(Half(65520.0F).bits == 0x7c00);
  CHECK(Half(0x1p-25F).bits == 0);
  CHECK(Half(0x1.8p-25F).bits == 1);
  CHECK(BFloat16(0x1.01p0F).bits == 0x3f80);
  CHECK(BFloat16(0x1.03p0F).bits == 0x3f82);
  const auto random = values<float>(4000, 5, -70000, 70000);
  std::vector<Half> halves(random.size());
  std::vector<BFloat16> brains(random.size());
  cast(DType::f32, DType::f16, 4000, random.data(), halves.data());
  cast(DType::f32, DType::bf16, 4000, random.data(), brains.data());
  for (std::size_t i = 0; i < random.size(); ++i)
    REQUIRE((halves[i] == Half(random[i]) && brains[i] == BFloat16(random[i])));
}

TEST_CASE("where, masked fill, fill and comparisons with a scalar", "[pointwise]") {
  const std::vector<std::uint8_t> mask{1, 0, 1};
  std::vector<BFloat16> x{BFloat16(1.0F), BFloat16(2.0F), BFloat16(3.0F)};
  masked_fill(DType::bf16, 3, x.data(), mask.data(), -std::numeric_limits<double>::infinity(),
              x.data());
  CHECK(static_cast<float>(x[0]) == -std::numeric_limits<float>::infinity());
  CHECK(static_cast<float>(x[1]) == 2.0F);
  fill(DType::bf16, 3, 0.5, x.data());
  CHECK(static_cast<float>(x[2]) == 0.5F);
  std::vector<std::uint8_t> result(3);
  with_number<GreaterEqual>(DType::bf16, 3, x.data(), 0.5, result.data());
  CHECK(result == std::vector<std::uint8_t>{1, 1, 1});
  binary<LogicalXor>(DType::boolean, 3, mask.data(), result.data(), result.data());
  CHECK(result == std::vector<std::uint8_t>{0, 1, 0});
}
