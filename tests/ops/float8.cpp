// i8, f8e4m3 and f8e5m2: conversions as torch's, movement by operators and between ranks, and what
// is refused.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.checkpoint;

using namespace tessera;
using testing::check;
using testing::error_of;

namespace {

constexpr DType stored_only[] = {DType::i8, DType::f8e4m3, DType::f8e5m2};

/// Bits, with one NaN for all of a floating type.
std::vector<std::string> codes_of(const Tensor& x) {
  std::vector<std::string> codes;
  const std::vector<double> values = to_doubles(x);
  const auto* bytes = static_cast<const char*>(x.raw_data());
  const std::size_t size = size_of(x.dtype());
  for (std::size_t i = 0; i < values.size(); ++i) {
    codes.push_back(std::isnan(values[i]) ? "NaN" : std::string(bytes + i * size, size));
  }
  return codes;
}

Tensor all_codes(DType dtype, const Dims& shape = {16, 16}) {
  const Tensor x = empty(shape, dtype);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    static_cast<std::uint8_t*>(x.raw_data())[i] = static_cast<std::uint8_t>(i);
  }
  return x;
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  const Tensor x = ops::contiguous(a);
  const Tensor y = ops::contiguous(b);
  const std::size_t bytes = static_cast<std::size_t>(x.numel()) * size_of(x.dtype());
  return x.dtype() == y.dtype() && x.shape() == y.shape() &&
         (bytes == 0 || std::memcmp(x.raw_data(), y.raw_data(), bytes) == 0);
}

}  // namespace

TEST_CASE("conversions from and to the 8-bit types are torch's") {
  const SafetensorsFile file(TESSERA_REFERENCE_DATA "/float8.safetensors");
  int compared = 0;
  for (const auto& [name, info] : file.tensors()) {
    const std::size_t middle = name.find("_to_");
    if (middle == std::string::npos || name.starts_with("in_range")) {
      continue;
    }
    INFO(name);
    const Tensor from = file.read("from_" + name.substr(0, middle));
    const Tensor expected = file.read(name);
    REQUIRE(name.substr(middle + 4) == name_of(expected.dtype()));
    CHECK(codes_of(ops::cast(from, expected.dtype())) == codes_of(expected));
    ++compared;
  }
  CHECK(compared == 26);
  CHECK(codes_of(ops::cast(file.read("in_range"), DType::i8)) ==
        codes_of(file.read("in_range_to_i8")));
  const Tensor wide = from_values({300., -1e30, 1e30, std::nan("")}, {4});
  CHECK(to_doubles(ops::cast(wide, DType::i8)) == std::vector<double>{127, -128, 127, 0});
}

TEST_CASE("elements of the 8-bit types are moved, filled, joined and printed") {
  for (const DType dtype : stored_only) {
    INFO(name_of(dtype));
    CHECK(dtype_from_name(name_of(dtype)) == dtype);
    CHECK(size_of(dtype) == 1);
    const Tensor x = all_codes(dtype);
    CHECK(same_bytes(ops::clone(ops::transpose(ops::transpose(x, 0, 1), 0, 1)), x));
    const Tensor turned = ops::contiguous(ops::transpose(x, 0, 1));
    CHECK(static_cast<std::uint8_t*>(turned.raw_data())[1] == 16);
    CHECK(same_bytes(
        ops::cat(std::vector<Tensor>{ops::narrow(x, 0, 0, 3), ops::narrow(x, 0, 3, 13)}, 0), x));
    CHECK(same_bytes(ops::view(ops::view(x, {256}), {16, 16}), x));
    const Tensor rows = from_values<std::int64_t>({2, 0}, {2});
    CHECK(same_bytes(
        ops::index_select(x, rows, 0),
        ops::cat(std::vector<Tensor>{ops::narrow(x, 0, 2, 1), ops::narrow(x, 0, 0, 1)}, 0)));
    const Tensor filled = empty({3}, dtype);
    ops::fill_(filled, -2);
    CHECK(to_doubles(filled) == std::vector<double>{-2, -2, -2});
    CHECK(to_doubles(full({2}, 3, dtype)) == std::vector<double>{3, 3});
    CHECK(to_doubles(zeros({2}, dtype)) == std::vector<double>{0, 0});
    ops::copy_(filled, from_values({0.5F, 1.0F, -3.0F}, {3}));
    CHECK(to_doubles(filled) ==
          (dtype == DType::i8 ? std::vector<double>{0, 1, -3} : std::vector<double>{0.5, 1, -3}));
    CHECK(to_string(full({2}, 3, dtype)) == std::string(name_of(dtype)) + "[2] {3, 3}");
  }
  CHECK_FALSE(is_floating(DType::i8));
  CHECK(is_floating(DType::f8e4m3));
  CHECK(is_floating(DType::f8e5m2));
}

