// Kernels of the plugin at sizes and values that the samples of the conformance suite do not have:
// several tiles, ties, groups without rows, parts of sums.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.device;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.conformance;

#include "conformance.hpp"
#include "control.hpp"
#include "device.hpp"
#include "results.hpp"

using namespace tessera;
using namespace tessera::testing;

TEST_CASE("lines of any length are sorted as the CPU sorts them, ties by their places") {
  for (const DType type : {DType::f32, DType::f64, DType::bf16, DType::i64, DType::u8}) {
    for (const char* descending : {"false", "true"}) {
      check_bits("sort", {some_of({2, 2500}, 40, type)},
                 std::string("dim=1, descending=") + descending);
      check_bits("sort", {some_of({1200, 2}, 900, type)},
                 std::string("dim=0, descending=") + descending);
      check_bits("topk", {some_of({3, 1500}, 7, type)},
                 std::string("k=600, dim=1, largest=") + descending);
    }
  }
  std::vector<float> values = {0, -0.0F, 3, std::numeric_limits<float>::quiet_NaN(), -0.0F, -1};
  values.push_back(std::numeric_limits<float>::infinity());
  values.push_back(-std::numeric_limits<float>::infinity());
  const Tensor x = from_values(std::span<const float>(values), {8});
  check_bits("sort", {x}, "dim=0, descending=false");
  check_bits("sort", {x}, "dim=0, descending=true");
  check_bits("topk", {ops::narrow(some_of({4, 9}, 5, DType::f32), 1, 1, 7)},
             "k=2, dim=1, largest=true");
}

TEST_CASE("elements of one index are added in their order") {
  for (const DType type : {DType::f32, DType::bf16, DType::f64}) {
    const Tensor indices = some_of({1500}, 6);
    check_bits("index_select_backward", {waves({1500, 3}, type), indices}, "dim=0, shape=[7, 3]");
    check_bits("index_select_backward", {waves({2, 1500, 2}, type), ops::cast(indices, DType::i32)},
               "dim=1, shape=[2, 7, 2]");
    check_bits("index_select", {waves({7, 3}, type), indices}, "dim=0");
    check_bits("scatter_add",
               {waves({6, 4, 3}, type), some_of({6, 1100, 2}, 4), waves({6, 1200, 3}, type)},
               "dim=1");
    check_bits("gather", {waves({6, 4, 3}, type), some_of({5, 9, 2}, 4)}, "dim=1");
    check_bits("embedding_backward",
               {waves({3, 500, 4}, type), some_of({3, 500}, 30), waves({31, 4}, type)},
               "whole=none");
    for (const Tensor& sum : {waves({31, 4}, type), ops::transpose(waves({4, 31}, type), 0, 1)}) {
      check_bits("embedding_backward_",
                 {sum, waves({3, 500, 4}, type), ops::cast(some_of({3, 500}, 30), DType::i32)},
                 "whole=none");
    }
  }
  check_bits("embedding_backward_",
             {waves({31, 4}), waves({40, 4}, DType::bf16), some_of({40}, 30)}, "whole=none");
  check_bits("scatter_add",
             {some_of({5}, 9), some_of({2100}, 5), ops::ones_like(some_of({2100}, 5))}, "dim=0");
}

