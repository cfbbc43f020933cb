// Sampling by weight against the definition, and dropping against the numbers that decide.

#include "random/kernels/sampling.hpp"

#include <numeric>

#include "check.hpp"
#include "in_workspace.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/philox.hpp"

using namespace tessera::kernels;
using namespace tessera::kernels::test;

namespace {

std::vector<std::uint32_t> words_for(std::int64_t count) {
  std::vector<std::uint32_t> words(static_cast<std::size_t>(count));
  fill_bits(RandomRange{.seed = 3, .stream = 4}, count, words.data());
  return words;
}

/// All positions with a weight by the time of their event, computed in double.
std::vector<std::int64_t> by_time(const std::vector<double>& weights,
                                  const std::vector<std::uint32_t>& words) {
  std::vector<std::int64_t> order;
  std::vector<double> times;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    times.push_back(-std::log((static_cast<double>(words[i]) + 1) / 4294967296.0) / weights[i]);
    if (weights[i] > 0) order.push_back(static_cast<std::int64_t>(i));
  }
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    const double first = times[static_cast<std::size_t>(a)];
    const double second = times[static_cast<std::size_t>(b)];
    return first < second || (first == second && a < b);
  });
  return order;
}

void check_without(std::vector<double> weights, const std::vector<std::uint32_t>& words,
                   std::int64_t count) {
  const auto n = static_cast<std::int64_t>(weights.size());
  CAPTURE(n, count);
  std::vector<std::int64_t> expected = by_time(weights, words);
  expected.resize(static_cast<std::size_t>(count));
  std::vector<std::int64_t> drawn(expected.size(), -1);
  const std::vector<double> given = weights;
  in_workspace::run([&](Workspace& w) {
    const WeightsRead read = read_weights(n, given.data(), weights.data());
    sample_without_replacement(w, n, weights.data(), read, count, words.data(), drawn.data());
  });
  CHECK(drawn == expected);
}

}  // namespace

TEST_CASE("what is known of weights", "[sampling]") {
  for (const std::int64_t n : {1, 7, 16, 300}) {
    auto x = values<float>(n, 1, 0.5, 2);
    x[0] = 0;
    std::vector<double> weights(x.size());
    WeightsRead read = read_weights(n, x.data(), weights.data());
    CHECK(read.valid);
    CHECK(read.positive == n - 1);
    CHECK(weights == as_double(x));
    if (n > 1) {
      CHECK(read.smallest == *std::min_element(weights.begin() + 1, weights.end()));
      CHECK(read.largest == *std::max_element(weights.begin(), weights.end()));
    }
    for (const float wrong : {-1.0F, NAN, INFINITY}) {
      x[static_cast<std::size_t>(n / 2)] = wrong;
      read = read_weights(n, x.data(), weights.data());
      CHECK_FALSE(read.valid);
    }
  }
}

TEST_CASE("sampling without replacement takes the first events, in their order", "[sampling]") {
  for (const std::int64_t n : {64, 1000, 4096, 40001}) {
    const auto words = words_for(n);
    for (const std::int64_t count : {1, 16, 50}) {
      auto weights = values<double>(n, 7, 0.1, 1);
      check_without(weights, words, count);
      for (std::size_t i = 0; i < weights.size(); i += 3) weights[i] = 0;
      check_without(std::vector(weights.begin(), weights.end()), words, std::min(count, n / 3));
      // Weights so unlike that most never have a turn; and such as no float holds.
      for (double& weight : weights) weight = std::pow(weight, 40);
      check_without(weights, words, std::min(count, n / 3));
      for (double& weight : weights) weight *= 1e-200;
      check_without(weights, words, std::min(count, n / 3));
    }
    check_without(std::vector<double>(static_cast<std::size_t>(n), 1.0), words, 20);
  }
}

TEST_CASE("events at one time come in the order of their positions", "[sampling]") {
  const std::int64_t n = 5000;
  const std::vector<double> weights(static_cast<std::size_t>(n), 2.0);
  for (const std::uint32_t word : {0U, 12345U, 0xffffffffU}) {
    std::vector<std::uint32_t> words(static_cast<std::size_t>(n), word);
    check_without(weights, words, 16);
    words[4000] = 0xfffffff0U;
    words[3000] = 0xfffffff1U;
    check_without(weights, words, 16);
  }
}

TEST_CASE("sampling with replacement finds the share of each word", "[sampling]") {
  for (const std::int64_t n : {1, 2, 5, 100, 4097}) {
    CAPTURE(n);
    auto weights = values<double>(n, 9, 0, 1);
    if (n > 4) weights[2] = weights[static_cast<std::size_t>(n - 1)] = 0;
    std::vector<double> sums(weights.size());
    std::partial_sum(weights.begin(), weights.end(), sums.begin());
    auto words = words_for(3000);
    words[0] = 0;
    words[1] = 0xffffffffU;
    std::vector<std::int64_t> drawn(words.size());
    sample_with_replacement(n, weights.data(), 3000, words.data(), drawn.data());
    int wrong = 0;
    for (std::size_t i = 0; i < words.size(); ++i) {
      const double share = words[i] / 4294967296.0 * sums.back();
      const auto at = static_cast<std::size_t>(drawn[i]);
      // Sums in another order differ in their last places.
      const double margin = 1e-12 * sums.back();
      const double before = at == 0 ? 0 : sums[at - 1];
      wrong += before <= share + margin && share <= sums[at] + margin && sums[at] > before ? 0 : 1;
    }
    CHECK(wrong == 0);
  }
}

TEMPLATE_TEST_CASE("elements are dropped where their numbers say", "[sampling]", float, double,
                   BFloat16, Half) {
  const std::int64_t n = 20003;
  const auto x = values<TestType>(n, 1);
  for (const double p : {0.0, 0.1, 0.5, 1.0}) {
    for (const std::uint64_t offset : {0ULL, 5ULL, 1000ULL}) {
      CAPTURE(p, offset);
      const RandomRange range{.seed = 1, .stream = 2, .offset = 64, .first_index = offset};
      std::vector<std::uint8_t> dropped(x.size());
      fill_bernoulli(range, n, p, dropped.data());
      std::vector<TestType> expected(x.size());
      const auto factor = static_cast<Compute<TestType>>(p < 1 ? 1 / (1 - p) : 0);
      for (std::size_t i = 0; i < x.size(); ++i) {
        expected[i] = dropped[i] != 0
                          ? TestType{}
                          : static_cast<TestType>(static_cast<Compute<TestType>>(x[i]) * factor);
      }
      for (const int threads : {1, 3}) {
        set_threads(threads);
        std::vector<TestType> y = x;
        drop(range, n, p, y.data(), y.data());
        set_threads(1);
        CHECK(as_double(y) == as_double(expected));
      }
    }
  }
}