TEST_CASE("a cast to an 8-bit type passes its gradient") {
  Tensor x = from_values({1.0F, 300.0F, -0.1F}, {3});
  x.set_requires_grad();
  const Tensor y = ops::cast(ops::cast(x, DType::f8e4m3), DType::f32);
  backward(ops::sum(ops::mul(y, from_values({1.0F, 2.0F, 3.0F}, {3}))));
  CHECK(to_doubles(x.grad()) == std::vector<double>{1, 2, 3});
}

TEST_CASE("arithmetic with the 8-bit types is refused, on every device and in every layout") {
  for (const DType dtype : stored_only) {
    INFO(name_of(dtype));
    const std::string type(name_of(dtype));
    const Tensor x = zeros({16, 16}, dtype);
    const std::string rest = " has the type " + type +
                             ", which is only stored and converted (expected a type to compute "
                             "with); cast it to f32 first";
    CHECK(error_of([&] { ops::mul(x, x); }) == "mul: operand 'a'" + rest);
    CHECK(error_of([&] { ops::sum(x); }) == "sum: operand 'x'" + rest);
    CHECK(error_of([&] { ops::matmul(x, x); }).ends_with(rest));
    const Tensor meta_x = empty({16, 16}, dtype, meta);
    CHECK(error_of([&] { ops::mul(meta_x, meta_x); }) == "mul: operand 'a'" + rest);
    CHECK(error_of([&] {
            ops::add(x, zeros({16, 16}));
          }).find("have no common type, as " + type + " is only stored; cast it to f32 first") !=
          std::string::npos);
  }
  CHECK_THROWS_AS(promote(DType::f8e4m3, DType::f8e5m2), Error);
  CHECK(promote(DType::f8e4m3, DType::f8e4m3) == DType::f8e4m3);
}

TEST_CASE("ranks move elements of the 8-bit types and refuse to reduce them") {
  collective::run_threads(2, [](collective::World& world) {
    const DeviceMesh mesh = DeviceMesh::make({"shard"}, {2});
    for (const DType dtype : stored_only) {
      const Tensor whole = all_codes(dtype, {15, 16});  // uneven
      const Tensor rows = distribute(whole, Layout::make(mesh, {Shard(0)}));
      check(rows.local().size(0) == (world.rank() == 0 ? 8 : 7), "rows");
      check(same_bytes(full_tensor(rows), whole), "all_gather");
      const Tensor columns = redistribute(rows, Layout::make(mesh, {Shard(1)}));
      check(same_bytes(full_tensor(columns), whole), "all_to_all");
      check(error_of([&] { ops::mul(rows, rows); }).starts_with("mul: operand 'a' has the type"),
            "distributed");
      const Tensor terms = from_local(whole, Layout::make(mesh, {Partial()}));
      check(error_of([&] { full_tensor(terms); }).find("cast") != std::string::npos, "reduce");
    }
  });
}