TEST_CASE("rows that are taken move in pieces of 16 bytes where they can") {
  const auto moved = [](const Tensor& x, const Tensor& indices, std::int64_t dim) {
    next_order();
    const Tensor there = ops::index_select(to_gpu(x), to_gpu(indices), dim);
    CHECK(same_bits(there, ops::index_select(x, indices, dim)));
    return std::string(emulator_last_kernel());
  };
  const Tensor rows = some_of({50}, 7);
  CHECK(moved(waves({7, 24}, DType::bf16), rows, 0) == "take_16");
  CHECK(moved(waves({2, 7, 4}), ops::cast(rows, DType::i32), 1) == "take_16");
  CHECK(moved(waves({7, 2}, DType::f64), ops::narrow(rows, 0, 4, 1), 0) == "take_16");
  CHECK(moved(some_of({7, 48}, 250, DType::u8), rows, 0) == "take_16");
  CHECK(moved(waves({7, 20}, DType::bf16), rows, 0) == "take_2");
  CHECK(moved(waves({24, 7}, DType::bf16), rows, 1) == "take_2");
  CHECK(moved(waves({7}, DType::f64), rows, 0) == "take_8");
  const Tensor wide = to_gpu(waves({7, 33}));
  for (const std::int64_t first : {0, 1, 4}) {  // of rows whose beginnings are not pieces'
    const Tensor there = ops::index_select(ops::narrow(wide, 1, first, 8), to_gpu(rows), 0);
    CHECK(std::string(emulator_last_kernel()) == "take_4");
    CHECK(same_bits(there, ops::index_select(ops::narrow(waves({7, 33}), 1, first, 8), rows, 0)));
  }
  const Tensor even = to_gpu(waves({7, 36}));
  for (const std::int64_t first : {1, 4}) {
    const Tensor there = ops::index_select(ops::narrow(even, 1, first, 8), to_gpu(rows), 0);
    CHECK(std::string(emulator_last_kernel()) == (first == 1 ? "take_4" : "take_16"));
    CHECK(same_bits(there, ops::index_select(ops::narrow(waves({7, 36}), 1, first, 8), rows, 0)));
  }
}

TEST_CASE("rows of an embedding move in pieces of 16 bytes, and one launch looks at the indices") {
  const auto taken = [](const Tensor& table, const Tensor& indices, const std::string& whole,
                        std::int64_t shift = 0) {
    const Results all = results_of("embedding", {table, indices}, "whole=" + whole, shift);
    CHECK(same_bits(all.there[0], all.here[0]));
    return std::string(emulator_last_kernel());
  };
  for (const std::int64_t count : {1, 700, 5000}) {
    const Tensor indices = some_of({count}, 31);
    CHECK(taken(waves({31, 24}, DType::bf16), indices, "none") == "embedding_pieces");
    CHECK(taken(waves({31, 4}), ops::cast(indices, DType::i32), "none") == "embedding_pieces");
    CHECK(taken(waves({31, 20}, DType::bf16), indices, "none") == "embedding_f32");
    CHECK(taken(waves({31, 24}, DType::bf16), indices, "none", 1) == "embedding_f32");
  }
  const std::string part = "bf16[62, 24] [Shard(0)] on mesh(m=2) of ranks 1 0";
  CHECK(taken(waves({31, 24}, DType::bf16), some_of({300}, 62), part) == "embedding_pieces");
  const Tensor indices = some_of({6000}, 31);
  indices.data<std::int64_t>()[5990] = 40;
  indices.data<std::int64_t>()[4242] = -1;
  const Tensor table = to_gpu(waves({31, 24}, DType::bf16));
  CHECK_THROWS_WITH(to_doubles(ops::embedding(table, to_gpu(indices))),
                    Catch::Contains("embedding: index -1 is out of range (expected 0 to 30)"));
}

TEST_CASE("an index of index_select that is out of range is an error in the CPU's words") {
  next_order();
  const Tensor table = to_gpu(waves({5, 3}));
  CHECK_THROWS_WITH(to_doubles(ops::index_select(table, to_gpu(some_of({20}, 9)), 0)),
                    Catch::Contains("index_select: an index is out of range (expected 0 to 4)"));
}

