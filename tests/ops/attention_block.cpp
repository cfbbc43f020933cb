// Blocks of attention: their merged results and their gradients' sums are those of the whole
// attention, which a loop over queries and keys computes.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.tensor;
import tessera.ops;

using namespace tessera;

namespace {

constexpr std::int64_t kRows = 2;
constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kKeyHeads = 2;
constexpr std::int64_t kDim = 6;
constexpr std::int64_t kValueDim = 5;

Tensor numbers(const Dims& shape, double seed) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < shape.product(); ++i) {
    values.push_back(
        std::sin(seed + 1.37 * static_cast<double>(i * i % 101) + 0.11 * static_cast<double>(i)));
  }
  return from_values(std::span<const double>(values), shape);
}

/// A whole sequence; first[row * tokens + i] is where the document of token i begins.
struct Sequence {
  std::int64_t tokens;
  ops::AttentionBlockOptions options;
  std::vector<std::int64_t> first;
  Tensor q = numbers({kRows, tokens, kHeads, kDim}, 0.7);
  Tensor k = numbers({kRows, tokens, kKeyHeads, kDim}, 1.1);
  Tensor v = numbers({kRows, tokens, kKeyHeads, kValueDim}, 2.3);
  Tensor dy = numbers({kRows, tokens, kHeads, kValueDim}, 3.1);

  bool sees(std::int64_t row, std::int64_t i, std::int64_t j) const {
    const std::int64_t begin =
        first.empty() ? 0 : first[static_cast<std::size_t>(row * tokens + i)];
    return !options.causal ||
           (j <= i && j >= begin && (options.window == 0 || j > i - options.window));
  }
};

double& at(std::vector<double>& x, std::int64_t row, std::int64_t tokens, std::int64_t i,
           std::int64_t heads, std::int64_t head, std::int64_t width, std::int64_t d) {
  return x[static_cast<std::size_t>(((row * tokens + i) * heads + head) * width + d)];
}
double read(const Tensor& x, std::int64_t row, std::int64_t i, std::int64_t head, std::int64_t d) {
  return x.data<double>()[((row * x.size(1) + i) * x.size(2) + head) * x.size(3) + d];
}

struct Results {
  std::vector<double> y, dq, dk, dv;
};

/// Query after query: scores, probabilities, and the gradients by their definition.
Results by_loops(const Sequence& s) {
  const std::int64_t n = s.tokens;
  Results r;
  const auto size = [](std::int64_t count) { return static_cast<std::size_t>(count); };
  r.y.resize(size(kRows * n * kHeads * kValueDim));
  r.dq.resize(size(kRows * n * kHeads * kDim));
  r.dk.resize(size(kRows * n * kKeyHeads * kDim));
  r.dv.resize(size(kRows * n * kKeyHeads * kValueDim));
  const double scale = s.options.scale != 0 ? s.options.scale : 1 / std::sqrt(double{kDim});
  const double cap = s.options.softcap;
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t head = 0; head < kHeads; ++head) {
      const std::int64_t kv = head * kKeyHeads / kHeads;
      for (std::int64_t i = 0; i < n; ++i) {
        std::vector<double> p(size(n)), slope(size(n)), dp(size(n));
        double sum = 0;
        for (std::int64_t j = 0; j < n; ++j) {
          double score = 0;
          for (std::int64_t d = 0; d < kDim; ++d) {
            score += read(s.q, row, i, head, d) * read(s.k, row, j, kv, d);
          }
          score *= scale;
          const double share = cap != 0 ? std::tanh(score / cap) : 0;
          slope[size(j)] = 1 - share * share;
          p[size(j)] = s.sees(row, i, j) ? std::exp(cap != 0 ? cap * share : score) : 0;
          sum += p[size(j)];
        }
        double delta = 0;
        for (std::int64_t j = 0; j < n; ++j) {
          p[size(j)] /= sum;
          for (std::int64_t d = 0; d < kValueDim; ++d) {
            const double of_y = read(s.dy, row, i, head, d);
            at(r.y, row, n, i, kHeads, head, kValueDim, d) += p[size(j)] * read(s.v, row, j, kv, d);
            at(r.dv, row, n, j, kKeyHeads, kv, kValueDim, d) += p[size(j)] * of_y;
            dp[size(j)] += of_y * read(s.v, row, j, kv, d);
          }
          delta += p[size(j)] * dp[size(j)];
        }
        for (std::int64_t j = 0; j < n; ++j) {
          const double ds = p[size(j)] * (dp[size(j)] - delta) * slope[size(j)] * scale;
          for (std::int64_t d = 0; d < kDim; ++d) {
            at(r.dq, row, n, i, kHeads, head, kDim, d) += ds * read(s.k, row, j, kv, d);
            at(r.dk, row, n, j, kKeyHeads, kv, kDim, d) += ds * read(s.q, row, i, head, d);
          }
        }
      }
    }
  }
  return r;
}

