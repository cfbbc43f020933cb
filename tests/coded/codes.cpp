// Codes of weights against ggml's C functions and its Python package
// (tests/reference/code_types.py).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <tessera/row_products.hpp>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "safetensors.hpp"

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.coded;

using namespace tessera;
using coded::CodeType;

namespace {

const std::map<std::string, StoredTensor>& stored() {
  static const auto all = read_safetensors(TESSERA_REFERENCE_DATA "/gguf/codes.safetensors");
  return all;
}

Tensor tensor_of(const std::string& name) {
  const StoredTensor& found = stored().at(name);
  const std::map<std::string, DType> types = {
      {"F32", DType::f32}, {"F64", DType::f64}, {"U8", DType::u8}};
  const Tensor tensor =
      empty(Dims{std::span<const std::int64_t>(found.shape)}, types.at(found.dtype));
  std::memcpy(tensor.raw_data(), found.bytes.data(), found.bytes.size());
  return tensor;
}

/// Equal bits; any NaN for any.
std::int64_t differences(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const float x = a.data<float>()[i];
    const float y = b.data<float>()[i];
    const bool both = std::isnan(x) && std::isnan(y);
    count += both || std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y) ? 0 : 1;
  }
  return count;
}

constexpr const char* ggml_types[] = {"Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K"};

/// x [m, k] times the weight, of each row alone.
Tensor row_by_row(const Tensor& x, const coded::CodeRows& weight) {
  std::vector<Tensor> rows;
  for (std::int64_t i = 0; i < x.size(0); ++i) {
    rows.push_back(coded::product(ops::narrow(x, 0, i, 1), weight));
  }
  return ops::cat(rows, 0);
}

/// A product of plain tensors whose rows do not depend on how many there are.
Tensor plain_product(const Tensor& x, const Tensor& weight) {
  const RowProducts exact;
  return ops::linear(x, weight);
}

}  // namespace

TEST_CASE("codes are those of ggml's C functions", "[codes]") {
  const NoGrad no_grad;
  const Tensor values = tensor_of("values");
  for (const char* name : ggml_types) {
    INFO(name);
    const CodeType type = coded::code_type(name).value();
    const Tensor expected = tensor_of(std::string(name) + ".codes");
    CHECK(coded::bytes_of(type, values.size(1)) == expected.size(1));
    if (type == CodeType::q4_1) {
      CHECK_THROWS_AS(coded::encoded(type, values), Error);
      continue;
    }
    const Tensor codes = coded::encoded(type, values).codes;
    REQUIRE(codes.shape() == expected.shape());
    CHECK(std::memcmp(codes.raw_data(), expected.raw_data(),
                      static_cast<std::size_t>(codes.numel())) == 0);
  }
}

TEST_CASE("codes have the values that ggml's package decodes, whatever they are", "[codes]") {
  const NoGrad no_grad;
  for (const std::string name : ggml_types) {
    INFO(name);
    const CodeType type = coded::code_type(name).value();
    for (const auto& [codes, values] :
         {std::pair(".codes", ".decoded"), std::pair(".drawn", ".of_drawn")}) {
      const Tensor decoded = coded::decoded({.type = type, .codes = tensor_of(name + codes)});
      CHECK(differences(decoded, tensor_of(name + values)) == 0);
    }
  }
}

TEST_CASE("a product with codes is that with their values, for any number of rows", "[codes]") {
  const NoGrad no_grad;
  const Tensor x = tensor_of("x");
  for (const std::string name : ggml_types) {
    INFO(name);
    const coded::CodeRows weight{.type = coded::code_type(name).value(),
                                 .codes = tensor_of(name + ".codes")};
    const Tensor y = coded::product(x, weight);
    const Tensor values = coded::decoded(weight);
    const Tensor expected = tensor_of(name + ".product");
    // The sums of 512 products in f32, in 16 parts of 32.
    const Tensor sizes = ops::linear(ops::abs(x), ops::abs(values));
    for (std::int64_t i = 0; i < y.numel(); ++i) {
      const double difference = y.data<float>()[i] - expected.data<double>()[i];
      CHECK(std::abs(difference) <= 0x1p-20 * sizes.data<float>()[i]);
    }
    CHECK(differences(y, plain_product(x, values)) == 0);
    CHECK(differences(y, row_by_row(x, weight)) == 0);
    CHECK(coded::product(ops::narrow(x, 0, 0, 0), weight).shape() == Dims{0, 8});
  }
}

