#include "attention/kernels/rotary.hpp"
#include "attention/kernels/swiglu.hpp"
#include "check.hpp"
#include "in_workspace.hpp"
#include "index/kernels/indexing.hpp"
#include "optimizer/functions/adam.hpp"
#include "optimizer/functions/rounding.hpp"
#include "optimizer/functions/sgd.hpp"
#include "optimizer/kernels/lanes.hpp"
#include "reduce/kernels/reduce.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/philox.hpp"

using namespace tessera::kernels;
using namespace tessera::kernels::test;
using tessera::functions::Adam;
using tessera::functions::Sgd;

TEMPLATE_TEST_CASE("rotary turns pairs, and inverse turns them back", "[rotary]", float, double,
                   BFloat16) {
  const std::int64_t head_dim = GENERATE(2, 10, 32, 128);
  RotaryShape shape{.batch = 2,
                    .time = 5,
                    .heads = 3,
                    .head_dim = head_dim,
                    .stride_batch = 5 * 4 * head_dim,
                    .stride_time = 4 * head_dim,
                    .stride_head = head_dim,
                    .position_offset = 7};
  const auto x = values<TestType>(2 * 5 * 4 * head_dim, 1);
  std::vector<TestType> y(static_cast<std::size_t>(2 * 5 * 3 * head_dim)), back(y);
  rotary(shape, x.data(), y.data());
  std::vector<double> expected, original;
  for (std::int64_t row = 0; row < 10; ++row) {
    for (std::int64_t h = 0; h < 3; ++h) {
      const auto at = [&](std::int64_t i) {
        return static_cast<double>(x[static_cast<std::size_t>((row * 4 + h) * head_dim + i)]);
      };
      for (std::int64_t i = 0; i < head_dim; ++i) {
        const std::int64_t half = head_dim / 2;
        const double angle =
            static_cast<double>(row % 5 + 7) /
            std::pow(10000.0, static_cast<double>(i % half) / static_cast<double>(half));
        expected.push_back(i < half ? at(i) * std::cos(angle) - at(i + half) * std::sin(angle)
                                    : at(i) * std::cos(angle) + at(i - half) * std::sin(angle));
        original.push_back(at(i));
      }
    }
  }
  CHECK(worst(y, expected) < tolerance<TestType>());
  shape.stride_batch = 5 * 3 * head_dim;
  shape.stride_time = 3 * head_dim;
  shape.inverse = true;
  rotary(shape, y.data(), back.data());
  CHECK(worst(back, original) < 2 * tolerance<TestType>());
}

TEMPLATE_TEST_CASE("swiglu and its gradients, on rows that lie apart", "[swiglu]", float, double,
                   BFloat16, Half) {
  const std::int64_t rows = 7;
  const std::int64_t n = GENERATE(1, 16, 37, 100);
  const auto both = values<TestType>(rows * 2 * n, 1, -4, 4);
  const auto dy = values<TestType>(rows * n, 2);
  std::vector<TestType> y(dy.size()), gradient(both.size());
  swiglu_forward(rows, n, both.data(), 2 * n, both.data() + n, 2 * n, y.data());
  swiglu_backward(rows, n, dy.data(), both.data(), 2 * n, both.data() + n, 2 * n, gradient.data(),
                  gradient.data() + n);
  std::vector<double> expected, expected_gradient(both.size());
  for (std::size_t i = 0; i < y.size(); ++i) {
    const auto width = static_cast<std::size_t>(n);
    const std::size_t at = i / width * 2 * width + i % width;
    const auto g = static_cast<double>(both[at]);
    const auto u = static_cast<double>(both[at + width]);
    const auto d = static_cast<double>(dy[i]);
    const double s = 1 / (1 + std::exp(-g));
    expected.push_back(g * s * u);
    expected_gradient[at] = d * u * s * (1 + g * (1 - s));
    expected_gradient[at + width] = d * g * s;
  }
  CHECK(worst(y, expected) < tolerance<TestType>());
  CHECK(worst(gradient, expected_gradient) < tolerance<TestType>());
}