using Cuts = std::vector<std::int64_t>;  // 0, ..., tokens

Tensor part(const Tensor& x, std::int64_t dim, std::int64_t begin, std::int64_t end) {
  return ops::narrow(x, dim, begin, end - begin);
}

Tensor joined(const Tensors& parts) { return ops::cat(std::span<const Tensor>(parts), 1); }

void add_to(Tensor& sum, const Tensor& x) { sum = sum ? ops::add(sum, x) : x; }

/// Queries and keys in the blocks between the cuts; `order` is that in which keys come.
Results by_blocks(const Sequence& s, const Cuts& queries, const Cuts& keys, bool backwards) {
  const Tensor documents =
      s.first.empty() ? Tensor()
                      : from_values(std::span<const std::int64_t>(s.first), {kRows, s.tokens});
  const std::size_t key_blocks = keys.size() - 1;
  Tensors ys, dqs, dks(key_blocks), dvs(key_blocks);
  for (std::size_t a = 0; a + 1 < queries.size(); ++a) {
    const auto of_queries = [&](const Tensor& x) {
      return x ? part(x, 1, queries[a], queries[a + 1]) : x;
    };
    const auto block = [&](std::size_t b) {
      ops::AttentionBlockOptions options = s.options;
      options.first_query = queries[a];
      options.first_key = keys[b];
      options.documents = of_queries(documents);
      return options;
    };
    const auto of_keys = [&](const Tensor& x, std::size_t b) {
      return part(x, 1, keys[b], keys[b + 1]);
    };
    ops::AttentionBlock all;
    for (std::size_t i = 0; i < key_blocks; ++i) {
      const std::size_t b = backwards ? key_blocks - 1 - i : i;
      const ops::AttentionBlock one =
          ops::attention_block(of_queries(s.q), of_keys(s.k, b), of_keys(s.v, b), block(b));
      all = all.y ? ops::attention_merge(all, one) : one;
    }
    ys.push_back(all.y);
    const Tensor dy = of_queries(s.dy);
    const Tensor delta = ops::transpose(ops::sum(ops::mul(dy, all.y), {3}), 1, 2);
    Tensor dq;
    for (std::size_t b = 0; b < key_blocks; ++b) {
      const ops::AttentionBlockGradients of = ops::attention_block_backward(
          dy, of_queries(s.q), of_keys(s.k, b), of_keys(s.v, b), delta, all.lse, block(b));
      add_to(dq, of.q);
      add_to(dks[b], of.k);
      add_to(dvs[b], of.v);
    }
    dqs.push_back(dq);
  }
  return {to_doubles(joined(ys)), to_doubles(joined(dqs)), to_doubles(joined(dks)),
          to_doubles(joined(dvs))};
}

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) {
    return std::numeric_limits<double>::infinity();
  }
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    largest = d <= largest || std::isnan(largest) ? largest : d;  // NaN is the largest
  }
  return largest;
}

void check_blocks(const Sequence& s) {
  const Results expected = by_loops(s);
  const std::int64_t n = s.tokens;
  for (const Cuts& queries : {Cuts{0, n}, Cuts{0, 1, 70, n}, Cuts{0, 64, 65, n}}) {
    for (const Cuts& keys : {Cuts{0, n}, Cuts{0, 3, 66, 67, n}, Cuts{0, 64, 129, n}}) {
      for (const bool backwards : {false, true}) {
        INFO(queries.size() - 1 << " blocks of queries, " << keys.size() - 1 << " of keys");
        const Results got = by_blocks(s, queries, keys, backwards);
        CHECK(difference(got.y, expected.y) < 1e-13);
        CHECK(difference(got.dq, expected.dq) < 1e-13);
        CHECK(difference(got.dk, expected.dk) < 1e-12);
        CHECK(difference(got.dv, expected.dv) < 1e-12);
      }
    }
  }
}

std::vector<std::int64_t> documents_of(const std::vector<std::vector<std::int64_t>>& rows) {
  std::vector<std::int64_t> first;
  for (const std::vector<std::int64_t>& lengths : rows) {
    std::int64_t begin = 0;
    for (const std::int64_t length : lengths) {
      first.insert(first.end(), static_cast<std::size_t>(length), begin);
      begin += length;
    }
  }
  return first;
}

}  // namespace

