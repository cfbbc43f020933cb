// Causal attention with windows, capped scores and documents, against a loop over queries and keys,
// against attention with an explicit mask, and against finite differences.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
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

/// Numbers that look random and are the same in every run.
Tensor numbers(const Dims& shape, double seed, DType dtype = DType::f64) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < shape.product(); ++i) {
    values.push_back(
        std::sin(seed + 1.37 * static_cast<double>(i * i % 101) + 0.11 * static_cast<double>(i)));
  }
  return ops::cast(from_values(std::span<const double>(values), shape), dtype);
}

/// The first token of each token's document, for rows of documents of these lengths.
Tensor documents_of(const std::vector<std::vector<std::int64_t>>& rows) {
  std::vector<std::int64_t> first;
  for (const std::vector<std::int64_t>& lengths : rows) {
    std::int64_t begin = 0;
    for (const std::int64_t length : lengths) {
      first.insert(first.end(), static_cast<std::size_t>(length), begin);
      begin += length;
    }
  }
  const auto count = static_cast<std::int64_t>(rows.size());
  return from_values(std::span<const std::int64_t>(first),
                     {count, static_cast<std::int64_t>(first.size()) / count});
}

struct Case {
  Tensor q, k, v;
  ops::CausalOptions options;

  std::int64_t group() const { return q.size(2) / k.size(2); }
  /// Whether query i of a row sees key j.
  bool sees(std::int64_t row, std::int64_t i, std::int64_t j) const {
    const std::int64_t last = i + k.size(1) - q.size(1);
    const std::int64_t first =
        options.documents ? options.documents.data<std::int64_t>()[row * q.size(1) + i] : 0;
    return j <= last && j >= first && (options.window == 0 || j > last - options.window);
  }
  double at(const Tensor& x, std::int64_t row, std::int64_t time, std::int64_t head,
            std::int64_t d) const {
    return x.data<double>()[((row * x.size(1) + time) * x.size(2) + head) * x.size(3) + d];
  }
};

/// One query and one key after the other.
std::vector<double> by_loops(const Case& c) {
  const double scale =
      c.options.scale != 0 ? c.options.scale : 1 / std::sqrt(static_cast<double>(c.q.size(3)));
  std::vector<double> y;
  for (std::int64_t row = 0; row < c.q.size(0); ++row) {
    for (std::int64_t i = 0; i < c.q.size(1); ++i) {
      for (std::int64_t head = 0; head < c.q.size(2); ++head) {
        std::vector<double> weights(static_cast<std::size_t>(c.k.size(1)));
        double sum = 0;
        for (std::int64_t j = 0; j < c.k.size(1); ++j) {
          double score = 0;
          for (std::int64_t d = 0; d < c.q.size(3); ++d) {
            score += c.at(c.q, row, i, head, d) * c.at(c.k, row, j, head / c.group(), d);
          }
          score *= scale;
          if (c.options.softcap != 0) {
            score = c.options.softcap * std::tanh(score / c.options.softcap);
          }
          weights[static_cast<std::size_t>(j)] = c.sees(row, i, j) ? std::exp(score) : 0;
          sum += weights[static_cast<std::size_t>(j)];
        }
        for (std::int64_t d = 0; d < c.v.size(3); ++d) {
          double value = 0;
          for (std::int64_t j = 0; j < c.k.size(1); ++j) {
            value +=
                weights[static_cast<std::size_t>(j)] / sum * c.at(c.v, row, j, head / c.group(), d);
          }
          y.push_back(value);
        }
      }
    }
  }
  return y;
}

Tensor attention(const Case& c) { return ops::causal_attention(c.q, c.k, c.v, c.options); }

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

Case made(std::int64_t queries, std::int64_t keys, ops::CausalOptions options,
          std::int64_t rows = 2) {
  return {numbers({rows, queries, 4, 6}, 0.7), numbers({rows, keys, 2, 6}, 1.1),
          numbers({rows, keys, 2, 5}, 2.3), std::move(options)};
}

