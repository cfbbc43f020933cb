// Attention on the emulated GPU against the CPU's.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
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

#include "device.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

/// Numbers from -2 to 2 that look random and are the same in every run.
Tensor numbers(const Dims& shape, double seed, DType dtype) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < shape.product(); ++i) {
    const double x = 43758.5453 * std::sin(12.9898 * static_cast<double>(i) + 78.233 * seed);
    values.push_back(4 * (x - std::floor(x)) - 2);
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

/// Where operands are: in memory of their own, in every other head of a larger tensor, or, of one
/// head, in every eighth element.
enum class Operands : std::uint8_t { whole, heads, elements };

Found computed(const Sizes& s, DType dtype, ops::CausalOptions options, Device device,
               Operands operands = Operands::whole) {
  const auto operand = [&](std::int64_t times, std::int64_t heads, std::int64_t dim, double seed) {
    Tensor x = on(device, numbers({s.rows, times, heads, dim}, seed, dtype));
    if (operands == Operands::heads) {
      return ops::narrow(ops::cat(std::vector{x, x}, 2), 2, heads, heads);
    }
    if (operands == Operands::elements) {
      const std::vector<Tensor> columns(8, ops::transpose(x, 2, 3));
      return ops::transpose(ops::narrow(ops::cat(columns, 3), 3, 0, 1), 2, 3);
    }
    return x;
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
      if (!(d <= largest) && !std::isnan(largest)) {
        largest = d;  // NaN, too, and then it stays
      }
    }
  }
  return largest;
}

/// The largest difference, in units of the largest wanted value of its tensor.
double share_of_largest(const Found& found, const Found& wanted) {
  double share = 0;
  REQUIRE(found.size() == wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    REQUIRE(found[i].size() == wanted[i].size());
    double difference = 0, largest = 0.1;  // gradients of one key are 0
    for (std::size_t j = 0; j < found[i].size(); ++j) {
      const double d = std::abs(found[i][j] - wanted[i][j]);
      difference = d <= difference || std::isnan(difference) ? difference : d;  // NaN, too
      largest = std::max(largest, std::abs(wanted[i][j]));
    }
    if (!(difference <= share * largest) && !std::isnan(share)) {
      share = difference / largest;
    }
  }
  return share;
}

/// Windows, caps and documents, alone and together; the last has most.
std::vector<ops::CausalOptions> variants(const Sizes& s) {
  std::vector<ops::CausalOptions> all = {
      {}, {.window = 1}, {.window = 5}, {.window = 15}, {.softcap = 2}};
  all.push_back({.scale = 0.3, .window = s.queries / 2 + 1, .softcap = 3});
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

// A probability is rounded to 16 bits before its product with the values, and so is the gradient of
// a score, by up to 2^-9 (bf16) or 2^-12 (f16) of itself; the CPU rounds its results only. So a
// result differs by that share of a sum of absolute terms, which is a few times the largest result.
void compare_by_tensor_cores(const Sizes& s, const ops::CausalOptions& options, Operands operands) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    INFO(s.queries << " queries, " << s.keys << " keys, " << s.head_dim << " dims, "
                   << text_of(options) << " in " << name_of(dtype));
    next_order();
    const Found found = computed(s, dtype, options, cuda(), operands);
    const double share = share_of_largest(found, computed(s, dtype, options, cpu));
    CHECK(share <= (dtype == DType::bf16 ? 1.2e-2 : 1.5e-3));
    next_order();
    CHECK(computed(s, dtype, options, cuda(), operands) == found);
  }
}

/// Of a block: y, the sums of exponentials, and what it adds to the gradients of q, k and v.
Found computed_block(const Sizes& s, DType dtype, ops::AttentionBlockOptions options,
                     Device device) {
  const auto operand = [&](const Dims& shape, double seed, DType type) {
    return on(device, numbers(shape, seed, type));
  };
  const Tensor q = operand({s.rows, s.queries, s.heads, s.head_dim}, 0.7, dtype);
  const Tensor k = operand({s.rows, s.keys, s.key_heads, s.head_dim}, 1.1, dtype);
  const Tensor v = operand({s.rows, s.keys, s.key_heads, s.value_dim}, 2.3, dtype);
  const Tensor dy = operand({s.rows, s.queries, s.heads, s.value_dim}, 5, dtype);
  options.documents = on(device, options.documents);
  const ops::AttentionBlock block = ops::attention_block(q, k, v, options);
  const DType sums = block.lse.dtype();
  const Tensor delta = operand({s.rows, s.heads, s.queries}, 3, sums);
  const Tensor lse = ops::add_scalar(operand({s.rows, s.heads, s.queries}, 4, sums), 5);
  const ops::AttentionBlockGradients d =
      ops::attention_block_backward(dy, q, k, v, delta, lse, options);
  return {to_doubles(block.y), to_doubles(ops::exp(block.lse)), to_doubles(d.q), to_doubles(d.k),
          to_doubles(d.v)};
}

}  // namespace

