// Compositions and forms of operators: norms, einsum, losses, what is written in place, lists,
// draws.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;

using namespace tessera;
using tessera::testing::error_of;

namespace {

Tensor numbers(const Dims& shape, double shift = 0, DType dtype = DType::f64) {
  const Tensor x = empty(shape, DType::f64);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<double>()[i] = std::sin(0.7 * static_cast<double>(i) + shift);
  }
  return ops::cast(x, dtype);
}

void check_close(const Tensor& x, const Tensor& y, double tolerance = 1e-12) {
  REQUIRE(x.shape() == y.shape());
  REQUIRE(x.dtype() == y.dtype());
  const std::vector<double> a = to_doubles(x);
  const std::vector<double> b = to_doubles(y);
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(std::abs(a[i] - b[i]) <= tolerance * (1 + std::abs(b[i])));
  }
}

}  // namespace

TEST_CASE("norms of all powers are what they are called") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const Tensor x = from_values<double>({3, -4, 0, 1, 2, -2}, {2, 3});
  CHECK(to_doubles(ops::norm(x, infinity, {1})) == std::vector<double>{4, 2});
  CHECK(to_doubles(ops::norm(x, -infinity, {1})) == std::vector<double>{0, 1});
  CHECK(to_doubles(ops::norm(x, 0, {1})) == std::vector<double>{2, 3});
  CHECK(to_doubles(ops::norm(x, 1, {1})) == std::vector<double>{7, 5});
  CHECK(to_doubles(ops::norm(x, 2, {1}, true)) == std::vector<double>{5, 3});
  check_close(ops::norm(x, 3), from_values<double>({std::cbrt(27 + 64 + 1 + 8 + 8)}, {}));
  CHECK(error_of([&] { ops::norm(x, -2); }).starts_with("norm: "));
  CHECK(error_of([&] { ops::norm(zeros({2}, DType::i64), 2); }).starts_with("norm: "));

  const Tensor leaf = from_values<double>({3, -4, 4, 1}, {4}).set_requires_grad();
  backward(ops::norm(leaf, infinity));
  CHECK(to_doubles(leaf.grad()) == std::vector<double>{0, -0.5, 0.5, 0});
}

TEST_CASE("norms that are found in one pass have the bits of magnitudes that are reduced") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto terms = [](double p, const Tensor& x) {
    return p == 0 ? ops::cast(ops::ne(x, ops::zeros_like(x)), x.dtype()) : ops::abs(x);
  };
  const auto bits = [](std::vector<double> values) {
    for (double& value : values) {
      value = std::isnan(value) ? 12345 : value;
    }
    return values;
  };
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    Tensor x = numbers({5, 70, 3}, 0.5, dtype);
    const Tensor zero = full({1, 3}, -0.0, dtype);
    ops::copy_(ops::select(ops::narrow(x, 1, 4, 1), 0, 2), zero);
    ops::copy_(ops::select(ops::narrow(x, 1, 9, 1), 0, 3),
               full({1, 3}, std::numeric_limits<double>::quiet_NaN(), dtype));
    ops::copy_(ops::select(ops::narrow(x, 1, 9, 1), 0, 1), full({1, 3}, -infinity, dtype));
    for (const double p : {0.0, 1.0, infinity, -infinity}) {
      for (const Dims& dims : {Dims{}, Dims{0}, Dims{1}, Dims{2}, Dims{0, 2}}) {
        const auto reduced = [&](const Tensor& of) {
          const Tensor t = terms(p, of);
          return p == infinity    ? ops::amax(t, dims)
                 : p == -infinity ? ops::amin(t, dims)
                                  : ops::sum(t, dims);
        };
        INFO(name_of(dtype) << ", order " << p << ", dims " << to_string(dims));
        CHECK(bits(to_doubles(ops::norm(x, p, dims))) == bits(to_doubles(reduced(x))));
        if (p == 0) {
          CHECK(!ops::norm(ops::detach(x).set_requires_grad(), p, dims).requires_grad());
          continue;
        }
        const Tensor a = ops::clone(x).set_requires_grad();
        const Tensor b = ops::clone(x).set_requires_grad();
        backward(ops::sum(ops::norm(a, p, dims)));
        backward(ops::sum(reduced(b)));
        CHECK(bits(to_doubles(a.grad())) == bits(to_doubles(b.grad())));
      }
    }
    const Tensor nothing = zeros({2, 0}, dtype);
    CHECK(to_doubles(ops::norm(nothing, 1, {1})) == std::vector<double>{0, 0});
    CHECK(to_doubles(ops::norm(nothing, 0, {1})) == std::vector<double>{0, 0});
    CHECK(ops::norm(nothing, -infinity, {0}).shape() == Dims{0});
    CHECK(error_of([&] { ops::norm(nothing, infinity, {1}); }).find("no elements") !=
          std::string::npos);
  }
}