std::vector<Tensor> gradients_of(const Tensor& y, const Case& c, bool create_graph = false) {
  const Tensor weights = numbers(y.shape(), 5, y.dtype());
  return gradients(std::vector{y}, std::vector{weights}, std::vector{c.q, c.k, c.v},
                   {.create_graph = create_graph});
}

void track(Case& c) {
  for (Tensor* const x : {&c.q, &c.k, &c.v}) {
    x->set_requires_grad();
  }
}

const std::vector<std::vector<std::int64_t>> kDocuments = {{1, 63, 70, 16}, {100, 49, 1}};

}  // namespace

TEST_CASE("windows, caps and documents of causal attention are those of a loop") {
  for (const std::int64_t window : {0, 1, 5, 64, 70, 149, 400}) {
    for (const double softcap : {0.0, 0.8}) {
      for (const auto& [queries, keys] : {std::pair{150, 150}, {3, 150}, {1, 150}, {70, 150}}) {
        INFO("window " << window << ", softcap " << softcap << ", " << queries << " queries");
        const Case c = made(queries, keys, {.window = window, .softcap = softcap});
        CHECK(difference(to_doubles(attention(c)), by_loops(c)) < 1e-13);
      }
      const Case packed = made(
          150, 150, {.window = window, .softcap = softcap, .documents = documents_of(kDocuments)});
      CHECK(difference(to_doubles(attention(packed)), by_loops(packed)) < 1e-13);
    }
  }
}

TEST_CASE("gradients with windows and documents are those of attention with a mask") {
  for (const std::int64_t window : {0, 1, 40, 70}) {
    for (const bool packed : {false, true}) {
      INFO("window " << window << ", documents " << packed);
      Case c = made(150, 150, {.window = window});
      if (packed) {
        c.options.documents = documents_of(kDocuments);
      }
      Tensor mask = empty({2, 1, 150, 150}, DType::boolean);
      for (std::int64_t i = 0; i < mask.numel(); ++i) {
        static_cast<std::uint8_t*>(mask.raw_data())[i] =
            c.sees(i / (150 * 150), i / 150 % 150, i % 150) ? 1 : 0;
      }
      track(c);
      const Tensor by_mask = ops::transpose(
          ops::scaled_dot_product_attention(ops::transpose(c.q, 1, 2), ops::transpose(c.k, 1, 2),
                                            ops::transpose(c.v, 1, 2), mask),
          1, 2);
      const std::vector<Tensor> wanted = gradients_of(by_mask, c);
      const std::vector<Tensor> got = gradients_of(attention(c), c);
      for (std::size_t i = 0; i < 3; ++i) {
        CHECK(difference(to_doubles(got[i]), to_doubles(wanted[i])) < 1e-13);
      }
    }
  }
}

