// Sizes that do not fit into 64 bits are errors that name who was asked for them.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;

using namespace tessera;

using tessera::testing::error_of;
namespace {

constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t half = std::int64_t{1} << 32;  // of the bits

}  // namespace

TEST_CASE("the product of a shape is refused where it does not fit into 64 bits") {
  CHECK(checked_product({3, 0, 5}, "op") == 0);
  CHECK(checked_product({}, "op") == 1);
  CHECK(checked_product({std::int64_t{1} << 62, 1}, "op") == std::int64_t{1} << 62);
  // Modulo 2^64 these are 0, 4 and 1.
  const std::vector<Dims> wrong = {{half, half}, {half, half, 4}, {most, most},
                                   {most},       {most, 2, 0},    {half, half, half, half}};
  for (const Dims& shape : wrong) {
    INFO(to_string(shape));
    CHECK(error_of([&] { checked_product(shape, "op"); }).starts_with("op: the shape "));
  }
  for (const Dims& shape : {Dims{-1}, Dims{0, -1}, Dims{-2, -3}, Dims{least}}) {
    INFO(to_string(shape));
    CHECK(error_of([&] { checked_product(shape, "op"); }).starts_with("op: extents must not be"));
  }
}

TEST_CASE("sums and products of sizes are refused where they do not fit into 64 bits") {
  CHECK(checked_add(most - 1, 1, "op") == most);
  CHECK(checked_multiply(-4, 5, "op") == -20);
  CHECK(error_of([] { checked_add(most, 1, "op"); }).starts_with("op: "));
  CHECK(error_of([] { checked_add(least, -1, "op"); }).starts_with("op: "));
  CHECK(error_of([] { checked_multiply(most, 2, "op"); }).starts_with("op: "));
  CHECK(error_of([] { checked_multiply(least, -1, "op"); }).starts_with("op: "));
  CHECK(checked_integer(-3.0, "op") == -3);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const double value : {1e19, -1e19, 9223372036854775808.0, infinity, -infinity,
                             std::numeric_limits<double>::quiet_NaN()}) {
    INFO(value);
    CHECK(error_of([&] { checked_integer(value, "op"); }).starts_with("op: "));
  }
}

TEST_CASE("a tensor with more bytes than can be addressed is refused on every device") {
  // As many elements as 64 bits count, but not as many bytes.
  const Dims shape{std::int64_t{1} << 31, std::int64_t{1} << 30};
  for (const Device device : {cpu, meta}) {
    const std::string bytes = error_of([&] { empty(shape, DType::f64, device); });
    INFO(bytes);
    CHECK(bytes.starts_with("empty: "));
    CHECK(bytes.find("more bytes than can be addressed") != std::string::npos);
    CHECK(error_of([&] {
            empty({most, most, 3}, DType::u8, device);
          }).starts_with("empty: the shape "));
    CHECK(error_of([&] {
            empty({2, -1}, DType::u8, device);
          }).starts_with("empty: extents must not be negative"));
    CHECK(error_of([&] { zeros({most}, DType::f32, device); }).starts_with("empty: "));
  }
  CHECK(empty({0, half}, DType::u8).numel() == 0);
  CHECK(error_of([] { from_memory(nullptr, {most}, DType::f32); }).starts_with("from_memory: "));
  CHECK(error_of([&] {
          from_values<float>({1, 2, 3, 4}, {half, half, 4});
        }).starts_with("from_values: "));
}

TEST_CASE("a distributed tensor with more elements than can be counted is refused") {
  const Layout layout = Layout::make(DeviceMesh::make({"a"}, Dims{2}), {Shard(0)});
  const std::string text = error_of([&] { Spec::make(layout, {most, 4}, DType::f32); });
  INFO(text);
  CHECK(text.starts_with("distributed tensor: the shape "));
}

TEST_CASE("a number that an integer type does not have is refused") {
  CHECK(error_of([] { full({2}, 256, DType::u8); }) ==
        "full: 256 does not fit u8 (expected 0 to 255); choose another value or type");
  CHECK(error_of([] { full({2}, -1, DType::u8); }).starts_with("full: -1 does not fit u8"));
  const double past = 9223372036854775808.0;  // 2^63
  CHECK(error_of([&] { full({2}, past, DType::i64); }).starts_with("full: "));
  CHECK(error_of([] {
          full({2}, std::numeric_limits<double>::quiet_NaN(), DType::i32);
        }).starts_with("full: nan does not fit i32"));
  CHECK(to_doubles(full({1}, 255.9, DType::u8)) == std::vector<double>{255});
  CHECK(to_doubles(full({1}, -past, DType::i64)) == std::vector<double>{-past});
}