namespace {

template <class Rule, class T>
void step(const Rule& rule, std::vector<T>& p, const std::vector<T>& g,
          std::initializer_list<T*> arrays) {
  constexpr DType dtype = std::is_same_v<T, double> ? DType::f64 : DType::f32;
  void* states[3] = {};
  std::copy(arrays.begin(), arrays.end(), states);
  REQUIRE(
      update(rule, dtype, dtype, static_cast<std::int64_t>(p.size()), p.data(), g.data(), states));
}

}  // namespace

TEMPLATE_TEST_CASE("adamw and sgd follow the formulas", "[optimizer]", float, double) {
  const std::int64_t n = GENERATE(0, 1, 16, 1003);
  const auto g = values<TestType>(n, 1);
  auto p = values<TestType>(n, 2), m = values<TestType>(n, 3), v = values<TestType>(n, 4, 0, 1);
  auto ep = as_double(p), em = as_double(m), ev = as_double(v);
  constexpr double eps = 0.1;  // large: the bias correction is of the root alone, without it
  const Adam adam{.gradient = {.scale = 0.5},
                  .shrink = 1 - 1e-3,
                  .beta1 = 0.9,
                  .beta2 = 0.95,
                  .eps = eps,
                  .step_size = 1e-2 / (1 - std::pow(0.9, 3)),
                  .root_factor = 1 / std::sqrt(1 - std::pow(0.95, 3))};
  step(adam, p, g, {m.data(), v.data()});
  for (std::size_t i = 0; i < g.size(); ++i) {
    const double gradient = static_cast<double>(g[i]) * 0.5;
    em[i] = 0.9 * em[i] + 0.1 * gradient;
    ev[i] = 0.95 * ev[i] + 0.05 * gradient * gradient;
    ep[i] = ep[i] * (1 - 1e-3) - 1e-2 / (1 - std::pow(0.9, 3)) * em[i] /
                                     (std::sqrt(ev[i]) / std::sqrt(1 - std::pow(0.95, 3)) + eps);
  }
  CHECK(worst(p, ep) < 1e-6);
  CHECK(worst(m, em) < 1e-6);
  CHECK(worst(v, ev) < 1e-6);
  for (const bool nesterov : {false, true}) {
    for (const bool first : {true, false}) {
      ep = as_double(p);
      em = as_double(m);
      step(Sgd{.gradient = {.scale = 2, .decay = 0.01},
               .rate = 0.1,
               .momentum = 0.9,
               .nesterov = nesterov,
               .first = first},
           p, g, {m.data()});
      for (std::size_t i = 0; i < g.size(); ++i) {
        const double gradient = 2 * static_cast<double>(g[i]) + 0.01 * ep[i];
        em[i] = first ? gradient : 0.9 * em[i] + gradient;
        ep[i] -= 0.1 * (nesterov ? gradient + 0.9 * em[i] : em[i]);
      }
      CHECK(worst(p, ep) < 2e-6);
      CHECK(worst(m, em) < 2e-6);
    }
  }
  auto plain = p;
  step(Sgd{.rate = 0.1, .first = true}, plain, g, {});
  for (std::size_t i = 0; i < g.size(); ++i)
    ep[i] = static_cast<double>(p[i]) - 0.1 * static_cast<double>(g[i]);
  CHECK(worst(plain, ep) < 1e-6);
}