TEST_CASE("weights in NF4 codes are the CPU's, of a whole matrix and of a part") {
  plugin::host().load(QLORA_PLUGIN);
  load_operator("nf4_dequantize");
  const Tensor codes = ops::cast(ops::mul_scalar(some_of({6, 160}, 256), 1), DType::u8);
  const Tensor scales =
      ops::cast(ops::sub(some_of({6, 5}, 200), full({}, 100, DType::i64)), DType::i8);
  const Tensor factors = ops::add(waves({3}), full({}, 3));
  const Tensor mean = full({1}, 0.25);
  check_bits("nf4_dequantize", {codes, scales, factors, mean}, "first_block=0, row_blocks=5");
  check_bits("nf4_dequantize", {codes, scales, factors, mean}, "first_block=250, row_blocks=40");
  const Tensor part = ops::narrow(codes, 1, 32, 64);
  check_bits("nf4_dequantize", {part, ops::narrow(scales, 1, 1, 2), factors, mean},
             "first_block=1, row_blocks=5");
  CHECK(std::string(emulator_last_kernel()) == "nf4_pieces");
  check_bits("nf4_dequantize", {codes, scales, factors, mean}, "first_block=3, row_blocks=5", 1);
  CHECK(std::string(emulator_last_kernel()) == "nf4_values");
}

TEST_CASE("8-bit floating codes, their scales and what is left of them are the CPU's") {
  const auto arguments = [](const std::string& code, const std::string& scales,
                            const std::string& powers, const std::string& order) {
    return "dtype=" + code + ", scales=" + scales + ", powers_of_two=" + powers +
           ", order=" + order;
  };
  for (const char* order : {"as_x", "turned", "both"}) {
    for (const DType type : {DType::f32, DType::bf16, DType::f64}) {
      const Tensor x = ops::mul_scalar(waves({20, 70}, type), 3.5);
      for (const char* scales : {"whole", "rows", "columns"}) {
        for (const char* powers : {"true", "false"}) {
          for (const char* code : {"f8e4m3", "f8e5m2"}) {
            check_bits("quantize_f8", {x, Tensor()}, arguments(code, scales, powers, order));
          }
        }
        check_bits("quantize_f8", {ops::view(x, {4, 5, 70}), Tensor()},
                   arguments("f8e4m3", scales, "true", order));
      }
      check_bits("quantize_f8", {ops::transpose(x, 0, 1), full({1}, 700)},
                 arguments("f8e4m3", "whole", "false", order));
    }
    const Tensor parts = waves({70, 700});  // which are several blocks'
    parts.data<float>()[parts.numel() - 1] = 9;
    check_bits("quantize_f8", {parts, Tensor()}, arguments("f8e4m3", "whole", "false", order));
    const Tensor rows_of_parts = waves({2, 33000});
    rows_of_parts.data<float>()[rows_of_parts.numel() - 1] = 9;
    check_bits("quantize_f8", {rows_of_parts, Tensor()},
               arguments("f8e5m2", "rows", "true", order));
    check_bits("quantize_f8", {zeros({0, 3}), Tensor()},
               arguments("f8e4m3", "whole", "false", order));
    std::vector<float> values = {1, std::numeric_limits<float>::quiet_NaN(), 3,
                                 0, std::numeric_limits<float>::infinity(),  2};
    check_bits("quantize_f8", {from_values(std::span<const float>(values), {2, 3}), Tensor()},
               arguments("f8e4m3", "rows", "true", order));
  }
}