TEST_CASE("einsum sums products over what the result lacks") {
  const Tensor a = numbers({2, 3, 4});
  const Tensor b = numbers({4, 5}, 1);
  const Tensor c = numbers({2, 5}, 2);
  const auto at = [](const Tensor& x, std::initializer_list<int> index) {
    std::int64_t offset = 0;
    int d = 0;
    for (const int i : index) {
      offset += i * x.strides()[d++];
    }
    return x.data<double>()[offset];
  };
  // By loops over all letters.
  const Tensor expected = zeros({5, 2}, DType::f64);
  const Tensor of_three = zeros({3}, DType::f64);
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 4; ++k) {
        for (int l = 0; l < 5; ++l) {
          expected.data<double>()[l * 2 + i] += at(a, {i, j, k}) * at(b, {k, l});
          of_three.data<double>()[j] += at(a, {i, j, k}) * at(b, {k, l}) * at(c, {i, l});
        }
      }
    }
  }
  check_close(ops::einsum("ijk,kl->li", {a, b}), expected);
  check_close(ops::einsum("ijk, kl, il -> j", {a, b, c}), of_three);
  check_close(ops::einsum("ijk,kl", {a, b}), ops::matmul(a, b));
  check_close(ops::einsum("...k,kl->...l", {a, b}), ops::matmul(a, b));
  check_close(ops::einsum("b...k->...kb", {a}), ops::permute(a, {1, 2, 0}));
  check_close(ops::einsum("ijk->", {a}), ops::sum(a));
  check_close(ops::einsum("i,j->ij", {ops::select(b, 0, 0), ops::select(c, 0, 1)}),
              ops::outer(ops::select(b, 0, 0), ops::select(c, 0, 1)));
  check_close(ops::einsum("...ij,...ij->...", {a, numbers({1, 3, 4}, 3)}),
              ops::sum(ops::mul(a, numbers({1, 3, 4}, 3)), {1, 2}));

  const Tensor leaf = ops::clone(b).set_requires_grad();
  backward(ops::sum(ops::einsum("ijk,kl,il->j", {a, leaf, c})));
  Tensor gradient = ops::einsum("ijk,il->kl", {a, c});
  check_close(leaf.grad(), gradient);

  for (const char* wrong : {"ij,kl->il", "ijk,kl->m", "iik,kl->l", "ijk->i", "ij?,kl->i"}) {
    INFO(wrong);
    CHECK(error_of([&] { ops::einsum(wrong, {a, b}); }).starts_with("einsum: "));
  }
  CHECK(error_of([&] { ops::einsum("ijk,jl->il", {a, b}); }).find("3") != std::string::npos);
}

TEST_CASE("losses of elements have sums and means") {
  using ops::Reduction;
  const Tensor a = numbers({4, 6});
  const Tensor b = numbers({4, 6}, 1);
  check_close(ops::mse_loss(a, b), ops::mean(ops::square(ops::sub(a, b))));
  check_close(ops::l1_loss(a, b, Reduction::none), ops::abs(ops::sub(a, b)));
  check_close(ops::smooth_l1_loss(a, b, Reduction::mean, 0), ops::l1_loss(a, b));
  const Tensor p = ops::softmax(a, 1);
  check_close(ops::kl_div(ops::log(p), p), zeros({}, DType::f64));
  check_close(ops::kl_div(b, p, Reduction::sum), ops::kl_div(b, ops::log(p), Reduction::sum, true));
  // Of two classes, the cross entropy of the logits (x, 0).
  const Tensor target = ops::sigmoid(b);
  const Tensor s = ops::sigmoid(a);
  const Tensor other = ops::add_scalar(ops::neg(target), 1);
  const Tensor by_hand = ops::neg(ops::add(
      ops::mul(target, ops::log(s)), ops::mul(other, ops::log(ops::add_scalar(ops::neg(s), 1)))));
  check_close(ops::binary_cross_entropy_with_logits(a, target), ops::mean(by_hand), 1e-9);

  const Tensor log_probs = ops::log_softmax(a, 1);
  const Tensor classes = from_values<std::int64_t>({5, -100, 0, 2}, {4});
  check_close(ops::nll_loss(log_probs, classes, Reduction::sum),
              ops::cross_entropy(a, classes, {.reduction = Reduction::sum}));
  check_close(ops::nll_loss(log_probs, classes), ops::cross_entropy(a, classes));
  CHECK(error_of([&] {
          ops::nll_loss(log_probs, from_values<std::int64_t>({6, 0, 0, 0}, {4}));
        }).starts_with("nll_loss: target 6 is out of range"));
  CHECK(error_of([&] { ops::l1_loss(a, numbers({6})); }).starts_with("l1_loss: "));
}