TEST_CASE("blocks of attention on a GPU are the CPU's, also where a query sees none of the keys") {
  std::vector<ops::AttentionBlockOptions> all = {
      {.causal = false},
      {.first_query = 0, .first_key = 30},
      {.first_query = 0, .first_key = 100},
      {.window = 50, .softcap = 2, .first_query = 100, .first_key = 40}};
  std::vector<std::int64_t> first(70, 20);
  std::fill(first.begin() + 30, first.end(), 90);  // positions 60 to 129
  all.push_back({.first_query = 60,
                 .first_key = 50,
                 .documents = from_values(std::span<const std::int64_t>(first), {1, 70})});
  for (const ops::AttentionBlockOptions& options : all) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      INFO("positions " << options.first_query << ", " << options.first_key << " in "
                        << name_of(dtype));
      const std::int64_t dim = size_of(dtype) == 2 ? 32 : 6;
      const Sizes s = {1, 70, 50, 2, 1, dim, dim};
      next_order();
      const Found found = computed_block(s, dtype, options, cuda());
      const Found wanted = computed_block(s, dtype, options, cpu);
      if (size_of(dtype) == 2) {
        CHECK(share_of_largest(found, wanted) <= (dtype == DType::bf16 ? 1.2e-2 : 1.5e-3));
      } else {
        CHECK(difference(found, wanted) <= (dtype == DType::f32 ? 1e-5 : 1e-12));
      }
    }
  }
}

TEST_CASE("attention of a GPU has windows, caps and documents") {
  for (const Sizes& s : {Sizes{2, 67, 67, 2, 1, 6, 5}, Sizes{1, 3, 70, 4, 2, 4, 4}}) {
    for (const ops::CausalOptions& options : variants(s)) {
      const DType dtype = options.softcap == 3 ? DType::f64 : DType::f32;
      INFO(text_of(options) << " in " << name_of(dtype));
      next_order();
      const double found =
          difference(computed(s, dtype, options, cuda()), computed(s, dtype, options, cpu));
      CHECK(found <= (dtype == DType::f32 ? 1e-5 : 1e-12));
    }
  }
}

TEST_CASE("attention by tensor cores is the CPU's within the rounding of probabilities") {
  for (const Sizes& s : {Sizes{2, 70, 70, 2, 1, 16, 16}, Sizes{1, 3, 150, 2, 1, 48, 48},
                         Sizes{1, 70, 70, 1, 1, 128, 128}, Sizes{1, 20, 37, 1, 1, 256, 256}}) {
    for (const ops::CausalOptions& options : {ops::CausalOptions(), variants(s).back()}) {
      compare_by_tensor_cores(s, options, s.queries % 2 == 0 ? Operands::heads : Operands::whole);
    }
  }
  compare_by_tensor_cores({1, 20, 37, 1, 1, 32, 32}, {}, Operands::elements);
  // The first query sees all but the last key of a tile.
  compare_by_tensor_cores({1, 2, 128, 1, 1, 32, 32}, {}, Operands::whole);
}