TEST_CASE("codes in pieces are the CPU's, also of what is no number or too large") {
  const auto arguments = [](const std::string& code, const std::string& scales,
                            const std::string& order) {
    return "dtype=" + code + ", scales=" + scales + ", powers_of_two=true, order=" + order;
  };
  // Each bf16: subnormal, infinite and no numbers too.
  const Tensor all = empty({256, 256}, DType::bf16);
  for (std::int64_t i = 0; i < all.numel(); ++i) {
    static_cast<std::uint16_t*>(all.raw_data())[i] = static_cast<std::uint16_t>(i * 40503 % 65536);
  }
  // Rows and columns differ in their scales.
  const Tensor matrix = ops::mul_scalar(waves({48, 80}), 1.5);
  for (std::int64_t i = 0; i < matrix.numel(); ++i) {
    matrix.data<float>()[i] *=
        static_cast<float>(1 << (i / 80 % 4)) / static_cast<float>(1 << (i % 5));
  }
  for (const char* code : {"f8e4m3", "f8e5m2"}) {
    for (const char* order : {"as_x", "turned", "both"}) {
      const float scale = std::string(order) == "as_x"   ? 3e-36F
                          : std::string(order) == "both" ? 7e20F
                                                         : 1;
      check_bits("quantize_f8", {all, full({}, scale)}, arguments(code, "whole", order));
      CHECK(std::string(emulator_last_kernel()) == "quantize_pieces_bf16");
      for (const char* scales : {"rows", "columns", "whole"}) {
        for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
          const Tensor x = ops::cast(matrix, type);
          check_bits("quantize_f8", {x, Tensor()}, arguments(code, scales, order));
          CHECK(std::string(emulator_last_kernel()) ==
                "quantize_pieces_" + std::string(name_of(type)));
          check_bits("quantize_f8", {x, Tensor()}, arguments(code, scales, order), 1);
          CHECK(std::string(emulator_last_kernel()) ==
                (std::string(order) == "as_x" ? "quantize_rows" : "quantize_tiles"));
        }
      }
    }
  }
  const Tensor rows = waves({24, 32});  // of which the turned ones are no pieces
  check_bits("quantize_f8", {rows, Tensor()}, arguments("f8e4m3", "whole", "both"));
  CHECK(std::string(emulator_last_kernel()) == "quantize_tiles");
  const Tensor parts = waves({64, 512});
  parts.data<float>()[parts.numel() - 1] = 9;
  check_bits("quantize_f8", {ops::cast(parts, DType::bf16), Tensor()},
             arguments("f8e4m3", "whole", "both"));
  const Tensor long_rows = waves({2, 33008}, DType::bf16);
  check_bits("quantize_f8", {long_rows, Tensor()}, arguments("f8e4m3", "rows", "as_x"));
}

TEST_CASE("products of codes with one factor, one for each row, and one for each block") {
  const auto codes = [](const Dims& shape) {
    return ops::cast(ops::mul_scalar(waves(shape), 200), DType::f8e4m3);
  };
  const auto factors = [](const Dims& shape) {
    return ops::mul_scalar(ops::add(waves(shape), full({}, 2)), 1e-3);
  };
  const Tensor x = codes({2, 40, 70}), w = codes({66, 70}), dy = codes({2, 40, 66});
  for (const std::string type : {"f32", "bf16"}) {
    const double tolerance = type == "bf16" ? 2e-2 : 1e-5;
    const std::string arguments = "dtype=" + type;
    const std::vector<std::pair<Dims, Dims>> cases = {{{}, {}},
                                                      {{2, 40, 1}, {66, 1}},
                                                      {{1, 1, 5}, {6, 5}},
                                                      {{1, 1, 4}, {4, 4}},
                                                      {{2, 8, 70}, {1, 70}}};
    for (const auto& [of_x, of_w] : cases) {
      check_near("scaled_linear", {x, factors(of_x), w, factors(of_w)}, arguments, tolerance);
    }
    check_near("scaled_linear_grad_input", {dy, factors({2, 40, 1}), w, factors({1, 70})},
               arguments, tolerance);
    check_near("scaled_linear_grad_input", {dy, factors({}), w, factors({66, 1})}, arguments,
               tolerance);
    check_near("scaled_linear_grad_weight", {dy, factors({1, 1, 66}), x, factors({1, 1, 70})},
               arguments, tolerance);
    check_near("scaled_linear_grad_weight", {dy, factors({2, 4, 1}), x, factors({})}, arguments,
               tolerance);
    check_near("scaled_linear_grad_input_",
               {waves({2, 40, 70}, type == "bf16" ? DType::bf16 : DType::f32), dy,
                factors({2, 40, 1}), w, factors({1, 70})},
               "", tolerance);
    const Tensor sum = waves({66, 70}, type == "bf16" ? DType::bf16 : DType::f32);
    check_near("scaled_linear_grad_weight_", {sum, dy, factors({1, 1, 66}), x, factors({1, 1, 70})},
               "", tolerance);
    check_near("scaled_linear_grad_weight_",
               {ops::transpose(waves({70, 66}), 0, 1), dy, factors({2, 4, 1}), x, factors({})}, "",
               1e-5);
  }
}

