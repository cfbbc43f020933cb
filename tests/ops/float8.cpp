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

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.checkpoint;

#include "errors.hpp"

using namespace tessera;
using testing::error_of;
using testing::expect;

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
  return x.dtype() == y.dtype() && x.shape() == y.shape() &&
         std::memcmp(x.raw_data(), y.raw_data(),
                     static_cast<std::size_t>(x.numel()) * size_of(x.dtype())) == 0;
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
      expect(rows.local().size(0) == (world.rank() == 0 ? 8 : 7), "rows");
      expect(same_bytes(full_tensor(rows), whole), "all_gather");
      const Tensor columns = redistribute(rows, Layout::make(mesh, {Shard(1)}));
      expect(same_bytes(full_tensor(columns), whole), "all_to_all");
      expect(error_of([&] { ops::mul(rows, rows); }).starts_with("mul: operand 'a' has the type"),
             "distributed");
      const Tensor terms = from_local(whole, Layout::make(mesh, {Partial()}));
      expect(error_of([&] { full_tensor(terms); }).find("cast") != std::string::npos, "reduce");
    }
  });
}
