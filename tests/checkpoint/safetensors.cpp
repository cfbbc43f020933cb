// safetensors files and folders in Hugging Face's form, against a reader of its own, hostile files
// and what transformers wrote.
#include "../support/safetensors.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.checkpoint;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;

using namespace tessera;
using namespace checkpoint_test;

namespace {

const std::string stored_folders = TESSERA_SOURCE_DIR "/tests/reference/data/folders/";

constexpr DType all_types[] = {DType::f32, DType::f64,    DType::bf16,  DType::f16,
                               DType::i64, DType::i32,    DType::u8,    DType::boolean,
                               DType::i8,  DType::f8e4m3, DType::f8e5m2};

/// Bytes that differ everywhere (0 and 1 for bool).
Tensor pattern(const Dims& shape, DType dtype, int seed) {
  Tensor x = empty(shape, dtype);
  auto* bytes = static_cast<unsigned char*>(x.raw_data());
  const std::size_t count = static_cast<std::size_t>(x.numel()) * size_of(dtype);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t value = i * 37 + i / 251 + static_cast<std::size_t>(seed) * 101;
    bytes[i] = static_cast<unsigned char>(dtype == DType::boolean ? value % 2 : value);
  }
  return x;
}

std::vector<std::byte> bytes_of(const Tensor& x) {
  const auto* data = static_cast<const std::byte*>(x.raw_data());
  return {data, data + static_cast<std::size_t>(x.numel()) * size_of(x.dtype())};
}

void write_tensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                   const std::map<std::string, std::string>& metadata = {}) {
  std::map<std::string, TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) {
    infos[name] = {tensor.dtype(), tensor.shape()};
  }
  SafetensorsWriter writer(path, infos, metadata);
  for (auto it = tensors.rbegin(); it != tensors.rend(); ++it) {  // any order
    writer.write(it->first, it->second);
  }
  writer.finish();
}

std::map<std::string, Tensor> one_of_each_type() {
  std::map<std::string, Tensor> tensors;
  for (const DType dtype : all_types) {
    tensors[std::string(name_of(dtype))] = pattern({3, 5}, dtype, static_cast<int>(dtype));
  }
  tensors["one number"] = pattern({}, DType::f64, 9);
  tensors["empty \xc3\xa9"] = pattern({0, 4}, DType::f32, 10);
  return tensors;
}

}  // namespace

TEST_CASE("a written file holds every type's bytes, as an independent reader sees them") {
  const Folder folder;
  const auto tensors = one_of_each_type();
  write_tensors(folder / "a.safetensors", tensors, {{"format", "pt"}});
  const auto stored = read_safetensors(folder / "a.safetensors");
  REQUIRE(stored.size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    INFO(name);
    const StoredTensor& found = stored.at(name);
    CHECK(found.dtype == safetensors_name(tensor.dtype()));
    CHECK(Dims(std::span<const std::int64_t>(found.shape)) == tensor.shape());
    CHECK(found.bytes == bytes_of(tensor));
  }
  std::uint64_t header = 0;
  std::memcpy(&header, read_file(folder / "a.safetensors").data(), sizeof header);
  CHECK(header % 8 == 0);
}

TEST_CASE("a file is read back whole, with its metadata") {
  const Folder folder;
  const auto tensors = one_of_each_type();
  write_tensors(folder / "a.safetensors", tensors, {{"format", "pt"}});
  const SafetensorsFile file(folder / "a.safetensors");
  CHECK(file.metadata().at("format") == "pt");
  for (const auto& [name, tensor] : tensors) {
    INFO(name);
    CHECK(bytes_of(file.read(name)) == bytes_of(tensor));
  }
}

TEST_CASE("any box is read into any strides, and only its bytes are taken") {
  const Folder folder;
  const Tensor whole = pattern({4, 5, 6}, DType::i32, 1);
  write_tensors(folder / "a.safetensors", {{"x", whole}});
  const SafetensorsFile file(folder / "a.safetensors");
  const auto* values = whole.data<std::int32_t>();
  const Tensor room = zeros({2, 3, 4}, DType::i32);
  // The box [1:3, 2:5, 0:4], its first and last dim exchanged in memory.
  const Tensor into = alias(room, {2, 3, 4}, {1, 2, 6}, 0);
  file.read("x", {{1, 2, 0}, {2, 3, 4}}, into);
  CHECK(file.bytes_read() == 2 * 3 * 4 * 4);
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 4; ++k) {
        CHECK(room.data<std::int32_t>()[i + 2 * j + 6 * k] ==
              values[(i + 1) * 30 + (j + 2) * 6 + k]);
      }
    }
  }
  CHECK(contains(input_error([&] { file.read("x", {{3, 0, 0}, {2, 5, 6}}, into); }), "'x'"));
  CHECK(contains(input_error([&] { file.read("y"); }), "no tensor 'y'"));
}