TEST_CASE("forms that write keep the memory, and read what they write element by element") {
  const Tensor x = numbers({4, 4});
  const Tensor before = ops::clone(x);
  const void* const memory = x.raw_data();
  const std::uint64_t version = x.storage().version();
  CHECK(ops::add_(x, x, 2).same_as(x));
  check_close(x, ops::mul_scalar(before, 3));
  CHECK(x.raw_data() == memory);
  CHECK(x.storage().version() > version);

  const Tensor column = ops::select(x, 1, 1);  // strided
  const Tensor expected = ops::exp(column);
  ops::exp_(column);
  check_close(column, expected);
  ops::addcdiv_(column, ops::select(x, 1, 0), ops::select(x, 1, 1), 0.5);
  check_close(column, ops::add(expected, ops::div(ops::select(x, 1, 0), expected), 0.5));

  const Tensor out = zeros({4, 4}, DType::f64);
  ops::call_into(out, find_op("lerp"), {x, before, ops::select(before, 0, 0)});
  check_close(out, ops::lerp(x, before, ops::select(before, 0, 0)));
  CHECK(error_of([&] {
          ops::call_into(x, find_op("mul"), {ops::transpose(x, 0, 1), x});
        }).starts_with("mul_out: 'out' is written and shares memory with 'a'"));
  struct SoftmaxArgs {
    std::int64_t dim;
  };
  CHECK_THROWS(ops::call_into(x, find_op("softmax"), {x}, SoftmaxArgs{.dim = 0}));

  const Tensor whole = zeros({4}, DType::i64);
  CHECK(error_of([&] { ops::add_(whole, numbers({4})); }).starts_with("add_: the result is f64"));
  CHECK(error_of([&] { ops::mul_(numbers({4}), numbers({2, 4})); }).starts_with("mul_: "));
  CHECK(error_of([&] {
          ops::call_into(zeros({4}), find_op("exp"), {numbers({4})});
        }).starts_with("exp_out: "));
  ops::add_(whole, ops::cast(numbers({4}), DType::boolean));
  CHECK(to_doubles(whole) == std::vector<double>{0, 1, 1, 1});
}

TEST_CASE("types meet as in PyTorch") {
  const Tensor f = numbers({2}, 1, DType::f32);
  const Tensor i = from_values<std::int64_t>({3, -2}, {2});
  CHECK(ops::pow(f, i).dtype() == DType::f32);
  CHECK(ops::fmod(i, f).dtype() == DType::f32);
  CHECK(ops::atan2(i, i).dtype() == DType::f32);
  CHECK(ops::floor_divide(i, ops::cast(i, DType::i32)).dtype() == DType::i64);
  CHECK(ops::lerp(f, ops::cast(f, DType::bf16), numbers({2})).dtype() == DType::f64);
  CHECK(ops::logical_and(f, i).dtype() == DType::boolean);
  CHECK(ops::round(i).dtype() == DType::i64);
  CHECK(ops::tan(i).dtype() == DType::f32);
  CHECK(ops::bitwise_or(ops::cast(i, DType::boolean), i).dtype() == DType::i64);
  CHECK(error_of([&] { ops::bitwise_or(f, f); }).starts_with("bitwise_or: "));
}

