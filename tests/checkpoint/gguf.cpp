// GGUF files against ggml's own package (tests/reference/gguf_files.py), and damaged ones.
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "safetensors.hpp"
#include "support.hpp"

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.checkpoint;

using namespace tessera;
using namespace checkpoint_test;

namespace {

const std::string data = TESSERA_SOURCE_DIR "/tests/reference/data/gguf/";

std::vector<float> floats(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// Bits, so that zeros with another sign differ.
std::vector<std::uint32_t> bits_of(const Tensor& tensor) {
  const Tensor values = ops::contiguous(ops::cast(tensor, DType::f32));
  std::vector<std::uint32_t> bits(static_cast<std::size_t>(values.numel()));
  std::memcpy(bits.data(), values.raw_data(), bits.size() * sizeof(std::uint32_t));
  return bits;
}

std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

/// One tensor that is to be stored in a type of its own.
class One : public TensorSource {
 public:
  One(Tensor values, std::string type)
      : TensorSource("one"), values_(std::move(values)), type_(std::move(type)) {
    tensors_["x"] = {values_.dtype(), values_.shape()};
  }
  std::uint64_t bytes_read() const override { return 0; }
  std::string stored_type(const std::string&) const override { return type_; }

 private:
  void copy_box(const std::string&, const LocalPart& box, const Tensor& into) const override {
    Tensor part = values_;
    for (int d = 0; d < box.shape.size(); ++d) {
      part = ops::narrow(part, d, box.offset[d], box.shape[d]);
    }
    ops::copy_(into, part);
  }
  Tensor values_;
  std::string type_;
};

// A file, part by part.
template <class T>
std::string plain(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
std::string text(std::string_view value) {
  return plain(std::uint64_t{value.size()}) + std::string(value);
}
std::string begin(std::uint64_t tensors, std::uint64_t fields, std::uint32_t version = 3) {
  return "GGUF" + plain(version) + plain(tensors) + plain(fields);
}
std::string number(std::string_view name, std::uint32_t value) {
  return text(name) + plain(std::uint32_t{4}) + plain(value);
}
std::string tensor(std::string_view name, const std::vector<std::uint64_t>& dims,
                   std::uint32_t type, std::uint64_t at) {
  std::string out = text(name) + plain(static_cast<std::uint32_t>(dims.size()));
  for (const std::uint64_t dim : dims) {
    out += plain(dim);
  }
  return out + plain(type) + plain(at);
}
/// Filled up to the data, which are zeros.
std::string with_data(std::string header, std::size_t bytes) {
  header.resize((header.size() + 31) / 32 * 32);
  return header + std::string(bytes, '\0');
}

}  // namespace

TEST_CASE("tensors of every type have the bits that ggml's package decodes") {
  const NoGrad no_grad;
  const OpenedTensors opened = open_tensors(data + "types.gguf");
  CHECK(opened.format == "gguf");
  const auto expected = read_safetensors(data + "types.safetensors");
  for (const char* name : {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "MXFP4"}) {
    INFO(name);
    CHECK(opened.source->stored_type(name) == name);
    const Tensor whole = opened.source->read(name);
    REQUIRE(whole.shape() == Dims{6, 3, 64});
    CHECK(bits_of(whole) == bits_of(floats(expected.at(name).bytes)));
    // A box that begins and ends within blocks, into memory with other strides.
    const LocalPart box{{1, 1, 21}, {3, 2, 30}};
    const Tensor part = ops::transpose(empty({30, 2, 3}), 0, 2);
    opened.source->read(name, box, part);
    Tensor cut = whole;
    for (int d = 0; d < 3; ++d) {
      cut = ops::narrow(cut, d, box.offset[d], box.shape[d]);
    }
    CHECK(bits_of(part) == bits_of(cut));
  }
  for (const char* name : {"float64", "int8", "int32", "int64"}) {
    INFO(name);
    const std::vector<double> values = to_doubles(opened.source->read(name));
    REQUIRE(values.size() == 24);
    CHECK(values.front() == -9);
    CHECK(values.back() == 14);
  }
  const auto fields = nlohmann::json::parse(opened.source->meta()).at("gguf");
  const std::map<std::string, nlohmann::json> given = {
      {"uint8", 200},          {"int8", -100},
      {"uint16", 60000},       {"int16", -30000},
      {"uint32", 4000000000U}, {"int32", -2000000000},
      {"uint64", INT64_MAX},   {"int64", -(INT64_MAX / 2 + 1)},
      {"float32", 0.1F},       {"float64", 0.1},
      {"bool", true},          {"string", "é\n☃"}};
  for (const auto& [name, value] : given) {
    INFO(name);
    CHECK(fields.at("field." + name).at("value") == value);
  }
  CHECK(fields.at("field.texts").at("values") == nlohmann::json({"a", "", "ü"}));
  CHECK(fields.at("field.floats").at("values") == nlohmann::json({0.5, -1.5}));
}

TEST_CASE("Q8_0 is written with the bytes of ggml's package") {
  const NoGrad no_grad;
  const Folder folder;
  const auto expected = read_safetensors(data + "types.safetensors");
  const std::vector<float> values = floats(expected.at("values").bytes);
  const One source(from_values(std::span<const float>(values), {6, 3, 64}), "Q8_0");
  CHECK(checkpoint_format("gguf").write(source, folder / "out", {}).tensors == 1);
  const std::string file = read_file(folder / "out" + "/model.gguf");
  const std::vector<std::byte>& bytes = expected.at("bytes.Q8_0").bytes;
  const std::size_t filled = (bytes.size() + 31) / 32 * 32;
  REQUIRE(file.size() > filled);
  CHECK(std::memcmp(file.data() + (file.size() - filled), bytes.data(), bytes.size()) == 0);
  const OpenedTensors back = open_tensors(folder / "out");
  CHECK(back.source->stored_type("x") == "Q8_0");
  CHECK(bits_of(back.source->read("x")) == bits_of(floats(expected.at("Q8_0").bytes)));
}

TEST_CASE("a file that is written again has the same fields and values") {
  const NoGrad no_grad;
  const Folder folder;
  const OpenedTensors first = open_tensors(data + "types.gguf");
  checkpoint_format("gguf").write(*first.source, folder / "again", {});
  const OpenedTensors second = open_tensors(folder / "again");
  CHECK(second.format == "gguf");
  CHECK(compare_tensors(*first.source, *second.source).empty());
  CHECK(second.source->meta() == first.source->meta());
  CHECK(second.source->stored_type("BF16") == "BF16");
  CHECK(second.source->stored_type("Q4_1") == "F32");  // it is not encoded again
  CHECK(contains(input_error([&] {
                   checkpoint_format("gguf").write(One(full({2}, 1, DType::boolean), ""),
                                                   folder / "flags", {});
                 }),
                 "which GGUF does not have"));
  CHECK_FALSE(std::filesystem::exists(folder / "flags"));
}

TEST_CASE("a damaged GGUF file is an error that says where") {
  const Folder folder;
  const auto problem = [&](const std::string& bytes) {
    const std::string path = folder.write("bad.gguf", bytes);
    return input_error([&] { open_tensors(path); });
  };
  const std::string good = read_file(data + "types.gguf");
  REQUIRE(problem(good).empty());
  for (std::size_t length = 4; length < good.size() - 32; length += 97) {
    INFO(length);
    CHECK_FALSE(problem(good.substr(0, length)).empty());
  }
  const struct {
    std::string file;
    std::string says;
  } cases[] = {
      {"GGUX" + good.substr(4), "it is not a checkpoint"},
      {begin(0, 0, 1), "version is not supported"},
      {begin(0, 0, 0x03000000), "version is not supported"},
      {begin(0, 1ULL << 60), "number of fields is wrong"},
      {begin(1ULL << 60, 0), "number of tensors is wrong"},
      {begin(0, 1) + plain(~0ULL) + std::string(64, 'x'), "length is wrong"},
      {begin(0, 2) + number("a", 1) + number("a", 2) + std::string(64, '\0'), "'a' is there twice"},
      {begin(0, 1) + text("a\xff") + std::string(64, '\0'), "is not UTF-8"},
      {begin(0, 1) + text("a") + plain(13U) + std::string(64, '\0'), "unknown type 13"},
      {begin(0, 1) + text("a") + plain(7U) + std::string(64, '\2'), "neither 0 nor 1"},
      {begin(0, 1) + text("a") + plain(9U) + plain(9U) + plain(1ULL) + std::string(64, '\0'),
       "a list of lists"},
      {begin(0, 1) + text("a") + plain(9U) + plain(8U) + plain(~0ULL) + std::string(64, '\0'),
       "number of values is wrong"},
      {begin(0, 1) + text("a") + plain(6U) + plain(0x7f800000U) + std::string(64, '\0'),
       "is not finite"},
      {begin(0, 1) + number("general.alignment", 12) + std::string(64, '\0'), "power of two"},
      {with_data(begin(1, 0) + tensor("t", {4, 1ULL << 62, 8}, 0, 0), 64), "too large"},
      {with_data(begin(1, 0) + tensor("t", {1ULL << 61}, 0, 0), 64), "too large"},
      {with_data(begin(1, 0) + tensor("t", {1, 1, 1, 1, 1}, 0, 0), 64), "too many dims"},
      {with_data(begin(1, 0) + tensor("t", {4}, 11, 0), 64),
       "has the type Q3_K, which is not read"},
      {with_data(begin(1, 0) + tensor("t", {4}, 99, 0), 64), "has the type number 99"},
      {with_data(begin(1, 0) + tensor("t", {33}, 8, 0), 64), "no whole blocks"},
      {with_data(begin(1, 0) + tensor("t", {17}, 0, 0), 64), "not within the 64 bytes"},
      {with_data(begin(1, 0) + tensor("t", {1}, 0, ~31ULL), 64), "not within the 64 bytes"},
      {with_data(begin(1, 0) + tensor("t", {1}, 0, 4), 64), "not aligned"},
      {with_data(begin(2, 0) + tensor("t", {9}, 0, 0) + tensor("u", {1}, 0, 32), 64), "overlap"},
      {with_data(begin(2, 0) + tensor("t", {1}, 0, 0) + tensor("t", {1}, 0, 32), 64),
       "'t' is there twice"}};
  for (const auto& [file, says] : cases) {
    INFO(says);
    CHECK(contains(problem(file), says));
  }
  CHECK(problem(with_data(
                    begin(2, 1) + number("a", 1) + tensor("t", {8}, 0, 0) + tensor("u", {1}, 0, 32),
                    64))
            .empty());
}