namespace {

/// quantize_f8's codes and factors, `scales` "whole", "rows" or "columns", `order` "as_x", "turned"
/// or "both".
Tensors quantized(const Tensor& x, DType type, const std::string& scales, bool powers_of_two,
                  const Tensor& scale = {}, const std::string& order = "as_x") {
  const Op& op = find_op("quantize_f8");
  return call(op, {x, scale},
              attributes_from_text(*op.arguments,
                                   "dtype=" + std::string(name_of(type)) + ", scales=" + scales +
                                       ", powers_of_two=" + (powers_of_two ? "true" : "false") +
                                       ", order=" + order,
                                   "test"));
}

Tensor scaled(const char* name, const Tensors& a, const Tensors& b, DType type) {
  const Op& op = find_op(name);
  return call_one(
      op, {a[0], a[1], b[0], b[1]},
      attributes_from_json(*op.arguments, R"({"dtype": ")" + std::string(name_of(type)) + "\"}",
                           "test"));
}

/// Numbers of many magnitudes, and zeros.
Tensor spread(const Dims& shape, DType type, double shift) {
  const Tensor x = empty(shape, DType::f32);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const auto at = static_cast<double>(i);
    x.data<float>()[i] =
        i % 11 == 3 ? 0
                    : static_cast<float>(std::exp(3 * std::sin(0.37 * at)) * std::cos(at + shift));
  }
  return ops::cast(x, type);
}

/// The scale by operators: the largest code / max(amax, 1e-12) in f64, as f32.
Tensor composed_scale(const Tensor& x, DType type, const Dims& dims, bool powers_of_two) {
  const Tensor amax = ops::cast(
      ops::maximum(ops::amax(x, dims, true), ops::neg(ops::amin(x, dims, true))), DType::f64);
  const double most = type == DType::f8e4m3 ? 448 : 57344;
  const Tensor scale = ops::cast(
      ops::div(full({}, most, DType::f64), ops::maximum(amax, full({}, 1e-12, DType::f64))),
      DType::f32);
  return powers_of_two ? ops::exp2(ops::floor(ops::log2(scale))) : scale;
}

Tensor composed_codes(const Tensor& x, const Tensor& scale, DType type) {
  const double most = type == DType::f8e4m3 ? 448 : 57344;
  return ops::cast(ops::clamp(ops::mul(ops::cast(x, DType::f32), scale), -most, most), type);
}

}  // namespace

TEST_CASE("quantize_f8 is the scale, the product, the limits and the rounding, bit for bit") {
  for (const DType type : {DType::f8e4m3, DType::f8e5m2}) {
    for (const DType of : {DType::f32, DType::bf16}) {
      for (const auto& [scales, dims] : std::vector<std::pair<std::string, Dims>>{
               {"whole", {0, 1, 2}}, {"rows", {2}}, {"columns", {0, 1}}}) {
        INFO(name_of(type) << " of " << name_of(of) << ", " << scales);
        const Tensor x = spread({3, 5, 70}, of, 1);
        for (const bool powers_of_two : {false, true}) {
          const Tensor scale = composed_scale(x, type, dims, powers_of_two);
          const Tensors found = quantized(x, type, scales, powers_of_two);
          CHECK(same_bytes(found[0], composed_codes(x, scale, type)));
          CHECK(same_bytes(found[1], ops::reciprocal(scale)));
        }
      }
      const Tensor x = spread({4, 6}, of, 2);
      const Tensor given = full({}, 300);
      const Tensors found = quantized(x, type, "whole", false, given);
      CHECK(same_bytes(found[0], composed_codes(x, given, type)));
      CHECK(to_doubles(found[1]) == to_doubles(ops::reciprocal(given)));
      CHECK(same_bytes(quantized(ops::transpose(x, 0, 1), type, "rows", true)[0],
                       ops::transpose(quantized(x, type, "columns", true)[0], 0, 1)));
    }
  }
  const Tensor zero = quantized(zeros({2, 3}), DType::f8e4m3, "whole", false)[0];
  CHECK(to_doubles(zero) == std::vector<double>(6, 0));
  CHECK(quantized(zeros({0, 3}), DType::f8e4m3, "rows", true)[1].shape() == Dims{0, 1});
  const Tensors none = quantized(from_values({1.0F, std::nanf(""), 2.0F, 3.0F}, {2, 2}),
                                 DType::f8e5m2, "rows", false);
  CHECK(std::isnan(to_doubles(none[1])[0]));  // a run notices that its gradients are not finite
  CHECK(std::isnan(to_doubles(none[0])[0]));
  CHECK(to_doubles(none[0])[3] == 57344);
}