TEST_CASE("lists are treated as their tensors one by one") {
  const auto list = [](double shift) {
    return std::vector<Tensor>{numbers({3, 4}, shift), numbers({5}, shift + 1),
                               ops::transpose(numbers({2, 3}, shift + 2), 0, 1)};
  };
  const std::vector<Tensor> x = list(0);
  const std::vector<Tensor> y = list(3);
  const std::vector<Tensor> z = list(5);
  const std::vector<Tensor> single = list(0);
  ops::foreach_add_(x, y, 0.5);
  ops::foreach_mul_(x, -2);
  ops::foreach_lerp_(x, z, 0.25);
  ops::foreach_addcmul_(x, y, z, 0.5);
  ops::foreach_addcdiv_(x, y, z, 0.1);
  const Tensor norms = ops::foreach_squared_norm(x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    ops::add_(single[i], y[i], 0.5);
    ops::mul_scalar_(single[i], -2);
    ops::lerp_scalar_(single[i], z[i], 0.25);
    ops::addcmul_(single[i], y[i], z[i], 0.5);
    ops::addcdiv_(single[i], y[i], z[i], 0.1);
    check_close(x[i], single[i]);
    check_close(ops::select(norms, 0, static_cast<std::int64_t>(i)), ops::squared_norm(single[i]));
    CHECK(x[i].storage().version() >= 5);
  }
  ops::foreach_zero_(x);
  CHECK(ops::sum(ops::foreach_squared_norm(x)).item() == 0);
  CHECK(error_of([&] { ops::foreach_add_(x, std::vector{x[0]}); }).starts_with("foreach_add_: "));

  const Tensor cut = ops::chunk_cat(
      std::vector{from_values<double>({1, 2, 3}, {3}), from_values<double>({4, 5, 6, 7}, {2, 2})},
      0, 2);
  CHECK(cut.shape() == Dims{2, 4});
  CHECK(to_doubles(cut) == std::vector<double>{1, 2, 4, 5, 3, 0, 6, 7});
}

TEST_CASE("draws are made of the stream's words as the page on random numbers says") {
  constexpr std::int64_t n = 40;
  const auto stream = [] { return RandomStream{.seed = 11, .stream = 5, .offset = 12}; };
  const auto draw = [&](auto f) {
    RandomStream fresh = stream();
    return to_doubles(f(fresh));
  };
  // Whole numbers below 2^32 are the words themselves.
  const std::vector<double> words = draw([](RandomStream& r) {
    return ops::randint_(zeros({n}, DType::i64), 0, std::int64_t{1} << 32, r);
  });
  const std::vector<double> uniform =
      draw([](RandomStream& r) { return ops::uniform_(zeros({n}, DType::f64), 0, 1, r); });
  const std::vector<double> small =
      draw([](RandomStream& r) { return ops::randint_(zeros({n}, DType::i32), -3, 4, r); });
  const std::vector<double> ones =
      draw([](RandomStream& r) { return ops::bernoulli_(zeros({n}), 0.25, r); });
  const std::vector<double> order =
      draw([](RandomStream& r) { return ops::randperm_(zeros({n}, DType::i64), r); });
  std::vector<double> by_word(n);
  std::iota(by_word.begin(), by_word.end(), 0);
  std::sort(by_word.begin(), by_word.end(), [&](double a, double b) {
    return words[static_cast<std::size_t>(a)] < words[static_cast<std::size_t>(b)];
  });
  CHECK(order == by_word);
  for (std::size_t i = 0; i < n; ++i) {
    CHECK(uniform[i] == std::floor(words[i] / 256) / 16777216);
    CHECK(small[i] == -3 + std::floor(words[i] * 7 / 4294967296.0));
    CHECK(ones[i] == (words[i] < 0.25 * 4294967296.0 ? 1 : 0));
  }

  const Tensor weights = from_values<double>({0.5, 0, 2, 1, 0.25, 3, 0, 1}, {8});
  const double total = 7.75;
  const std::vector<double> with =
      draw([&](RandomStream& r) { return ops::multinomial(weights, n, true, r); });
  for (std::size_t i = 0; i < n; ++i) {
    double sum = 0;
    double expected = -1;
    while (sum <= words[i] / 4294967296.0 * total) {
      sum += weights.data<double>()[static_cast<int>(++expected)];
    }
    CHECK(with[i] == expected);
  }
  const std::vector<double> without =
      draw([&](RandomStream& r) { return ops::multinomial(weights, 6, false, r); });
  std::vector<std::pair<double, double>> times;
  for (std::size_t i = 0; i < 8; ++i) {
    if (weights.data<double>()[i] > 0) {
      times.emplace_back(-std::log((words[i] + 1) / 4294967296.0) / weights.data<double>()[i],
                         static_cast<double>(i));
    }
  }
  std::sort(times.begin(), times.end());
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(without[i] == times[i].second);
  }
}