namespace {

template <class T>
void check_reductions(DType dtype, const ReduceShape& s) {
  CAPTURE(static_cast<int>(dtype), s.outer, s.reduced, s.inner);
  const bool whole = !is_floating(dtype);
  const auto x = values<T>(s.outer * s.reduced * s.inner, 1, whole ? 0 : -2, whole ? 7 : 2);
  const auto count = static_cast<std::size_t>(s.outer * s.inner);
  std::vector<double> sum(count), top(count, -1e300), bottom(count, 1e300), where_top(count);
  double squares = 0;
  for (std::int64_t o = 0; o < s.outer; ++o) {
    for (std::int64_t r = 0; r < s.reduced; ++r) {
      for (std::int64_t i = 0; i < s.inner; ++i) {
        const auto value =
            static_cast<double>(x[static_cast<std::size_t>((o * s.reduced + r) * s.inner + i)]);
        const auto at = static_cast<std::size_t>(o * s.inner + i);
        sum[at] += value;
        squares += value * value;
        if (value > top[at]) where_top[at] = static_cast<double>(r);
        top[at] = std::max(top[at], value);
        bottom[at] = std::min(bottom[at], value);
      }
    }
  }
  std::vector<T> y(count);
  std::vector<std::int64_t> index(count);
  if (whole) {
    in_workspace::reduce(ReduceOp::sum, dtype, s, x.data(), index.data());
    CHECK(worst(index, sum) == 0.0);
  } else {
    in_workspace::reduce(ReduceOp::sum, dtype, s, x.data(), y.data());
    CHECK(worst(y, sum) < tolerance<T>());
    CHECK(std::abs(
              in_workspace::sum_of_squares(dtype, static_cast<std::int64_t>(x.size()), x.data()) -
              squares) <= 1e-9 * squares);
    set_threads(3);
    auto again = y;
    in_workspace::reduce(ReduceOp::sum, dtype, s, x.data(), again.data());
    set_threads(1);
    CHECK(worst(again, as_double(y)) == 0.0);
    for (double& value : sum) value /= static_cast<double>(s.reduced);
    in_workspace::reduce(ReduceOp::mean, dtype, s, x.data(), y.data());
    CHECK(worst(y, sum) < tolerance<T>());
  }
  if (s.reduced == 0) return;
  in_workspace::reduce(ReduceOp::amax, dtype, s, x.data(), y.data());
  CHECK(worst(y, top) == 0.0);
  in_workspace::reduce(ReduceOp::amin, dtype, s, x.data(), y.data());
  CHECK(worst(y, bottom) == 0.0);
  in_workspace::argmax(dtype, s, x.data(), index.data());
  CHECK(worst(index, where_top) == 0.0);
}

}  // namespace

TEST_CASE("reductions agree with loops in double", "[reduce]") {
  const ReduceShape shape = GENERATE(
      ReduceShape{1, 1, 1}, ReduceShape{5, 33, 1}, ReduceShape{3, 7, 300},
      ReduceShape{1, 200000, 1}, ReduceShape{2, 0, 3}, ReduceShape{0, 5, 3}, ReduceShape{4, 16, 5});
  check_reductions<float>(DType::f32, shape);
  check_reductions<double>(DType::f64, shape);
  check_reductions<BFloat16>(DType::bf16, shape);
  check_reductions<Half>(DType::f16, shape);
  check_reductions<std::int64_t>(DType::i64, shape);
  check_reductions<std::int32_t>(DType::i32, shape);
  check_reductions<std::uint8_t>(DType::u8, shape);
}

TEST_CASE("reductions at the edges", "[reduce]") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x{1, nan, 3};
  float y = 0;
  std::int64_t index = 0;
  in_workspace::reduce(ReduceOp::amax, DType::f32, {1, 3, 1}, x.data(), &y);
  CHECK(std::isnan(y));
  in_workspace::argmin(DType::f32, {1, 3, 1}, x.data(), &index);
  CHECK(index == 1);
  CHECK(std::isnan(in_workspace::max_abs(DType::f32, 3, x.data())));
  CHECK(in_workspace::max_abs(DType::f32, 1, x.data()) == 1.0);
  CHECK_THROWS_AS(in_workspace::reduce(ReduceOp::amax, DType::f32, {1, 0, 1}, x.data(), &y),
                  std::invalid_argument);
  const std::vector<std::uint8_t> flags{1, 0, 1};
  std::uint8_t result = 9;
  in_workspace::reduce(ReduceOp::all, DType::boolean, {1, 3, 1}, flags.data(), &result);
  CHECK(result == 0);
  in_workspace::reduce(ReduceOp::any, DType::boolean, {1, 3, 1}, flags.data(), &result);
  CHECK(result == 1);
  const std::vector<std::int32_t> whole{2, 3, 4};
  in_workspace::reduce(ReduceOp::prod, DType::i32, {1, 3, 1}, whole.data(), &index);
  CHECK(index == 24);
  std::vector<float> wide(6);
  const std::vector<float> two{1, 2};
  expand(DType::f32, {1, 3, 2}, two.data(), 0.5, wide.data());
  CHECK(wide == std::vector<float>{0.5F, 1, 0.5F, 1, 0.5F, 1});
}