TEST_CASE("quantize_f8's turned codes have the last dim first, alone and beside the others") {
  const auto turned = [](const Tensor& codes) {
    return codes.dims() == 1   ? codes
           : codes.dims() == 2 ? ops::permute(codes, {1, 0})
                               : ops::permute(codes, {2, 0, 1});
  };
  // Of one dim, of several tiles of the kernels with rests, of none.
  for (const Dims& shape : {Dims{70}, Dims{130, 67}, Dims{3, 50, 129}, Dims{0, 3}, Dims{2, 0}}) {
    for (const char* scales : {"whole", "rows", "columns"}) {
      INFO(to_string(shape) << " " << scales);
      const Tensor x = spread(shape, DType::bf16, 1);
      const auto made = [&](const char* order, const Tensor& of) {
        return quantized(of, DType::f8e4m3, scales, true, {}, order);
      };
      const Tensors as_x = made("as_x", x), alone = made("turned", x), both = made("both", x);
      REQUIRE(both.size() == 3);
      CHECK(same_bytes(both[0], as_x[0]));
      CHECK(same_bytes(both[2], turned(as_x[0])));
      CHECK(same_bytes(alone[0], both[2]));
      CHECK(same_bytes(alone[1], as_x[1]));
      CHECK(same_bytes(both[1], as_x[1]));
    }
  }
  const Tensor x = spread({64, 48}, DType::f32, 1), given = full({}, 300);
  CHECK(same_bytes(
      quantized(ops::transpose(x, 0, 1), DType::f8e5m2, "whole", false, given, "turned")[0],
      quantized(x, DType::f8e5m2, "whole", false, given)[0]));
}

TEST_CASE("turned codes of a part are those of its place in the whole") {
  collective::run_threads(2, [](collective::World&) {
    const DeviceMesh mesh = DeviceMesh::make({"axis"}, {2});
    const Tensor x = spread({4, 3, 6}, DType::f32, 1), given = full({}, 300);
    for (const int dim : {0, 1, 2}) {
      const Tensor part = distribute(x, Layout::make(mesh, {Shard(dim)}));
      const Tensor scale = distribute(given, Layout::replicated(mesh));
      for (const char* order : {"turned", "both"}) {
        const auto last = [](const Tensors& made) { return made.size() == 3 ? made[2] : made[0]; };
        const Tensor found = last(quantized(part, DType::f8e4m3, "whole", false, scale, order));
        check(found.layout().placement(0) == Shard((dim + 1) % 3), "the placement");
        check(same_bytes(full_tensor(found),
                         last(quantized(x, DType::f8e4m3, "whole", false, given, order))),
              "the codes");
      }
    }
  });
}