TEST_CASE("merged blocks are the whole attention, and so are the sums of their gradients") {
  for (const std::int64_t window : {0, 1, 5, 64, 100}) {
    INFO("window " << window);
    check_blocks({.tokens = 140, .options = {.window = window}, .first = {}});
  }
  check_blocks({.tokens = 140, .options = {.softcap = 0.8}, .first = {}});
  check_blocks({.tokens = 140, .options = {.scale = 0.3, .causal = false}, .first = {}});
}

TEST_CASE("no document sees another one across the borders of blocks") {
  const std::vector<std::int64_t> first = documents_of({{1, 63, 60, 16}, {100, 39, 1}});
  for (const std::int64_t window : {0, 7}) {
    check_blocks({.tokens = 140, .options = {.window = window, .softcap = 1.5}, .first = first});
  }
}

TEST_CASE("a block whose queries see none of its keys is nothing") {
  const Sequence s{.tokens = 20, .options = {}, .first = {}};
  const ops::AttentionBlock none =
      ops::attention_block(s.q, s.k, s.v, {.first_query = 0, .first_key = 30});
  for (const double y : to_doubles(none.y)) {
    CHECK(y == 0);
  }
  for (const double lse : to_doubles(none.lse)) {
    CHECK(lse == -std::numeric_limits<double>::infinity());
  }
  const ops::AttentionBlock some = ops::attention_block(s.q, s.k, s.v, {});
  const ops::AttentionBlock both = ops::attention_merge(none, some);
  CHECK(difference(to_doubles(both.y), to_doubles(some.y)) == 0);
  CHECK(difference(to_doubles(both.lse), to_doubles(some.lse)) < 1e-15);
  const ops::AttentionBlock nothing = ops::attention_merge(none, none);
  CHECK(difference(to_doubles(nothing.y), to_doubles(none.y)) == 0);
}

TEST_CASE("flops of a block are those of the pairs that see each other") {
  const auto flops = [](const Sequence& s, const ops::AttentionBlockOptions& options) {
    const Op& op = find_op("attention_block");
    std::int64_t pairs = 0;
    for (std::int64_t i = 0; i < s.tokens; ++i) {
      for (std::int64_t j = 0; j < s.tokens; ++j) {
        const std::int64_t last = options.first_query + i - options.first_key;
        pairs += j <= last && (options.window == 0 || j > last - options.window) ? 1 : 0;
      }
    }
    double counted = 0;
    class Count final : public Mode {
     public:
      Count(const Op& op, double& into) : op_(op), into_(into) {}
      Tensors call(const Call& call, NextCall& next) override {
        Tensors out = next(call);
        into_ += &call.op == &op_ ? call.op.flops(call, out) : 0;
        return out;
      }

     private:
      const Op& op_;
      double& into_;
    } count(op, counted);
    {
      const ModeScope scope(ModeLevel::below_distribution, count);
      ops::attention_block(s.q, s.k, s.v, options);
    }
    return std::pair(counted, static_cast<double>(pairs * kRows * kHeads * 2 * (kDim + kValueDim)));
  };
  const Sequence s{.tokens = 20, .options = {}, .first = {}};
  for (const std::int64_t query : {0, 5, 13, 20, 40}) {
    for (const std::int64_t window : {0, 1, 7, 25}) {
      INFO("query " << query << ", window " << window);
      const auto [counted, expected] =
          flops(s, {.window = window, .first_query = query, .first_key = 10});
      CHECK(counted == expected);
    }
  }
}

TEST_CASE("blocks with operands that do not fit are refused") {
  const Sequence s{.tokens = 8, .options = {}, .first = {}};
  const auto refused = [&](const ops::AttentionBlockOptions& options) {
    try {
      ops::attention_block(s.q, s.k, s.v, options);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  CHECK_THAT(refused({.window = -1}), Catch::Contains("at least 0"));
  CHECK_THAT(refused({.first_key = -1}), Catch::Contains("positions must be from 0 to"));
  CHECK_THAT(refused({.window = 3, .causal = false}), Catch::Contains("need causal attention"));
  const std::vector<std::int64_t> late(kRows * 8, 9);
  CHECK_THAT(refused({.documents = from_values(std::span<const std::int64_t>(late), {kRows, 8})}),
             Catch::Contains("cannot be in the document that begins with token 9"));
}