/// Codes and factors of the products that cuBLASLt has kernels for, and of some that it has not.
struct Coded {
  DType of_dy = DType::f8e5m2;
  std::int64_t rows = 40;  // twice

  Tensor codes(const Dims& shape, DType type = DType::f8e4m3) const {
    return ops::cast(ops::mul_scalar(waves(shape), 200), type);
  }
  Tensor factors(const Dims& shape) const {
    return ops::mul_scalar(ops::add(waves(shape), full({}, 2)), 1e-3);
  }
  Tensor x() const { return codes({2, rows, 80}); }
  Tensor w() const { return codes({112, 80}); }
  Tensor dy() const { return codes({2, rows, 112}, of_dy); }
};

/// How many products of cuBLASLt and launches of kernels the call needs; its result is the CPU's.
std::pair<std::uint64_t, std::uint64_t> queued_by(const char* name, const std::vector<Tensor>& in,
                                                  const std::string& arguments, double tolerance) {
  const std::uint64_t products = emulator_products(), launches = emulator_launches();
  check_near(name, in, arguments, tolerance);
  return {emulator_products() - products, emulator_launches() - launches};
}

/// The same for codes of which the call gets a view, made where they are: copies are contiguous.
std::pair<std::uint64_t, std::uint64_t> queued_by_view(const char* name, const Tensor& x,
                                                       const Tensor& w,
                                                       Tensor (*view)(const Tensor&)) {
  const Op& op = find_op(name);
  const Attributes attributes = parse_arguments(op, "dtype=f32");
  const Tensor one = full({}, 1e-3);
  const std::vector<Tensor> there = {view(to_gpu(x)), to_gpu(one), to_gpu(w), to_gpu(one)};
  const std::uint64_t products = emulator_products(), launches = emulator_launches();
  const Tensor found = ops::to_device(call(op, there, attributes)[0], cpu);
  CHECK(largest_difference(found, call(op, {view(x), one, w, one}, attributes)[0]) <= 1e-5);
  return {emulator_products() - products, emulator_launches() - launches};
}

TEST_CASE(
    "products of codes are cuBLASLt's, with turned copies of what is not contiguous along k") {
  using Queued = std::pair<std::uint64_t, std::uint64_t>;
  const Coded c;
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    const double tolerance = type == DType::f32 ? 1e-5 : 2e-2;
    const std::string dtype = "dtype=" + std::string(name_of(type));
    const auto result = [&](const Dims& shape) { return waves(shape, type); };
    for (const bool each : {false, true}) {
      const auto of = [&](const Dims& shape) { return c.factors(each ? shape : Dims{}); };
      const Tensor x_rows = of({2, 40, 1}), w_rows = of({112, 1}), w_columns = of({1, 80});
      const Tensor dy_rows = of({2, 40, 1}), dy_columns = of({1, 1, 112}),
                   x_columns = of({1, 1, 80});
      CHECK(queued_by("scaled_linear", {c.x(), x_rows, c.w(), w_rows}, dtype, tolerance) ==
            Queued(1, 0));
      CHECK(queued_by("scaled_linear_grad_input", {c.dy(), dy_rows, c.w(), w_columns}, dtype,
                      tolerance) == Queued(1, 1));
      CHECK(queued_by("scaled_linear_grad_weight", {c.dy(), dy_columns, c.x(), x_columns}, dtype,
                      tolerance) == Queued(1, 2));
      CHECK(queued_by("scaled_linear_grad_input_",
                      {result({2, 40, 80}), c.dy(), dy_rows, c.w(), w_columns}, "",
                      tolerance) == Queued(1, 1));
      CHECK(queued_by("scaled_linear_grad_weight_",
                      {result({112, 80}), c.dy(), dy_columns, c.x(), x_columns}, "",
                      tolerance) == Queued(1, 2));
    }
  }
  // One factor with the codes' dims is one for all.
  CHECK(queued_by("scaled_linear", {c.x(), c.factors({1, 1, 1}), c.w(), c.factors({})}, "dtype=f32",
                  1e-5) == Queued(1, 0));
  // The same sizes with codes of another type.
  const Coded other = {.of_dy = DType::f8e4m3};
  CHECK(queued_by("scaled_linear_grad_weight", {other.dy(), c.factors({}), c.x(), c.factors({})},
                  "dtype=f32", 1e-5) == Queued(1, 2));
  // Of two turned operands, only one is not contiguous along k.
  const auto turned = [](const Tensor& x) { return ops::transpose(x, 0, 1); };
  CHECK(queued_by_view("scaled_linear_grad_weight", c.codes({112, 80}), c.codes({80, 64}),
                       turned) == Queued(1, 1));
}