TEST_CASE("a NaN is printed as nan, whatever its sign, in tensors and in errors") {
  const double nan = -std::numeric_limits<double>::quiet_NaN();
  CHECK(to_string(from_values<double>({nan, -1}, {2})) == "f64[2] {nan, -1}");
  RandomStream stream;
  const Tensor x = zeros({3});
  const std::function<void()> calls[] = {
      [&] { ops::dropout(x, nan, stream); },
      [&] { ops::bernoulli_(x, nan, stream); },
      [&] { ops::norm(x, nan); },
      [&] { ops::smooth_l1_loss(x, x, ops::Reduction::sum, nan); },
      [&] { ops::rotary(zeros({1, 2, 1, 4}), nan); },
      [&] {
        const Tensor q = zeros({1, 1, 2, 2});
        ops::scaled_dot_product_attention(q, q, q, {}, nan);
      },
  };
  for (const auto& call : calls) {
    std::string error = "none";
    try {
      call();
    } catch (const Error& thrown) {
      error = thrown.what();
    }
    INFO(error);
    CHECK(error.find("got nan") != std::string::npos);
  }
}

TEST_CASE("draws follow their weights") {
  RandomStream stream{.seed = 3, .stream = 1, .offset = 0};
  constexpr std::int64_t count = 40000;
  const Tensor ones = ops::bernoulli_(zeros({count}), 0.3, stream);
  CHECK(std::abs(ops::mean(ones).item() - 0.3) < 0.01);
  CHECK(stream.offset == count);
  const Tensor mixed =
      ops::bernoulli(ops::expand(from_values<double>({0, 0.7, 1}, {3}), {count, 3}), stream);
  const std::vector<double> means = to_doubles(ops::mean(mixed, {0}));
  CHECK(means[0] == 0);
  CHECK(std::abs(means[1] - 0.7) < 0.01);
  CHECK(means[2] == 1);

  const Tensor whole = ops::randint_(zeros({count}, DType::i32), -2, 3, stream);
  std::array<int, 5> seen{};
  for (const double value : to_doubles(whole)) {
    ++seen.at(static_cast<std::size_t>(value + 2));
  }
  CHECK(*std::min_element(seen.begin(), seen.end()) > count / 5 - 500);

  const Tensor order = ops::randperm_(zeros({1000}, DType::i64), stream);
  const std::vector<double> positions = to_doubles(order);
  CHECK(std::set<double>(positions.begin(), positions.end()).size() == 1000);
  CHECK(positions[0] != 0);  // of this seed
  CHECK(!std::is_sorted(positions.begin(), positions.end()));

  const Tensor weights = from_values<double>({1, 0, 3, 0, 0, 5}, {2, 3});
  const Tensor drawn = ops::multinomial(weights, count, true, stream);
  CHECK(drawn.shape() == Dims{2, count});
  std::array<int, 6> hits{};
  for (std::int64_t i = 0; i < drawn.numel(); ++i) {
    ++hits.at(static_cast<std::size_t>(i / count * 3 + drawn.data<std::int64_t>()[i]));
  }
  CHECK(hits[1] + hits[3] + hits[4] == 0);
  CHECK(std::abs(hits[2] - 0.75 * count) < 0.01 * count);
  CHECK(hits[5] == count);

  // Without replacement the first one is drawn by weight, and none twice.
  int first = 0;
  for (int i = 0; i < 4000; ++i) {
    const Tensor two = ops::multinomial(from_values<double>({1, 1, 2}, {3}), 2, false, stream);
    const auto* at = two.data<std::int64_t>();
    CHECK(at[0] != at[1]);
    first += at[0] == 2 ? 1 : 0;
  }
  CHECK(std::abs(first - 2000) < 150);
  CHECK(error_of([&] {
          ops::multinomial(weights, 2, false, stream);
        }).starts_with("multinomial: row 1 cannot be sampled"));
  CHECK(error_of([&] { ops::randint_(whole, 3, 3, stream); }).starts_with("randint_: "));
  CHECK(error_of([&] { ops::bernoulli_(ones, 1.5, stream); }).starts_with("bernoulli_: "));
}