TEST_CASE("embedding rows, with a part of the table", "[indexing]") {
  const std::vector<float> table{10, 11, 20, 21, 30, 31};  // rows 4, 5, 6
  const std::vector<std::int32_t> rows{5, 3, 6, 5, 7, 4};
  std::vector<float> y(12, -1);
  embedding_forward(6, 2, 4, 3, table.data(), rows.data(), y.data());
  CHECK(y == std::vector<float>{20, 21, 0, 0, 30, 31, 20, 21, 0, 0, 10, 11});
  std::vector<float> gradient(6, 1);
  embedding_backward(6, 2, 4, 3, y.data(), rows.data(), gradient.data());
  CHECK(gradient == std::vector<float>{11, 12, 41, 43, 31, 32});
}

TEST_CASE("gather, scatter and index_select along a dim", "[indexing]") {
  const IndexShape shape{2, 3, 2, 2};  // [2, 3, 2] indexed to [2, 2, 2]
  const auto x = values<double>(12, 1);
  const std::vector<std::int64_t> chosen{2, 0};
  std::vector<double> y(8), sums(12), scattered(12, -1);
  REQUIRE(index_select(shape, x.data(), chosen.data(), y.data()));
  CHECK(y == std::vector<double>{x[4], x[5], x[0], x[1], x[10], x[11], x[6], x[7]});
  REQUIRE(index_add(shape, y.data(), chosen.data(), sums.data()));
  CHECK(sums == std::vector<double>{x[0], x[1], 0, 0, x[4], x[5], x[6], x[7], 0, 0, x[10], x[11]});
  const std::vector<std::int64_t> each{0, 1, 2, 1, 1, 1, 1, 0};
  REQUIRE(gather(shape, x.data(), each.data(), y.data()));
  CHECK(y == std::vector<double>{x[0], x[3], x[4], x[3], x[8], x[9], x[8], x[7]});
  std::fill(sums.begin(), sums.end(), 0.0);
  REQUIRE(scatter_add(shape, y.data(), each.data(), sums.data()));
  CHECK(sums[3] == 2 * x[3]);
  CHECK(sums[8] == 2 * x[8]);
  REQUIRE(scatter(shape, y.data(), each.data(), scattered.data()));
  CHECK(scattered[8] == x[8]);
  CHECK(scattered[1] == -1);
  const std::vector<std::int64_t> bad{3, 0};
  CHECK_FALSE(index_select(shape, x.data(), bad.data(), y.data()));
}

TEST_CASE("philox gives the published test vectors", "[philox]") {
  // Random123's kat_vectors, philox4x32 10.
  CHECK(philox({0, 0, 0, 0}, {0, 0}) ==
        PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  constexpr std::uint32_t kOnes = 0xffffffff;
  CHECK(philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}) ==
        PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("fills are philox at their positions, however they are cut", "[philox]") {
  const RandomRange range{123, 4, (std::uint64_t{1} << 34) - 100, 7};
  const std::int64_t n = 20011;
  std::vector<std::uint32_t> bits(static_cast<std::size_t>(n));
  fill_bits(range, n, bits.data());
  const PhiloxKey key = philox_key(123, 4);
  std::vector<float> uniform(bits.size()), normal(bits.size());
  fill_uniform(range, n, -2.0F, 3.0F, uniform.data());
  fill_normal(range, n, 1.0F, 2.0F, normal.data());
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint64_t element = range.offset + range.first_index + static_cast<std::uint64_t>(i);
    const auto block = philox({static_cast<std::uint32_t>(element / 4),
                               static_cast<std::uint32_t>(element / 4 >> 32), 0, 0},
                              key);
    const auto at = static_cast<std::size_t>(i);
    REQUIRE(bits[at] == block[element % 4]);
    REQUIRE(uniform[at] == std::fma(static_cast<float>(bits[at] >> 8) * 0x1p-24F, 5.0F, -2.0F));
    const std::size_t pair = element % 4 / 2 * 2;
    const double radius =
        std::sqrt(-2 * std::log((static_cast<double>(block[pair] >> 8) + 1) * 0x1p-24));
    const double angle = 2 * M_PI * static_cast<double>(block[pair + 1] >> 8) * 0x1p-24;
    const double exact = 1 + 2 * radius * (element % 2 == 0 ? std::cos(angle) : std::sin(angle));
    REQUIRE(std::abs(static_cast<double>(normal[at]) - exact) < 4e-6);
  }
  set_threads(3);
  std::vector<float> pieces(bits.size());
  for (std::int64_t first = 0, size = 1; first < n; first += size, size = size * 3 + 1) {
    RandomRange part = range;
    part.first_index += static_cast<std::uint64_t>(first);
    fill_normal(part, std::min(size, n - first), 1.0F, 2.0F, pieces.data() + first);
  }
  set_threads(1);
  CHECK(pieces == normal);
}