TEST_CASE("products of codes that cuBLASLt has no kernels for are our own kernel's") {
  using Queued = std::pair<std::uint64_t, std::uint64_t>;
  const Queued own(0, 1);
  const Coded c;
  const Tensor one = c.factors({});
  const auto linear = [](const Tensor& x, const Tensor& of_x, const Tensor& w, const Tensor& of_w,
                         const char* dtype = "dtype=f32") {
    return queued_by("scaled_linear", {x, of_x, w, of_w}, dtype, 1e-5);
  };
  const auto e5m2 = [&](const Dims& shape) { return c.codes(shape, DType::f8e5m2); };
  CHECK(linear(e5m2({16, 16}), one, e5m2({16, 16}), one) == own);
  CHECK(linear(c.x(), one, c.w(), one, "dtype=f64") == own);
  CHECK(linear(c.codes({40, 80}), one, c.w(), one) == own);
  CHECK(linear(c.x(), one, c.codes({40, 80}), one) == own);
  CHECK(linear(c.codes({16, 40}), one, c.codes({16, 40}), one) == own);
  const auto first = [](const Tensor& x) { return ops::narrow(x, 1, 0, 64); };
  const auto fourth = [](const Tensor& x) { return ops::narrow(x, 1, 4, 64); };
  const Tensor w = c.codes({16, 64});
  CHECK(queued_by_view("scaled_linear", c.codes({16, 72}), w, first) == own);
  CHECK(queued_by_view("scaled_linear", c.codes({16, 80}), w, fourth) == own);
  CHECK(queued_by_view("scaled_linear_grad_weight", c.codes({16, 72}), w, first) == own);
  CHECK(queued_by_view("scaled_linear_grad_weight", c.codes({16, 80}), w, fourth) == own);
  CHECK(linear(c.x(), c.factors({2, 40, 1}), c.w(), one) == own);
  CHECK(linear(c.x(), c.factors({2, 8, 1}), c.w(), c.factors({112, 1})) == own);
  CHECK(linear(c.x(), c.factors({1, 1, 5}), c.w(), c.factors({1, 5})) == own);
  // As on a GPU without products in 8 bits. The library has not been asked for this size.
  emulator_refuse_products(true);
  CHECK(queued_by("scaled_linear_grad_weight", {e5m2({48, 16}), one, c.codes({48, 32}), one},
                  "dtype=f32", 1e-5) == own);
  emulator_refuse_products(false);
}