TEST_CASE("order is stable, and ends with what is no number") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = from_values<double>({2, nan, -0.0, 0.0, 2, -1}, {6});
  CHECK(to_doubles(ops::argsort(x)) == std::vector<double>{5, 2, 3, 0, 4, 1});
  CHECK(to_doubles(ops::argsort(x, 0, true)) == std::vector<double>{1, 0, 4, 2, 3, 5});
  CHECK(to_doubles(ops::topk(x, 2, 0, false).values) == std::vector<double>{-1, 0});
  CHECK(to_doubles(ops::max(ops::nan_to_num(x), 0).indices) == std::vector<double>{0});
  CHECK(ops::argmin(x, 0).item() == 1);
  CHECK(error_of([&] { ops::topk(x, 7); }).starts_with("topk: k is out of range"));
}

TEST_CASE("thousands of ones at one place are all counted in 16 bits") {
  constexpr std::int64_t count = 4096;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    INFO(name_of(dtype));
    const Tensor ones = full({count}, 1, dtype);
    const Tensor place = zeros({count}, DType::i64);
    const auto first = [](const Tensor& x) { return to_doubles(x)[0]; };
    const auto gradient_of = [&](const auto& f) {
      Tensor x = zeros({2}, dtype);
      x.set_requires_grad();
      backward(ops::sum(f(x)));
      return first(x.grad());
    };
    CHECK(first(ops::index_add(zeros({2}, dtype), place, ones, 0)) == count);
    CHECK(first(ops::scatter_add(zeros({2}, dtype), place, ones, 0)) == count);
    CHECK(first(ops::index_put(zeros({2}, dtype), std::vector{place}, ones, true)) == count);
    CHECK(gradient_of([&](const Tensor& x) { return ops::index_select(x, place, 0); }) == count);
    CHECK(gradient_of([&](const Tensor& x) { return ops::gather(x, place, 0); }) == count);
    CHECK(gradient_of([&](const Tensor& x) { return ops::index(x, std::vector{place}); }) == count);
    CHECK(gradient_of([&](const Tensor& x) { return ops::as_strided(x, {count}, {0}, 0); }) ==
          count);
  }
}

TEST_CASE("a product that is scaled and added to a bias is rounded once") {
  // 257 is not a bf16, 771 rounds to 772; 3 times the rounded 257 is 768.
  const Tensor row = full({1, 257}, 1, DType::bf16);
  const Tensor column = full({257, 1}, 1, DType::bf16);
  const Tensor bias = full({1, 1}, 1, DType::bf16);
  CHECK(to_doubles(ops::addmm(bias, row, column, 0, 3)) == std::vector<double>{772});
  CHECK(to_doubles(ops::addmm(bias, row, column, 1, 3)) == std::vector<double>{772});
  CHECK(to_doubles(ops::addmm(bias, row, column, -1, 3)) == std::vector<double>{768});
}

TEST_CASE("a number or a single element may be minus zero, in every element") {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    const Tensor negative = full({37}, -0.0, dtype);  // whole vectors and a rest
    const auto all_negative = [&](const Tensor& x) {
      return std::ranges::all_of(to_doubles(x), [](double v) { return std::signbit(v); });
    };
    CHECK(all_negative(negative));
    CHECK(all_negative(ops::add_scalar(negative, -0.0)));
    CHECK(all_negative(ops::mul_scalar(full({37}, 2.0, dtype), -0.0)));
    CHECK(all_negative(ops::clamp(negative, -0.0, 1.0)));
    const Tensor one_element = full({}, -0.0, dtype);
    CHECK(all_negative(ops::add(negative, one_element)));
    CHECK(all_negative(ops::mul(full({37}, 2.0, dtype), one_element)));
    CHECK(all_negative(ops::maximum(negative, one_element)));
    CHECK(all_negative(ops::add(negative, full({37}, 2.0, dtype), -0.0)));
  }
}