TEST_CASE("floating types are cast while reading, others are not") {
  const Folder folder;
  write_tensors(folder / "a.safetensors",
                {{"half", full({3}, 1.5, DType::bf16)}, {"whole", full({3}, 7, DType::i64)}});
  const SafetensorsFile file(folder / "a.safetensors");
  const Tensor into = zeros({3}, DType::f32);
  file.read("half", {{0}, {3}}, into);
  CHECK(to_doubles(into) == std::vector<double>{1.5, 1.5, 1.5});
  CHECK(contains(input_error([&] { file.read("whole", {{0}, {3}}, into); }), "cannot be read as"));
}

TEST_CASE("data that is not aligned is read all the same") {
  const Folder folder;
  const std::string header = R"({"x":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}} )";
  std::string bytes = file_of(header + std::string(3 - header.size() % 8 + 8, ' '), 16);
  const double values[] = {1.25, -3.5};
  std::memcpy(bytes.data() + bytes.size() - 16, values, 16);
  REQUIRE((bytes.size() - 16) % 8 != 0);
  const SafetensorsFile file(folder.write("a.safetensors", bytes));
  CHECK(to_doubles(file.read("x")) == std::vector<double>{1.25, -3.5});
}

TEST_CASE("a hostile file is one clear error that names file and tensor") {
  const Folder folder;
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}";
  };
  const auto one = [&](const std::string& dtype, const std::string& shape,
                       const std::string& offsets) {
    return R"({"x":)" + entry(dtype, shape, offsets) + "}";
  };
  const std::string good = one("F32", "[2]", "[0,8]");
  const std::string huge(sizeof(std::uint64_t), '\xff');
  struct Case {
    std::string bytes;
    std::string what;
  };
  const std::vector<Case> cases = {
      {"", "truncated"},
      {"1234567", "truncated"},
      {huge + "{}", "length of the header"},
      {file_of(good, 8).substr(0, 30), "length of the header"},
      {file_of(good, 7), "'x'"},
      {file_of(good, 9), "does not end"},
      {file_of("{", 0), "not JSON"},
      {file_of("[]", 0), "not a JSON object"},
      {file_of("{\"\xff\":1}", 0), "UTF-8"},
      {file_of(std::string(100000, '['), 0), "nested too deeply"},
      {file_of(R"({"x":1})", 0), "must have dtype"},
      {file_of(R"({"x":1e999})", 0), "out of range"},
      {file_of(one("F8", "[2]", "[0,8]"), 8), "unknown type"},
      {file_of(one("F32", "[3]", "[0,8]"), 8), "do not have the size"},
      {file_of(one("F32", "[-2]", "[0,8]"), 8), "non-negative integers"},
      {file_of(one("F32", "[2.0]", "[0,8]"), 8), "non-negative integers"},
      {file_of(one("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), 8), "at most 8"},
      {file_of(one("F32", "[4294967296,4294967296,2]", "[0,8]"), 8), "do not have the size"},
      {file_of(one("F32", "[2]", "[8,0]"), 8), "are not within"},
      {file_of(one("F32", "[2]", "[0]"), 8), "data_offsets"},
      {file_of(one("F32", "[2]", "[18446744073709551608,0]"), 8), "data_offsets"},
      {file_of(one("F32", "[2]", "[8,16]"), 16), "gap"},
      {file_of(R"({"w":)" + entry("F32", "[2]", "[0,8]") + R"(,"x":)" +
                   entry("F32", "[2]", "[4,12]") + "}",
               12),
       "overlap"},
      {file_of(R"({"x":)" + entry("U8", "[4]", "[0,4]") + R"(,"x":)" + entry("U8", "[4]", "[4,8]") +
                   "}",
               8),
       "the name 'x' occurs twice"},
      {file_of(R"({"__metadata__":{"a":1}})", 0), "__metadata__"},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::string path = folder.write("h" + std::to_string(i), cases[i].bytes);
    const std::string error = input_error([&] { SafetensorsFile{path}; });
    INFO(i << ": " << error);
    CHECK(contains(error, path));
    CHECK(contains(error, cases[i].what));
  }
  CHECK(contains(input_error([&] { SafetensorsFile{folder / "none"}; }), "none"));
  CHECK(contains(input_error([&] { SafetensorsFile{folder / ""}; }), "not a file"));
  std::string truth = file_of(R"({"t":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}})", 1);
  truth.back() = 2;
  const SafetensorsFile file(folder.write("bool", truth));
  CHECK(contains(input_error([&] { file.read("t"); }), "'t'"));
}

TEST_CASE("no cut and no changed byte of a file does more than an error that names it") {
  const Folder folder;
  const auto tensors = one_of_each_type();
  write_tensors(folder / "good", tensors, {{"format", "pt"}});
  const std::string good = read_file(folder / "good");
  const auto try_to_read = [&](const std::string& bytes) {
    const std::string path = folder.write("bad", bytes);
    const std::string error = input_error([&] {
      const SafetensorsFile file(path);
      for (const auto& [name, info] : file.tensors()) {
        file.read(name);
      }
    });
    return error.empty() || contains(error, path);
  };
  for (std::size_t cut = 0; cut < good.size(); cut += cut < 300 ? 1 : 23) {
    const std::string path = folder.write("cut", good.substr(0, cut));
    REQUIRE_FALSE(input_error([&] { SafetensorsFile{path}; }).empty());
  }
  const std::size_t data = good.rfind('}');
  for (std::size_t at = 0; at <= data; ++at) {
    for (const int mask : {0x01, 0x10, 0x80}) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(bytes[at] ^ mask);
      REQUIRE(try_to_read(bytes));
    }
  }
}

TEST_CASE("the writer holds its caller to what was announced") {
  const Folder folder;
  SafetensorsWriter writer(folder / "a", {{"x", {DType::f32, {2}}}, {"y", {DType::f32, {2}}}});
  CHECK(contains(run_error([&] { writer.write("z", zeros({2})); }), "'z'"));
  CHECK(contains(run_error([&] { writer.write("x", zeros({3})); }),
                 "not the one that was announced"));
  writer.write("x", zeros({2}));
  CHECK(contains(run_error([&] { writer.write("x", zeros({2})); }), "twice"));
  CHECK(contains(run_error([&] { writer.finish(); }), "'y'"));
  CHECK(contains(run_error([&] { SafetensorsWriter(folder / "a", {}); }), "exists"));
}

TEST_CASE("folders that transformers wrote hold what an independent reader finds") {
  for (const char* name : {"sharded_files", "bf16", "tied", "plain"}) {
    INFO(name);
    const std::string path = stored_folders + name;
    const SafetensorsFolder folder(path);
    std::map<std::string, StoredTensor> expected;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.path().extension() == ".safetensors") {
        expected.merge(read_safetensors(entry.path().string()));
      }
    }
    REQUIRE(folder.tensors().size() == expected.size());
    REQUIRE(expected.size() > 10);
    for (const auto& [tensor, stored] : expected) {
      INFO(tensor);
      CHECK(bytes_of(folder.read(tensor)) == stored.bytes);
    }
  }
}