TEST_CASE("algorithms of products of codes may be measured") {
  const Coded c;
  setenv("TESSERA_CUDA_PRODUCTS", "measured", 1);
  const std::vector<Tensor> in = {c.codes({96, 16}), c.factors({}), c.codes({96, 32}),
                                  c.factors({})};
  CHECK(queued_by("scaled_linear_grad_weight", in, "dtype=f32", 1e-5).first == 4 * 6 + 1);
  CHECK(queued_by("scaled_linear_grad_weight", in, "dtype=f32", 1e-5).first == 1);
  unsetenv("TESSERA_CUDA_PRODUCTS");
}

TEST_CASE("a step of AdamW in bf16 is rounded with the CPU's random numbers") {
  const auto in = [](DType gradient) {
    return std::vector<Tensor>{waves({5, 300}, DType::bf16), waves({5, 300}, gradient),
                               ops::mul_scalar(waves({5, 300}, DType::bf16), 0.1),
                               ops::abs(waves({5, 300}, DType::bf16)), Tensor()};
  };
  const std::string arguments =
      "lr=0.01, beta1=0.9, beta2=0.99, eps=1e-08, weight_decay=0.1, grad_scale=1, step=4, "
      "amsgrad=false, maximize=false, seed=7, stream=3, whole=none";
  for (const DType gradient : {DType::f32, DType::bf16}) {
    const Results all = results_of("adamw_rounded_", in(gradient), arguments);
    // The step itself may differ in the last place, which another rounding shows only near a limit.
    for (const std::size_t i : {0U, 2U, 3U}) {
      const std::vector<double> found = to_doubles(all.there[i]), wanted = to_doubles(all.here[i]);
      std::size_t same = 0;
      for (std::size_t k = 0; k < wanted.size(); ++k) same += found[k] == wanted[k] ? 1 : 0;
      CHECK(same >= wanted.size() - 3);
    }
  }
}

TEST_CASE(
    "a step of Adam with 8-bit state has the CPU's codes and scales, for rows of several blocks") {
  const auto in = [](DType type, DType gradient) {
    const Dims shape = {3, 700};
    const auto codes = [&] { return some_of(shape, 256, DType::u8); };
    const auto scales = [&] { return ops::abs(waves(ops::quantized_blocks(shape), type)); };
    return std::vector<Tensor>{
        waves(shape, type), spaced(waves(shape, gradient)), codes(), scales(), codes(), scales()};
  };
  const std::string arguments =
      "lr=0.01, beta1=0.9, beta2=0.99, eps=1e-3, weight_decay=0.1, grad_scale=2, step=4, "
      "amsgrad=false, maximize=false";
  for (const char* name : {"adam_8bit_", "adamw_8bit_"}) {
    for (const DType type : {DType::f32, DType::f64}) {
      const Results all = results_of(name, in(type, type), arguments);
      for (const std::size_t i : {0U, 3U, 5U}) {
        CHECK(largest_difference(ops::to_device(all.there[i], cpu), all.here[i]) <= 2e-6);
      }
      // The step itself may differ in the last place, which the code shows near a border only.
      for (const std::size_t i : {2U, 4U}) {
        const std::vector<double> found = to_doubles(all.there[i]),
                                  wanted = to_doubles(all.here[i]);
        std::size_t same = 0;
        for (std::size_t k = 0; k < wanted.size(); ++k) {
          same += found[k] == wanted[k] ? 1 : 0;
          CHECK(std::abs(found[k] - wanted[k]) <= 1);
        }
        CHECK(same >= wanted.size() - 3);
      }
    }
    CHECK_THROWS_WITH(results_of(name, in(DType::bf16, DType::bf16), arguments),
                      Catch::Contains("a parameter of type bf16 with a gradient of type bf16"));
  }
}