TEST_CASE("scaled products are those of widened codes, scaled in f32 and rounded, bit for bit") {
  for (const bool rowwise : {false, true}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      const auto quantize = [&](const Tensor& x, const char* scales) {
        return quantized(x, DType::f8e4m3, rowwise ? scales : "whole", rowwise);
      };
      const Tensor x = spread({2, 9, 32}, type, 1);
      const Tensor w = spread({48, 32}, type, 2);
      const Tensor dy = spread({2, 9, 48}, type, 3);
      const auto widened = [](const Tensors& operand) { return ops::cast(operand[0], DType::f32); };
      const auto expected = [&](const Tensor& product, const Tensor& first, const Tensor& second) {
        return ops::cast(ops::mul(product, ops::mul(first, second)), type);
      };
      const auto vector = [](const Tensor& factor) { return ops::view(factor, {factor.numel()}); };
      const Tensors xr = quantize(x, "rows"), wr = quantize(w, "rows");
      CHECK(same_bytes(scaled("scaled_linear", xr, wr, type),
                       expected(ops::linear(widened(xr), widened(wr)), xr[1], vector(wr[1]))));
      const Tensors gr = quantize(dy, "rows"), wc = quantize(w, "columns");
      CHECK(same_bytes(
          scaled("scaled_linear_grad_input", gr, wc, type),
          expected(ops::linear(widened(gr), ops::transpose(widened(wc), 0, 1)), gr[1], wc[1])));
      const Tensors gc = quantize(dy, "columns"), xc = quantize(x, "columns");
      const Tensor product = call_one(find_op("linear_grad_weight"), {widened(gc), widened(xc)});
      CHECK(same_bytes(scaled("scaled_linear_grad_weight", gc, xc, type),
                       expected(product, ops::view(gc[1], {gc[1].numel(), 1}), vector(xc[1]))));
    }
  }
}

TEST_CASE("gradients of scaled products are added in f32 and rounded once, bit for bit") {
  const auto codes = [](const Dims& shape, DType type, const char* scales, double shift) {
    return quantized(spread(shape, DType::f32, shift), type, scales, true);
  };
  const Tensors dy = codes({2, 9, 48}, DType::f8e5m2, "columns", 1);
  const auto add_to = [](const Op& op, const Tensor& sum, const Tensors& a, const Tensors& b) {
    call(op, std::vector<Tensor>{sum, a[0], a[1], b[0], b[1]}, {});
  };
  const auto compare = [&](const std::string& product, const Tensors& a, const Tensors& b) {
    const Tensor added = scaled(product.c_str(), a, b, DType::f32);
    for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      for (const bool gaps : {false, true}) {
        INFO(product << " " << name_of(type) << (gaps ? ", with gaps" : ""));
        Dims shape = added.shape();
        shape.back() *= gaps ? 2 : 1;
        const Tensor whole = spread(shape, type, 3);
        const Tensor sum = gaps ? ops::slice(whole, shape.size() - 1, 0, shape.back(), 2) : whole;
        const DType adding = type == DType::f64 ? DType::f64 : DType::f32;
        const Tensor wanted =
            ops::cast(ops::add(ops::cast(sum, adding), ops::cast(added, adding)), type);
        add_to(find_op(product + "_"), sum, a, b);
        CHECK(same_bytes(sum, wanted));
      }
    }
  };
  const Tensors x = codes({2, 9, 32}, DType::f8e4m3, "columns", 2);
  compare("scaled_linear_grad_weight", dy, x);
  compare("scaled_linear_grad_input", codes({2, 9, 48}, DType::f8e5m2, "rows", 1),
          codes({48, 32}, DType::f8e4m3, "columns", 2));
  const Op& of_weight = find_op("scaled_linear_grad_weight_");
  CHECK(error_of([&] { add_to(of_weight, full({48, 31}, 0), dy, x); }) ==
        "scaled_linear_grad_weight_: sum has the wrong shape (expected [48, 32], got [48, 31])");
  CHECK(error_of([&] {
          add_to(of_weight, full({48, 32}, 0, DType::i64), dy, x);
        }).starts_with("scaled_linear_grad_weight_: "));
}