TEST_CASE("first and second derivatives of capped attention agree with finite differences") {
  for (const std::int64_t window : {0, 3}) {
    for (const bool packed : {false, true}) {
      Case c = made(7, 7, {.window = window, .softcap = 0.6}, 1);
      if (packed) {
        c.options.documents = documents_of({{2, 5}});
      }
      track(c);
      const auto gradient = [&](bool graph) { return gradients_of(attention(c), c, graph); };
      // A number that depends on all gradients, and its own gradients.
      const auto combined = [&](const std::vector<Tensor>& g) {
        Tensor total;
        for (std::size_t i = 0; i < 3; ++i) {
          const Tensor term = ops::sum(ops::mul(g[i], numbers(g[i].shape(), 9 + 2.0 * i)));
          total = total ? ops::add(total, term) : term;
        }
        return total;
      };
      const std::vector<Tensor> first = gradient(true);
      const std::vector<Tensor> second = gradients(
          std::vector{combined(first)}, std::vector{Tensor()}, std::vector{c.q, c.k, c.v});
      const auto loss = [&] {
        const NoGrad constant;
        const Tensor y = attention(c);
        return ops::sum(ops::mul(y, numbers(y.shape(), 5))).item();
      };
      Tensor* const operands[] = {&c.q, &c.k, &c.v};
      for (std::size_t x = 0; x < 3; ++x) {
        for (std::int64_t i = 0; i < operands[x]->numel(); i += 5) {
          double& element = operands[x]->data<double>()[i];
          const double at = element;
          const auto slope = [&](const auto& f) {
            element = at + 1e-5;
            const double above = f();
            element = at - 1e-5;
            const double below = f();
            element = at;
            return (above - below) / 2e-5;
          };
          INFO("operand " << x << ", element " << i << ", window " << window);
          CHECK(first[x].data<double>()[i] == Approx(slope(loss)).margin(1e-8));
          CHECK(second[x].data<double>()[i] ==
                Approx(slope([&] { return combined(gradient(false)).item(); })).margin(1e-7));
        }
      }
    }
  }
}

TEST_CASE("a document has the bits that it has alone, whatever is beside it") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t window : {0, 50}) {
      const auto typed = [&](const Tensor& x) { return ops::cast(x, dtype); };
      Case row = made(150, 150, {.window = window, .softcap = 3});
      row.options.documents = documents_of(kDocuments);
      row.q = typed(row.q), row.k = typed(row.k), row.v = typed(row.v);
      track(row);
      const Tensor y = attention(row);
      const std::vector<Tensor> together = gradients_of(y, row);
      const Tensor weights = numbers(y.shape(), 5, dtype);
      for (std::int64_t entry = 0; entry < 2; ++entry) {
        std::int64_t begin = 0;
        for (const std::int64_t length : kDocuments[static_cast<std::size_t>(entry)]) {
          INFO("row " << entry << ", document of " << length << ", " << name_of(dtype));
          const auto cut = [&](const Tensor& x) {
            const NoGrad constant;
            return ops::contiguous(ops::narrow(ops::narrow(x, 0, entry, 1), 1, begin, length));
          };
          Case alone{cut(row.q), cut(row.k), cut(row.v), {.window = window, .softcap = 3}};
          track(alone);
          const Tensor own = attention(alone);
          const std::vector<Tensor> of_own = gradients(std::vector{own}, std::vector{cut(weights)},
                                                       std::vector{alone.q, alone.k, alone.v});
          CHECK((to_doubles(cut(y)) == to_doubles(own)));
          for (std::size_t i = 0; i < 3; ++i) {
            CHECK((to_doubles(cut(together[i])) == to_doubles(of_own[i])));
          }
          begin += length;
        }
      }
    }
  }
}

TEST_CASE("documents that do not follow one another are refused") {
  const Case c = made(4, 4, {}, 1);
  const auto with = [&](const std::vector<std::int64_t>& first) {
    return error_of([&] {
      ops::causal_attention(
          c.q, c.k, c.v, {.documents = from_values(std::span<const std::int64_t>(first), {1, 4})});
    });
  };
  CHECK(with({0, 0, 2, 2}) == "no error");
  CHECK(with({0, 0, 1, 1}) ==
        "causal_attention: documents: token 2 of row 0 cannot be in the document that begins with "
        "token 1 (expected 0 or 2)");
  CHECK(with({1, 1, 2, 3}) ==
        "causal_attention: documents: token 0 of row 0 cannot be in the document that begins with "
        "token 1 (expected 0)");
  CHECK(error_of([&] {
          ops::causal_attention(ops::narrow(c.q, 1, 0, 2), c.k, c.v,
                                {.documents = documents_of({{2}})});
        }).find("as many keys as queries") != std::string::npos);
  CHECK(error_of([&] {
          ops::causal_attention(c.q, c.k, c.v, {.window = -1});
        }).find("at least 0") != std::string::npos);
}