TEST_CASE("a step of Lion has the CPU's numbers for many parameters of both types") {
  const auto step = [](Device device) {
    std::vector<Tensor> parameters, gradients, averages;
    for (std::int64_t i = 0; i < 40; ++i) {
      const DType type = i % 5 == 4 ? DType::f64 : DType::f32;
      for (std::vector<Tensor>* list : {&parameters, &gradients, &averages}) {
        list->push_back(copied_to(waves({1 + 37 * i}, type), device));
      }
    }
    ops::lion_(parameters, gradients, averages,
               {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.98, .weight_decay = 0.1, .grad_scale = 0.5});
    std::vector<double> all;
    for (const std::vector<Tensor>& list : {parameters, averages}) {
      for (const Tensor& x : list) {
        for (const double value : to_doubles(x)) all.push_back(value);
      }
    }
    return all;
  };
  next_order();
  const std::vector<double> wanted = step(cpu), found = step(cuda());
  REQUIRE(wanted.size() == found.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    REQUIRE(std::abs(found[i] - wanted[i]) <= 2e-6 * (1 + std::abs(wanted[i])));
  }
}

TEST_CASE("products and recurrences along lines of several tiles are the CPU's") {
  check_bits("cumprod", {some_of({3, 700}, 3)}, "dim=1");
  check_bits("cumprod", {ops::add_scalar(some_of({600, 2}, 2), 1)}, "dim=0");
  const auto near_one = [](const Dims& shape, DType type) {
    return ops::add_scalar(ops::mul_scalar(waves(shape, type), 0.05), 1);
  };
  check_near("cumprod", {near_one({3, 700}, DType::f32)}, "dim=1", 1e-5);
  check_near("cumprod", {ops::transpose(near_one({5, 300}, DType::f64), 0, 1)}, "dim=0", 1e-12);
  check_near("logcumsumexp", {waves({3, 700})}, "dim=1", 1e-5);
  check_near("logcumsumexp", {ops::mul_scalar(waves({300, 5}), 100)}, "dim=0", 1e-4);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {-infinity, -infinity, 1, 500, infinity, 2,
                                     infinity,  1,         0, 3,   -2,       infinity};
  const Tensor x = from_values(std::span<const float>(values), {2, 6});
  check_bits("logcumsumexp", {ops::narrow(x, 0, 0, 1)}, "dim=1");
  const std::vector<Tensor> one = {ops::narrow(x, 0, 0, 1), ops::narrow(x, 0, 1, 1)};
  for (const char* name : {"linear_recurrence", "linear_recurrence_from_end"}) {
    check_near(name, {waves({300, 700}), waves({300, 700})}, "dim=1", 1e-5);
    check_near(name,
               {ops::transpose(waves({5, 300}, DType::f64), 0, 1), waves({300, 5}, DType::f64)},
               "dim=0", 1e-12);
    const Results infinite = results_of(name, {waves({1, 6}), one[1]}, "dim=1");
    CHECK(same_bits(ops::isfinite(infinite.there[0]), ops::isfinite(infinite.here[0])));
  }
}

TEST_CASE("sums along lines of several tiles, in both directions, are the CPU's") {
  for (const char* name : {"cumsum", "cumsum_from_end"}) {
    check_bits(name, {some_of({3, 700}, 900)}, "dim=1");
    check_bits(name, {some_of({600, 2, 3}, 40, DType::u8)}, "dim=0");
    check_near(name, {waves({3, 700})}, "dim=1", 1e-5);
    check_near(name, {ops::transpose(waves({5, 300}, DType::f64), 0, 1)}, "dim=0", 1e-12);
  }
}

TEST_CASE("logarithms of sums of exponentials do not overflow") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {-infinity, -infinity, -infinity, 1,         infinity, 2,
                                     500,       499,       -500,      -infinity, 3,        3};
  check_bits("logsumexp", {from_values(std::span<const float>(values).first(6), {2, 3})},
             "dims=[1], keepdim=false");
  check_near("logsumexp", {from_values(std::span<const float>(values).subspan(6), {2, 3})},
             "dims=[1], keepdim=true", 1e-4);
  check_near("logsumexp", {waves({40, 3, 700})}, "dims=[0, 2], keepdim=false", 1e-5);
}