TEST_CASE("factors of blocks along the dim that is summed over belong to their terms") {
  const Tensors x = {ops::cast(spread({3, 8}, DType::f32, 1), DType::f8e4m3),
                     from_values({0.5F, 2.0F, 1.0F, 4.0F, 8.0F, 0.25F}, {3, 2})};
  const Tensors w = {ops::cast(spread({5, 8}, DType::f32, 2), DType::f8e5m2), full({}, 0.125)};
  const std::vector<double> a = to_doubles(x[0]), fa = to_doubles(x[1]), b = to_doubles(w[0]);
  const std::vector<double> y = to_doubles(scaled("scaled_linear", x, w, DType::f32));
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::size_t column = 0; column < 5; ++column) {
      double sum = 0;
      for (std::size_t k = 0; k < 8; ++k) {
        sum += a[row * 8 + k] * fa[row * 2 + k / 4] * b[column * 8 + k] * 0.125;
      }
      CHECK(y[row * 5 + column] == Approx(sum).margin(1e-5));
    }
  }
  CHECK_THROWS_WITH(scaled("scaled_linear", {x[0], full({3}, 1)}, w, DType::f32),
                    Catch::Contains("scaled_linear: x and its factors do not fit"));
}

namespace {

/// The codes and factors as this rank has them: each rank's own scale for its part.
Tensors placed(const Tensor& x, const DeviceMesh& mesh, Placement placement, const char* scales,
               DType type) {
  const Layout layout = Layout::make(mesh, {placement});
  const Tensors own =
      quantized(distribute(x, layout).local(), type, scales, std::string_view(scales) != "whole");
  Dims factors = own[1].shape();
  for (int d = 0; d < x.dims(); ++d) {
    const bool each = factors[d] != 1;
    factors[d] = each ? x.shape()[d] : placement == Shard(d) ? mesh.axis_size(0) : 1;
  }
  return {from_local(own[0], layout, x.shape()), from_local(own[1], layout, factors)};
}

/// The product of the values that the operands have, by the operator without scales.
Tensor of_values(const char* name, const Tensors& a, const Tensors& b) {
  const auto values = [](const Tensors& operand) {
    const Tensor local = ops::mul(ops::cast(operand[0].local(), DType::f32), operand[1].local());
    return from_local(local, operand[0].layout(), operand[0].shape());
  };
  if (std::string_view(name) == "linear") {
    return ops::linear(values(a), values(b));
  }
  return call_one(find_op(name), {values(a), values(b)});
}

}  // namespace

