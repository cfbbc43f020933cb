// Attention on the emulated GPU against the CPU's.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "control.hpp"

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;

#include "on_emulator.hpp"

using namespace tessera;

namespace {

/// Numbers that look random and are the same in every run, of the size of normal ones.
Tensor numbers(const Dims& shape, double seed, DType dtype) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < shape.product(); ++i) {
    values.push_back(2 * std::sin(seed + 1.37 * static_cast<double>(i * i % 10007) +
                                  0.11 * static_cast<double>(i % 977)));
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

struct Sizes {
  std::int64_t rows = 1, queries, keys, heads = 2, key_heads = 1, head_dim, value_dim;
};

/// Results of a call, in this order: y, and the gradients of q, k and v.
using Found = std::vector<std::vector<double>>;

Tensor on(Device device, const Tensor& x) { return x ? ops::to_device(x, device) : x; }

/// `gaps`: operands are parts of larger ones.
Found computed(const Sizes& s, DType dtype, ops::CausalOptions options, Device device,
               bool gaps = false) {
  const auto operand = [&](std::int64_t times, std::int64_t heads, std::int64_t dim, double seed) {
    const Tensor x = on(device, numbers({s.rows, times, heads, dim}, seed, dtype));
    if (!gaps) {
      return x;
    }
    return ops::narrow(ops::cat(std::vector{x, x}, 2), 2, heads, heads);
  };
  Tensor q = operand(s.queries, s.heads, s.head_dim, 0.7);
  Tensor k = operand(s.keys, s.key_heads, s.head_dim, 1.1);
  Tensor v = operand(s.keys, s.key_heads, s.value_dim, 2.3);
  for (Tensor* const x : {&q, &k, &v}) {
    *x = ops::detach(*x);
    x->set_requires_grad();
  }
  options.documents = on(device, options.documents);
  const Tensor y = ops::causal_attention(q, k, v, options);
  const Tensor weights = on(device, numbers(y.shape(), 5, dtype));
  const std::vector<Tensor> d =
      gradients(std::vector{y}, std::vector{weights}, std::vector{q, k, v});
  return {to_doubles(y), to_doubles(d[0]), to_doubles(d[1]), to_doubles(d[2])};
}

/// The largest difference, relative to 1 + the wanted value.
double difference(const Found& found, const Found& wanted) {
  double largest = 0;
  REQUIRE(found.size() == wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    REQUIRE(found[i].size() == wanted[i].size());
    for (std::size_t j = 0; j < found[i].size(); ++j) {
      const double d = std::abs(found[i][j] - wanted[i][j]) / (1 + std::abs(wanted[i][j]));
      if (!(d <= largest)) {
        largest = d;  // NaN, too
      }
    }
  }
  return largest;
}

/// Windows, caps and documents, alone and together.
std::vector<ops::CausalOptions> variants(const Sizes& s) {
  std::vector<ops::CausalOptions> all = {{}, {.window = 1}, {.window = 5}, {.softcap = 2}};
  all.push_back({.scale = 0.3, .window = s.queries - 2, .softcap = 3});
  if (s.queries == s.keys && s.rows == 2) {
    const Tensor documents =
        documents_of({{1, s.queries - 4, 3}, {s.queries / 2, s.queries - s.queries / 2}});
    all.push_back({.documents = documents});
    all.push_back({.window = 7, .softcap = 1, .documents = documents});
  }
  return all;
}

std::string text_of(const ops::CausalOptions& options) {
  return "window " + std::to_string(options.window) + ", softcap " +
         std::to_string(options.softcap) + (options.documents ? ", documents" : "");
}

}  // namespace

TEST_CASE("attention of a GPU has windows, caps and documents") {
  for (const Sizes& s : {Sizes{2, 71, 71, 2, 1, 6, 5}, Sizes{1, 3, 70, 4, 2, 4, 4}}) {
    for (const ops::CausalOptions& options : variants(s)) {
      for (const DType dtype : {DType::f32, DType::f64}) {
        INFO(text_of(options) << " in " << name_of(dtype));
        next_order();
        const double found =
            difference(computed(s, dtype, options, cuda()), computed(s, dtype, options, cpu));
        CHECK(found <= (dtype == DType::f32 ? 1e-5 : 1e-12));
      }
    }
  }
}

TEST_CASE("a document on a GPU has the bits that it has alone") {
  next_order();
  const auto attended = [](std::int64_t first, std::int64_t count, const Tensor& documents) {
    const auto part = [&](double seed, std::int64_t heads) {
      return on(cuda(),
                ops::narrow(numbers({1, 150, heads, 6}, seed, DType::f32), 1, first, count));
    };
    return to_doubles(ops::causal_attention(part(1, 2), part(2, 1), part(3, 1),
                                            {.window = 66, .documents = on(cuda(), documents)}));
  };
  const std::vector<double> together = attended(0, 150, documents_of({{10, 100, 40}}));
  const std::vector<double> alone = attended(10, 100, {});
  REQUIRE(alone.size() == 100 * 12);
  for (std::size_t i = 0; i < alone.size(); ++i) REQUIRE(alone[i] == together[10 * 12 + i]);
}

TEST_CASE("documents that do not follow one another are an error where the host waits") {
  const auto error_of = [](const std::vector<std::int64_t>& first) {
    next_order();
    const Tensor x = on(cuda(), numbers({2, 4, 1, 4}, 1, DType::f32));
    const Tensor documents = from_values(std::span<const std::int64_t>(first), {2, 4});
    const Tensor y = ops::causal_attention(x, x, x, {.documents = on(cuda(), documents)});
    try {
      to_doubles(y);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  CHECK(error_of({0, 0, 2, 2, 0, 1, 2, 2}) == "no error");
  CHECK(error_of({0, 0, 2, 2, 0, 0, 1, 1}) ==
        "causal_attention: documents: token 2 of row 1 cannot be in the document that begins with "
        "token 1 (expected 0 or 2)");
  CHECK(error_of({7, 7, 2, 3, 0, 0, 0, 0}) ==
        "causal_attention: documents: token 0 of row 0 cannot be in the document that begins with "
        "token 7 (expected 0)");
}