TEST_CASE("random values have the moments they should", "[philox]") {
  const std::int64_t n = 1 << 20;
  std::vector<float> x(static_cast<std::size_t>(n));
  const auto moments = [&] {
    double mean = 0, variance = 0;
    for (const float v : x) mean += static_cast<double>(v) / static_cast<double>(n);
    for (const float v : x)
      variance += (static_cast<double>(v) - mean) * (static_cast<double>(v) - mean) /
                  static_cast<double>(n);
    return std::pair{mean, variance};
  };
  fill_uniform(RandomRange{1, 2, 0, 0}, n, 0.0F, 1.0F, x.data());
  CHECK(moments().first == Approx(0.5).margin(0.0015));
  CHECK(moments().second == Approx(1.0 / 12).margin(0.001));
  CHECK(*std::max_element(x.begin(), x.end()) < 1.0F);
  fill_normal(RandomRange{1, 3, 0, 0}, n, 0.0F, 1.0F, x.data());
  CHECK(moments().first == Approx(0.0).margin(0.005));
  CHECK(moments().second == Approx(1.0).margin(0.01));
  std::vector<std::uint8_t> mask(x.size());
  fill_bernoulli(RandomRange{5, 0, 0, 0}, n, 0.25, mask.data());
  CHECK(static_cast<double>(std::count(mask.begin(), mask.end(), 1)) / static_cast<double>(n) ==
        Approx(0.25).margin(0.002));
  fill_bernoulli(RandomRange{5, 0, 0, 0}, n, 1.0, mask.data());
  CHECK(std::count(mask.begin(), mask.end(), 1) == n);
}

TEST_CASE("rounding with random bits gives one of the two neighbours, and the value as the mean",
          "[optimizer]") {
  const float values[] = {1.0F,  1.00390625F, -1.2345678F, 3.1e-40F,  0x1.fffffep7F,
                          -0.0F, 1e-38F,      5.5e37F,     0x1.01p0F, -0x1.0000fep-3F};
  for (const float value : values) {
    INFO(value);
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const auto below = BFloat16::from_bits(static_cast<std::uint16_t>(bits >> 16));
    const auto above = BFloat16::from_bits(static_cast<std::uint16_t>((bits >> 16) + 1));
    double sum = 0;
    int others = 0;
    for (std::uint32_t noise = 0; noise < 0x10000U; ++noise) {
      const auto rounded = BFloat16::from_bits(
          static_cast<std::uint16_t>(tessera::functions::stochastic_bf16(bits, noise)));
      others += rounded == below || (rounded == above && (bits & 0xffffU) != 0) ? 0 : 1;
      sum += static_cast<double>(rounded);
    }
    CHECK(others == 0);
    CHECK(sum / 0x10000 == static_cast<double>(value));  // exactly: each noise occurs once
  }
  for (const std::uint32_t noise : {0U, 0xffffU}) {
    const auto of = [&](float value) {
      return static_cast<float>(BFloat16::from_bits(static_cast<std::uint16_t>(
          tessera::functions::stochastic_bf16(std::bit_cast<std::uint32_t>(value), noise))));
    };
    CHECK(of(HUGE_VALF) == HUGE_VALF);
    CHECK(of(-HUGE_VALF) == -HUGE_VALF);
    CHECK(std::isnan(of(std::bit_cast<float>(0x7fffffffU))));
    CHECK(std::isnan(of(std::bit_cast<float>(0xff800001U))));
  }
}