TEST_CASE("weights fill distributed parameters in any layout, cast to their type") {
  const SafetensorsFolder folder(stored_folders + "bf16");
  const auto mesh = DeviceMesh::make({"shard", "tensor"}, {2, 2});
  const auto layout = Layout::make(mesh, {Shard(0), Shard(0)}, {1, 0});
  for (int rank = 0; rank < 4; ++rank) {
    set_current_rank(rank);
    const std::uint64_t before = folder.bytes_read();
    StateDict state;
    std::uint64_t expected_bytes = 0;
    for (const auto& [name, info] : folder.tensors()) {
      const SpecHandle spec = Spec::make(layout, info.shape, DType::f32);
      state.tensors[name] = make_distributed(zeros(local_shape(*spec)), spec);
      expected_bytes += static_cast<std::uint64_t>(local_shape(*spec).product()) * 2;
    }
    load_weights(folder, state);
    CHECK(folder.bytes_read() - before == expected_bytes);
    for (const auto& [name, tensor] : state.tensors) {
      INFO(name);
      const std::vector<double> whole = to_doubles(folder.read(name));
      const std::vector<double> local = to_doubles(tensor.local());
      std::size_t at = 0;
      for_each_run(tensor.shape(), layout, *mesh.coordinates_of(rank),
                   [&](std::int64_t first, std::int64_t count) {
                     for (std::int64_t i = 0; i < count; ++i) {
                       REQUIRE(local[at++] == whole[static_cast<std::size_t>(first + i)]);
                     }
                   });
      CHECK(at == local.size());
    }
  }
  set_current_rank(0);
}

TEST_CASE("a tied head may be missing in the folder, any other tensor not") {
  const SafetensorsFolder folder(stored_folders + "tied");
  REQUIRE_FALSE(folder.contains("lm_head.weight"));
  StateDict state;
  for (const auto& [name, info] : folder.tensors()) {
    state.tensors[name] = zeros(info.shape);
  }
  state.tensors["lm_head.weight"] = detached(state.tensors.at("model.embed_tokens.weight"));
  CHECK(load_weights(folder, state).missing.empty());
  CHECK(to_doubles(state.tensors.at("lm_head.weight")) ==
        to_doubles(folder.read("model.embed_tokens.weight")));
  state.tensors["lm_head.weight"] = zeros(state.tensors.at("lm_head.weight").shape());
  state.tensors["another.weight"] = zeros({1});
  state.tensors.erase("model.norm.weight");
  const std::string error = input_error([&] { load_weights(folder, state); });
  CHECK(contains(error, "missing: another.weight, lm_head.weight"));
  CHECK(contains(error, "unexpected: model.norm.weight"));
}