TEST_CASE("rows of a product have the same bits among any number of others", "[codes]") {
  const NoGrad no_grad;
  std::vector<Tensor> multiples;
  for (const double factor : {1.0, -0.3, 7.0, 0.01, 1.9}) {
    multiples.push_back(ops::mul_scalar(tensor_of("x"), factor));
  }
  const Tensor x = ops::cat(multiples, 0);
  std::vector<coded::CodeRows> weights;
  for (const std::string name : ggml_types) {
    weights.push_back(
        {.type = coded::code_type(name).value(), .codes = tensor_of(name + ".codes")});
  }
  for (const CodeType type : {CodeType::f16, CodeType::bf16}) {
    weights.push_back(coded::encoded(type, tensor_of("values")));
  }
  for (const coded::CodeRows& weight : weights) {
    INFO("type " << static_cast<int>(weight.type));
    const Tensor alone = row_by_row(x, weight);
    for (std::int64_t count = 1; count <= x.size(0); ++count) {
      INFO(count << " rows");
      CHECK(differences(coded::product(ops::narrow(x, 0, 0, count), weight),
                        ops::contiguous(ops::narrow(alone, 0, 0, count))) == 0);
    }
  }
}

TEST_CASE("weights in 8 bits by rows and in 16 bits have rows of any length", "[codes]") {
  const NoGrad no_grad;
  for (const std::int64_t columns : {1, 15, 16, 37, 300}) {
    const Tensor values = ops::narrow(tensor_of("values"), 1, 0, columns);
    const Tensor x = ops::narrow(tensor_of("x"), 1, 0, columns);
    const Tensor scales = coded::scales_of_rows(values);
    for (const CodeType type : {CodeType::f16, CodeType::bf16, CodeType::int8}) {
      INFO(columns << " columns, type " << static_cast<int>(type));
      const bool by_rows = type == CodeType::int8;
      const coded::CodeRows weight = coded::encoded(type, values, by_rows ? scales : Tensor());
      const Tensor decoded = coded::decoded(weight);
      for (std::int64_t i = 0; i < values.numel(); ++i) {
        const float value = ops::contiguous(values).data<float>()[i];
        const float largest = by_rows
                                  ? scales.data<float>()[i / columns] / 2
                                  : std::abs(value) * (type == CodeType::f16 ? 0x1p-11F : 0x1p-8F);
        CHECK(std::abs(decoded.data<float>()[i] - value) <= largest * 1.001F + 1e-7F);
      }
      const Tensor y = coded::product(x, weight);
      CHECK(differences(y, plain_product(x, decoded)) == 0);
      CHECK(differences(y, row_by_row(x, weight)) == 0);
    }
  }
}

TEST_CASE("groups of rows have the bits that each has with its own weight", "[codes]") {
  const NoGrad no_grad;
  std::vector<Tensor> multiples;
  for (const double factor : {1.0, -0.3, 7.0, 0.01}) {
    multiples.push_back(ops::mul_scalar(tensor_of("x"), factor));
  }
  const Tensor x = ops::cat(multiples, 0);  // 12 rows
  const Tensor values = tensor_of("values");
  // Four weights of two rows each.
  std::vector<coded::CodeRows> stacks;
  for (const std::string name : ggml_types) {
    stacks.push_back({.type = coded::code_type(name).value(), .codes = tensor_of(name + ".codes")});
  }
  stacks.push_back(coded::encoded(CodeType::bf16, values));
  stacks.push_back(coded::encoded(CodeType::int8, values, coded::scales_of_rows(values)));
  const auto matrix = [](const coded::CodeRows& stack, std::int64_t number) {
    coded::CodeRows own = stack;
    own.codes = ops::narrow(stack.codes, 0, 2 * number, 2);
    own.scales = stack.scales ? ops::narrow(stack.scales, 0, 2 * number, 2) : Tensor();
    return own;
  };
  const std::vector<std::vector<std::int64_t>> cases = {{12, 0, 0, 0}, {0, 0, 0, 12}, {1, 0, 9, 1},
                                                        {3, 3, 3, 3},  {0, 1, 0, 0},  {0, 0, 0, 0}};
  for (const coded::Activations form : {coded::Activations::f32, coded::Activations::int8}) {
    for (const std::vector<std::int64_t>& counts : cases) {
      const Tensor of_groups = from_values(std::span(counts), {4});
      const Tensors together = coded::group_products(x, of_groups, stacks, form);
      REQUIRE(together.size() == stacks.size());
      for (std::size_t i = 0; i < stacks.size(); ++i) {
        INFO("type " << static_cast<int>(stacks[i].type));
        REQUIRE(together[i].shape() == Dims{12, 2});
        std::int64_t row = 0;
        for (std::int64_t g = 0; g < 4; ++g) {
          for (std::int64_t n = 0; n < counts[static_cast<std::size_t>(g)]; ++n, ++row) {
            const Tensor alone =
                coded::product(ops::narrow(x, 0, row, 1), matrix(stacks[i], g), form);
            CHECK(differences(ops::contiguous(ops::narrow(together[i], 0, row, 1)), alone) == 0);
          }
        }
        for (; row < 12; ++row) {
          CHECK(to_doubles(ops::narrow(together[i], 0, row, 1)) == std::vector<double>{0, 0});
        }
      }
    }
  }
  const std::vector<std::int64_t> too_many = {12, 1, 0, 0};
  CHECK_THROWS_AS(coded::group_products(x, from_values(std::span(too_many), {4}), stacks), Error);
  const std::vector<std::int64_t> three = {1, 1, 1};
  CHECK_THROWS_AS(coded::group_products(x, from_values(std::span(three), {3}), stacks), Error);
}