TEST_CASE("scaled products of parts have the layouts and values of products of their values") {
  collective::LaunchOptions launch;
  launch.print_error = false;
  collective::run_threads(
      2,
      [](collective::World&) {
        const DeviceMesh mesh = DeviceMesh::make({"axis"}, {2});
        const Tensor x = spread({5, 4, 6}, DType::f32, 1);
        const Tensor w = spread({10, 6}, DType::f32, 2);
        const Tensor dy = spread({5, 4, 10}, DType::f32, 3);
        const auto compare = [](const char* name, const char* plain, const Tensors& a,
                                const Tensors& b, Placement result) {
          const Tensor found = scaled(name, a, b, DType::f32);
          check(found.layout().placement(0) == result, std::string(name) + ": the layout");
          const std::vector<double> values = to_doubles(full_tensor(found));
          const std::vector<double> wanted = to_doubles(full_tensor(of_values(plain, a, b)));
          for (std::size_t i = 0; i < values.size(); ++i) {
            check(std::abs(values[i] - wanted[i]) < 1e-4 * (1 + std::abs(wanted[i])),
                  std::string(name) + ": the values");
          }
        };
        const auto compare_sum = [](const char* name, const char* plain, const Tensors& a,
                                    const Tensors& b, Placement result) {
          const Tensor product = of_values(plain, a, b);
          const Layout layout = Layout::make(a[0].layout().mesh(), {result});
          const Tensor sum = from_local(ops::clone(redistribute(product, layout).local()), layout,
                                        product.shape());
          const Tensor before = full_tensor(sum);
          call(find_op(name), std::vector<Tensor>{sum, a[0], a[1], b[0], b[1]}, {});
          check(sum.layout() == layout, std::string(name) + ": the layout");
          const std::vector<double> values = to_doubles(ops::sub(full_tensor(sum), before));
          const std::vector<double> wanted = to_doubles(full_tensor(product));
          for (std::size_t i = 0; i < values.size(); ++i) {
            check(std::abs(values[i] - wanted[i]) < 1e-4 * (1 + std::abs(wanted[i])),
                  std::string(name) + ": the values");
          }
        };
        const auto sum_of_weights = [&](const Tensors& dy, const Tensors& x, Placement result) {
          compare_sum("scaled_linear_grad_weight_", "linear_grad_weight", dy, x, result);
        };
        const auto sum_of_inputs = [&](const Tensors& dy, const Tensors& weight, Placement result) {
          compare_sum("scaled_linear_grad_input_", "linear_grad_input", dy, weight, result);
        };
        for (const auto& [rows, columns] :
             {std::pair("whole", "whole"), std::pair("rows", "columns")}) {
          const auto place = [&](const Tensor& of, Placement p, const char* scales) {
            return placed(of, mesh, p, scales, DType::f8e4m3);
          };
          const Placement all = Replicate();
          for (const int d : {0, 1}) {
            compare("scaled_linear", "linear", place(x, Shard(d), rows), place(w, all, rows),
                    Shard(d));
            compare("scaled_linear_grad_input", "linear_grad_input", place(dy, Shard(d), rows),
                    place(w, all, columns), Shard(d));
            compare("scaled_linear_grad_weight", "linear_grad_weight", place(dy, Shard(d), columns),
                    place(x, Shard(d), columns), Partial());
            sum_of_weights(place(dy, Shard(d), columns), place(x, Shard(d), columns), Partial());
            sum_of_inputs(place(dy, Shard(d), rows), place(w, all, columns), Shard(d));
          }
          compare("scaled_linear", "linear", place(x, all, rows), place(w, Shard(0), rows),
                  Shard(2));
          compare("scaled_linear", "linear", place(x, Shard(2), rows), place(w, Shard(1), rows),
                  Partial());
          compare("scaled_linear_grad_input", "linear_grad_input", place(dy, all, rows),
                  place(w, Shard(1), columns), Shard(2));
          compare("scaled_linear_grad_input", "linear_grad_input", place(dy, Shard(2), rows),
                  place(w, Shard(0), columns), Partial());
          compare("scaled_linear_grad_weight", "linear_grad_weight", place(dy, Shard(2), columns),
                  place(x, all, columns), Shard(0));
          compare("scaled_linear_grad_weight", "linear_grad_weight", place(dy, all, columns),
                  place(x, Shard(2), columns), Shard(1));
          sum_of_weights(place(dy, Shard(2), columns), place(x, all, columns), Shard(0));
          sum_of_weights(place(dy, all, columns), place(x, Shard(2), columns), Shard(1));
          sum_of_inputs(place(dy, all, rows), place(w, Shard(1), columns), Shard(2));
          sum_of_inputs(place(dy, Shard(2), rows), place(w, Shard(0), columns), Partial());
        }
        const Tensors three = {distribute(quantized(x, DType::f8e4m3, "whole", false)[0],
                                          Layout::make(mesh, {Shard(2)})),
                               distribute(full({1, 1, 3}, 1), Layout::replicated(mesh))};
        check(!error_of([&] {
                 scaled("scaled_linear", three,
                        {distribute(quantized(w, DType::f8e4m3, "whole", false)[0],
                                    Layout::make(mesh, {Shard(1)})),
                         distribute(full({}, 1), Layout::replicated(mesh))},
                        DType::f32);
               }).starts_with("no error"),
              "blocks that parts would cut are refused");
      },
      launch);
}