TEST_CASE("a wrong folder is an error that names what is wrong") {
  const Folder folder;
  const auto fails = [&] { return input_error([&] { SafetensorsFolder{folder / ""}; }); };
  CHECK(contains(fails(), "neither model.safetensors nor"));
  const auto index = [&](const std::string& text) {
    folder.write("model.safetensors.index.json", text);
    return fails();
  };
  CHECK(contains(index("{"), "not JSON"));
  CHECK(contains(index("{}"), "no weight_map"));
  CHECK(contains(index(R"({"weight_map":{"x":"../a"}})"), "tensor 'x'"));
  CHECK(contains(index(R"({"weight_map":{"x":3}})"), "tensor 'x'"));
  CHECK(contains(index(R"({"weight_map":{"x":"/etc/passwd"}})"), "tensor 'x'"));
  CHECK(contains(index(R"({"weight_map":{"x":".."}})"), "tensor 'x'"));
  CHECK(contains(index(R"({"weight_map":{"x":"a.safetensors","x":"b.safetensors"}})"), "twice"));
  CHECK(contains(index(R"({"weight_map":{"x":"a.safetensors"}})"), "a.safetensors"));
  write_tensors(folder / "a.safetensors", {{"y", zeros({2})}});
  CHECK(contains(fails(), "'x' is not in the file 'a.safetensors'"));
}

TEST_CASE("files of PyTorch's sharded writer are refused, as their tensors may be parts") {
  // Names and metadata as torch/distributed/checkpoint/_hf_utils.py and filesystem.py write them.
  const auto metadata = [](const std::string& offsets) {
    return std::map<std::string, std::string>{
        {"DCP_SHARDING_INFO", R"({"x": {"saved_offsets": )" + offsets + "}}"},
        {"DCP_VERSION", "1.0"},
        {"format", "pt"}};
  };
  const Folder folder;
  const std::string first = "shard-00000-model-00001-of-00001.safetensors";
  const std::string second = "shard-00001-model-00001-of-00001.safetensors";
  const std::map<std::string, Tensor> half = {{"x", zeros({2, 3})}};
  write_tensors(folder / first, half, metadata("[0, 0]"));
  write_tensors(folder / second, half, metadata("[2, 0]"));
  for (const std::string& name : {first, second}) {
    INFO(name);
    CHECK(contains(input_error([&] { SafetensorsFile{folder / name}; }),
                   name + ": its tensors are parts of larger ones"));
    CHECK(contains(input_error([&] { open_tensors(folder / name); }), "are parts"));
  }
  CHECK(contains(input_error([&] { open_tensors(folder / ""); }), "are parts"));
  // transformers reads the parts of such a folder, whatever is beside them.
  write_tensors(folder / "model.safetensors", half);
  CHECK(contains(input_error([&] { open_tensors(folder / ""); }), "are parts"));
  CHECK(contains(input_error([&] { SafetensorsFolder{folder / ""}; }), "are parts"));

  // The same writer without sharding: whole tensors, in files with other names.
  const std::string whole = folder / "model-00001-of-00001.safetensors";
  write_tensors(whole, half, metadata("[0, 0]"));
  CHECK(open_tensors(whole).source->info("x").shape == Dims{2, 3});
  for (const char* offsets : {"[0, 1]", "[0]", "[0, 0, 0]", "null", "{}", "[0, \"0\"]", "[0, "}) {
    INFO(offsets);
    std::filesystem::remove(whole);
    write_tensors(whole, half, metadata(offsets));
    CHECK(contains(input_error([&] { SafetensorsFile{whole}; }), "are parts"));
  }
  std::filesystem::remove(whole);
  write_tensors(whole, {{"x", zeros({2, 3})}, {"y", zeros({2})}}, metadata("[0, 0]"));
  CHECK(contains(input_error([&] { SafetensorsFile{whole}; }), "are parts"));
}

TEST_CASE("a folder of weights knows its files") {
  CHECK(SafetensorsFolder(stored_folders + "plain").files() ==
        std::vector<std::string>{"model.safetensors"});
  const std::vector<std::string> files =
      SafetensorsFolder(stored_folders + "sharded_files").files();
  CHECK(files.size() == 5);
  CHECK(files.front() == "model-00001-of-00005.safetensors");
}