TEST_CASE("weights of groups without rows are not read", "[codes]") {
  const NoGrad no_grad;
  // Whatever is read of a weight of NaNs is NaN in a sum.
  coded::CodeRows stack = coded::encoded(CodeType::bf16, full({8, 512}, 1, DType::f32));
  auto* const elements = static_cast<std::uint16_t*>(stack.codes.raw_data());
  std::fill(elements + 2 * 512, elements + 8 * 512, 0x7fc0);
  const std::vector<std::int64_t> counts = {3, 0, 0, 0};
  const Tensor y =
      coded::group_products(tensor_of("x"), from_values(std::span(counts), {4}), {&stack, 1})[0];
  for (const double value : to_doubles(y)) {
    CHECK(std::isfinite(value));
  }
}

TEST_CASE("rows of codes are found by their numbers", "[codes]") {
  const NoGrad no_grad;
  const coded::CodeRows weight{.type = CodeType::q6_k, .codes = tensor_of("Q6_K.codes")};
  const std::vector<std::int64_t> numbers = {3, -1, 0, 3};
  const Tensor rows = coded::decoded_rows(weight, from_values(std::span(numbers), {2, 2}));
  REQUIRE(rows.shape() == Dims{2, 2, 512});
  const Tensor all = coded::decoded(weight);
  CHECK(differences(ops::select(ops::select(rows, 0, 0), 0, 0), ops::select(all, 0, 3)) == 0);
  CHECK(differences(ops::select(ops::select(rows, 0, 1), 0, 0), ops::select(all, 0, 0)) == 0);
  CHECK(to_doubles(ops::sum(ops::select(ops::select(rows, 0, 0), 0, 1)))[0] == 0);
  const std::vector<std::int64_t> beyond = {8};
  CHECK_THROWS_AS(coded::decoded_rows(weight, from_values(std::span(beyond), {1})), Error);
}

TEST_CASE("scales that codes cannot have are errors, and NaN stays NaN", "[codes]") {
  const NoGrad no_grad;
  const Tensor large = full({1, 256}, 1e30, DType::f32);
  for (const CodeType type : {CodeType::q4_0, CodeType::q5_0, CodeType::q8_0, CodeType::q4_k,
                              CodeType::q5_k, CodeType::q6_k}) {
    CHECK_THROWS_AS(coded::encoded(type, large), Error);
  }
  // A scale that is NaN: the sums with it are, and no others.
  const coded::CodeRows weight = coded::encoded(CodeType::q8_0, full({2, 64}, 1, DType::f32));
  auto* const bytes = static_cast<std::uint8_t*>(weight.codes.raw_data());
  bytes[1] = 0x7f;  // of the first row
  const Tensor y = coded::product(full({3, 64}, 1, DType::f32), weight);
  for (std::int64_t i = 0; i < 3; ++i) {
    CHECK(std::isnan(y.data<float>()[2 * i]));
    CHECK(y.data<float>()[2 * i + 1] == Approx(64).epsilon(1e-3));
  }
  CHECK_THROWS_AS(coded::product(full({3, 32}, 1, DType::f32), weight), Error);
}

TEST_CASE("each form of a weight says how rows that are no whole blocks are kept", "[codes]") {
  using coded::code_type_for;
  using coded::WeightForm;
  CHECK(code_type_for(WeightForm::f32, 512, false, CodeType::q8_0) == std::nullopt);
  CHECK(code_type_for(WeightForm::stored, 512, false, CodeType::q4_1) == CodeType::q4_1);
  CHECK(code_type_for(WeightForm::stored, 512, true, std::nullopt) == std::nullopt);
  CHECK(code_type_for(WeightForm::q4_k, 512, false, std::nullopt) == CodeType::q4_k);
  CHECK(code_type_for(WeightForm::q4_k, 576, false, std::nullopt) == CodeType::q5_0);
  CHECK(code_type_for(WeightForm::q4_k, 512, true, std::nullopt) == CodeType::q6_k);
  CHECK(code_type_for(WeightForm::q4_0, 576, true, std::nullopt) == CodeType::q8_0);
  CHECK(code_type_for(WeightForm::q6_k, 24, false, std::nullopt) == CodeType::bf16);
  CHECK(code_type_for(WeightForm::int8, 24, true, std::nullopt) == CodeType::int8);
  for (const std::string_view name : coded::weight_form_names()) {
    CHECK_NOTHROW(coded::weight_form_named(name));
  }
  CHECK_THROWS_AS(coded::weight_form_named("q3_k"), Error);
}