TEST_CASE("attention of many sizes by tensor cores is the CPU's", "[.long]") {
  for (const Sizes& s : {Sizes{2, 150, 150, 2, 1, 16, 16}, Sizes{1, 129, 129, 1, 1, 64, 64},
                         Sizes{1, 3, 150, 4, 2, 48, 48}, Sizes{2, 70, 70, 2, 2, 80, 80},
                         Sizes{1, 140, 140, 1, 1, 128, 128}, Sizes{1, 40, 67, 2, 1, 192, 192},
                         Sizes{2, 49, 49, 1, 1, 256, 256}, Sizes{1, 1, 1, 1, 1, 32, 32}}) {
    for (const ops::CausalOptions& options : variants(s)) {
      compare_by_tensor_cores(s, options, s.queries % 2 == 0 ? Operands::heads : Operands::whole);
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
  const auto error_of = [](const std::vector<std::int64_t>& first, std::int64_t position = 0) {
    next_order();
    const Tensor x = on(cuda(), numbers({2, 4, 1, 4}, 1, DType::f32));
    const Tensor documents = on(cuda(), from_values(std::span<const std::int64_t>(first), {2, 4}));
    const Tensor y =
        position == 0
            ? ops::causal_attention(x, x, x, {.documents = documents})
            : ops::attention_block(x, x, x, {.first_query = position, .documents = documents}).y;
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
  CHECK(error_of({0, 0, 10, 10, 8, 8, 8, 11}, 8) == "no error");
  CHECK(error_of({0, 0, 10, 10, 9, 9, 9, 9}, 8) ==
        "attention_block: documents: token 8 of row 1 cannot be in the document that begins with "
        "token 9 (expected 0 to 8)");
  CHECK(error_of({0, 1, 10, 10, 8, 8, 8, 8}, 8) ==
        "attention_block: documents: token 9 of row 0 cannot be in the document that begins with "
        "token 1 (expected 0 or 9)");
}

namespace {

/// cuDNN computes attention while it lives, where it can.
struct WithLibrary {
  WithLibrary() {
    cuda();  // sets the variable when the plugin is loaded
    setenv("TESSERA_CUDA_ATTENTION", "auto", 1);
  }
  ~WithLibrary() { setenv("TESSERA_CUDA_ATTENTION", "own", 1); }
  WithLibrary(const WithLibrary&) = delete;
  WithLibrary& operator=(const WithLibrary&) = delete;
};

/// Calls of the library, forward and backward.
std::uint64_t calls_of_library(const Sizes& s, DType dtype, const ops::CausalOptions& options,
                               Operands operands = Operands::whole) {
  next_order();
  const std::uint64_t before = emulator_attentions();
  const Found found = computed(s, dtype, options, cuda(), operands);
  INFO(text_of(options));
  CHECK(share_of_largest(found, computed(s, dtype, options, cpu, operands)) <=
        (dtype == DType::bf16 ? 1.2e-2 : 1.5e-3));
  return emulator_attentions() - before;
}

}  // namespace

TEST_CASE("attention by cuDNN has the CPU's results, with windows, grouped queries and gaps") {
  const WithLibrary library;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Sizes grouped = {.rows = 2,
                           .queries = 19,
                           .keys = 19,
                           .heads = 4,
                           .key_heads = 2,
                           .head_dim = 16,
                           .value_dim = 16};
    for (const std::int64_t window : {0, 1, 5, 18, 40}) {
      CHECK(calls_of_library(grouped, dtype, {.window = window}) == 2);
    }
    CHECK(calls_of_library(grouped, dtype, {.scale = 0.3, .window = 7}, Operands::heads) == 2);
    const Sizes single = {.rows = 1,
                          .queries = 6,
                          .keys = 6,
                          .heads = 2,
                          .key_heads = 2,
                          .head_dim = 8,
                          .value_dim = 8};
    CHECK(calls_of_library(single, dtype, {}) == 2);
  }
}

TEST_CASE("cuDNN's description of the device is written where it is asked for") {
  const WithLibrary library;
  const std::string file = (std::filesystem::temp_directory_path() /
                            ("cudnn_device_" + std::to_string(getpid()) + ".json"))
                               .string();
  setenv("TESSERA_CUDA_DNN_DEVICE", file.c_str(), 1);
  const Tensor x = on(find_device("cuda:1"), numbers({1, 4, 1, 8}, 1, DType::bf16));
  to_doubles(ops::causal_attention(x, x, x, {}));  // the library's first use on this device
  unsetenv("TESSERA_CUDA_DNN_DEVICE");
  std::ifstream written(file);
  const std::string text(std::istreambuf_iterator<char>(written), {});
  CHECK_THAT(text, Catch::Contains(R"("deviceName": "emulated device", "deviceVer": 900)"));
  std::filesystem::remove(file);
}

TEST_CASE("attention that cuDNN does not take is our own") {
  const WithLibrary library;
  Sizes s = {.rows = 2,
             .queries = 9,
             .keys = 9,
             .heads = 2,
             .key_heads = 1,
             .head_dim = 16,
             .value_dim = 16};
  CHECK(calls_of_library(s, DType::bf16, {.softcap = 2}) == 0);
  CHECK(calls_of_library(s, DType::bf16, {.documents = documents_of({{4, 5}, {9}})}) == 0);
  CHECK(calls_of_library({.queries = 5, .keys = 9, .head_dim = 16, .value_dim = 16}, DType::bf16,
                         {}) == 0);
  CHECK(calls_of_library({.queries = 1, .keys = 1, .head_dim = 16, .value_dim = 16}, DType::bf16,
                         {}) == 0);
  CHECK(calls_of_library({.queries = 9, .keys = 9, .head_dim = 20, .value_dim = 20}, DType::bf16,
                         {}) == 0);
  // Backward has heads of at most 128 dims.
  CHECK(calls_of_library({.queries = 9, .keys = 9, .head_dim = 136, .value_dim = 136}, DType::bf16,
                         {}) == 1);
  // Engines whose results differ from call to call are not taken.
  emulator_refuse_determinism(true);
  s.queries = s.keys = 11;
  CHECK(calls_of_library(s, DType::bf16, {}) == 0);
  emulator_refuse_determinism(false);
  setenv("TESSERA_CUDA_ATTENTION", "own", 1);
  s.queries = s.keys = 13;
  CHECK(calls_of_library(s, DType::bf16, {}) == 0);
  setenv("TESSERA_CUDA_ATTENTION", "fast", 1);
  CHECK_THROWS_WITH(computed(s, DType::bf16, {}, cuda()),
                    Catch::Contains("TESSERA_CUDA_ATTENTION: is not a way to compute attention "
                                    "(expected auto or own, got fast)"));
}
