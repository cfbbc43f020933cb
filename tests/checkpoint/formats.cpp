// Other formats: what torch.distributed.checkpoint wrote and reads, model folders of several files,
// and comparisons of tensors whatever they are stored as.
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.checkpoint;
import tessera.collective;
import tessera.mesh;
import tessera.ops;
import tessera.placement;
import tessera.tensor;

using namespace tessera;
using namespace checkpoint_test;

namespace {

namespace fs = std::filesystem;

const std::string torch_folder = std::string(TESSERA_SOURCE_DIR) + "/tests/reference/data/torch/";

/// Element i of a tensor of torch_checkpoints.py, whose shape is that of the whole.
double truth(DType dtype, std::int64_t i) {
  return is_floating(dtype)        ? static_cast<double>(i - 5) / 4
         : dtype == DType::boolean ? (i % 3 == 1 ? 1 : 0)
                                   : static_cast<double>(i % 3);
}

std::vector<double> truths(DType dtype, std::int64_t count) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(truth(dtype, i));
  }
  return values;
}

StateDict some_state(double first) {
  StateDict state;
  state.tensors["model.a"] = full({3, 4}, first);
  state.tensors["model.b"] = full({5}, 2, DType::bf16);
  state.tensors["optimizer.step"] = full({}, 3, DType::i64);
  state.tensors["none"] = empty({0, 2}, DType::f32);
  state.scalars = {{"step", std::int64_t{12}}, {"lr", 0.25}, {"name", std::string("run")}};
  return state;
}

void copy_folder(const std::string& from, const std::string& to) {
  fs::remove_all(to);
  fs::copy(from, to);
}

std::string write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

}  // namespace

TEST_CASE("a folder of torch.distributed.checkpoint has the values that PyTorch saved") {
  const TorchCheckpoint one(torch_folder + "one");
  const std::map<std::string, TensorInfo> infos = {{"model.f32", {DType::f32, {3, 4}}},
                                                   {"model.bf16", {DType::bf16, {5}}},
                                                   {"model.f16", {DType::f16, {2, 3}}},
                                                   {"model.f64", {DType::f64, {2, 1, 2}}},
                                                   {"model.i64", {DType::i64, {4}}},
                                                   {"model.i32", {DType::i32, {2, 2}}},
                                                   {"model.u8", {DType::u8, {7}}},
                                                   {"model.i8", {DType::i8, {5}}},
                                                   {"model.f8e4m3", {DType::f8e4m3, {3, 2}}},
                                                   {"model.f8e5m2", {DType::f8e5m2, {4}}},
                                                   {"model.flags", {DType::boolean, {6}}},
                                                   {"model.transposed", {DType::f32, {3, 4}}},
                                                   {"model.slice", {DType::f32, {3, 3}}},
                                                   {"model.scalar", {DType::f32, {}}},
                                                   {"model.empty", {DType::f32, {0, 3}}}};
  CHECK(one.tensors() == infos);
  for (const char* name :
       {"f32", "bf16", "f16", "f64", "i64", "i32", "u8", "i8", "f8e4m3", "f8e5m2", "flags"}) {
    INFO(name);
    const TensorInfo& info = infos.at(std::string("model.") + name);
    CHECK(to_doubles(one.read(std::string("model.") + name)) ==
          truths(info.dtype, info.shape.product()));
  }
  std::vector<double> transposed;
  std::vector<double> slice;
  for (std::int64_t row = 0; row < 3; ++row) {
    for (std::int64_t column = 0; column < 4; ++column) {
      transposed.push_back(truth(DType::f32, column * 3 + row));
    }
    for (std::int64_t column = 2; column < 5; ++column) {
      slice.push_back(truth(DType::f32, (row + 1) * 5 + column));
    }
  }
  CHECK(to_doubles(one.read("model.transposed")) == transposed);
  CHECK(to_doubles(one.read("model.slice")) == slice);
  CHECK(to_doubles(one.read("model.scalar")) == std::vector<double>{2.5});
  CHECK(one.scalars() ==
        std::map<std::string, StateDict::Scalar>{{"step", std::int64_t{7}},
                                                 {"big", -(std::int64_t{1} << 62)},
                                                 {"lr", 0.125},
                                                 {"name", std::string("caf\xc3\xa9")},
                                                 {"flag", std::int64_t{1}}});
  CHECK(one.left_out() == std::vector<std::string>{"nothing", "betas"});
}

TEST_CASE("a tensor that PyTorch cut over two processes is one tensor, of which any box is read") {
  const TorchCheckpoint two(torch_folder + "two");
  CHECK(to_doubles(two.read("rows")) == truths(DType::f32, 20));
  CHECK(to_doubles(two.read("columns")) == truths(DType::f32, 12));
  CHECK(to_doubles(two.read("same")) == truths(DType::f32, 6));
  CHECK(to_doubles(two.read("short")) == truths(DType::f32, 2));
  const Tensor box = zeros({3, 2}, DType::f64);
  two.read("rows", {{1, 1}, {3, 2}}, box);
  std::vector<double> expected;
  for (const std::int64_t i : {5, 6, 9, 10, 13, 14}) {
    expected.push_back(truth(DType::f32, i));
  }
  CHECK(to_doubles(box) == expected);
  // Into shards of a mesh, as any other source.
  on_ranks(3, [&](int) {
    StateDict state;
    const SpecHandle spec =
        Spec::make(Layout::make(DeviceMesh::make({"a"}, {3}), {Shard(0)}), {5, 4}, DType::f32);
    state.tensors["rows"] = make_distributed(zeros(local_shape(*spec)), spec);
    load_state(TorchCheckpoint(torch_folder + "two"), state, {.strict = false});
    const Dims begin = local_offset(*spec);
    const std::vector<double> values = to_doubles(state.tensors.at("rows").local());
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] != truth(DType::f32, begin[0] * 4 + static_cast<std::int64_t>(i))) {
        fail("a wrong value");
      }
    }
  });
}

TEST_CASE("a folder that is written for PyTorch reads back, from any format") {
  const Folder folder;
  const TorchCheckpoint one(torch_folder + "one");
  write_torch_checkpoint(one, folder / "again");
  const TorchCheckpoint again(folder / "again");
  CHECK(again.tensors() == one.tensors());
  CHECK(again.scalars() == one.scalars());
  CHECK(compare_tensors(one, again).empty());
  CHECK(contains(input_error([&] { write_torch_checkpoint(one, folder / "again"); }), "not empty"));

  on_ranks(1, [&](int) { save_checkpoint(folder / "c", some_state(1.5), R"({"a": 1})"); });
  const CheckpointReader saved(folder / "c");
  write_torch_checkpoint(saved, folder / "torch");
  write_checkpoint(TorchCheckpoint(folder / "torch"), folder / "back", R"({"b": 2})");
  const CheckpointReader back(folder / "back");
  CHECK(back.tensors() == saved.tensors());
  CHECK(back.scalars() == saved.scalars());
  CHECK(back.meta() == R"({"b":2})");
  CHECK(back.verify().empty());
  CHECK(compare_tensors(saved, back).empty());
}

TEST_CASE("PyTorch itself loads what is written for it") {
  const char* const python = std::getenv("TESSERA_TORCH_PYTHON");
  if (python == nullptr) {
    WARN("not run: TESSERA_TORCH_PYTHON does not name a Python that has torch");
    return;
  }
  const Folder folder;
  write_torch_checkpoint(TorchCheckpoint(torch_folder + "one"), folder / "again");
  const std::string command = std::string(python) + " " + TESSERA_SOURCE_DIR +
                              "/tests/reference/check_torch_checkpoint.py " + folder / "again";
  CHECK(std::system(command.c_str()) == 0);
}

TEST_CASE("a damaged or hostile folder of PyTorch is an error, never more") {
  const Folder folder;
  const std::string at = folder / "t";
  const auto problem = [&] {
    return input_error([&] {
      const TorchCheckpoint torch(at);
      for (const auto& [name, info] : torch.tensors()) {
        static_cast<void>(torch.read(name));
      }
    });
  };
  copy_folder(torch_folder + "two", at);
  REQUIRE(problem().empty());
  int found = 0;
  int cases = 0;
  for (const char* file : {".metadata", "__1_0.distcp"}) {
    const std::string good = read_file(at + "/" + file);
    for (std::size_t i = 0; i < good.size(); i += 13) {
      for (const char change : {'\x01', '\x80', '\xff'}) {
        std::string bad = good;
        bad[i] = static_cast<char>(bad[i] ^ change);
        write_bytes(at + "/" + file, bad);
        found += problem().empty() ? 0 : 1;  // values have no hash: not each change is found
        ++cases;
      }
    }
    for (std::size_t length = 0; length < good.size(); length += 41) {
      write_bytes(at + "/" + file, good.substr(0, length));
      INFO(file << " of " << length << " bytes");
      CHECK_FALSE(problem().empty());
    }
    write_bytes(at + "/" + file, good);
  }
  CHECK(found > cases / 10);
  // What would run a program if it was executed.
  write_bytes(at + "/.metadata", "\x80\x02" + std::string("cos\nsystem\n(K\x01tR."));
  CHECK(contains(problem(), "it names 'os system'"));
  write_bytes(at + "/.metadata", "\x80\x02}.");
  CHECK(contains(problem(), "does not describe a checkpoint"));
  write_bytes(at + "/.metadata", std::string("\x80\x02X\xff\xff\xff\x7f"));
  CHECK(contains(problem(), "it is cut"));
  // Values that share others, and values without end, take no more memory than an index does.
  const auto repeated = [](const std::string& part, std::size_t count) {
    std::string all;
    for (std::size_t i = 0; i < count; ++i) {
      all += part;
    }
    return all;
  };
  const std::string start = "\x80\x02";
  const std::string too_much = "its values take more memory than an index of its size needs";
  for (const std::string& hostile :
       {start + "(" + repeated("N", 60'000) + "tq" + std::string(1, '\0') + "ctorch\nSize\nq\x01" +
            repeated("h\x01h" + std::string(1, '\0') + "\x81", 60'000) + ".",
        start + repeated("]", 3'000'000) + ".", start + repeated("}", 3'000'000) + ".",
        start + "N" + repeated("r" + std::string("\xe8\x03\x00\x00", 4), 1) +
            [&] {
              std::string puts;
              for (std::uint32_t place = 2000; place < 2'000'000; place += 1000) {
                puts += "r";
                for (int byte = 0; byte < 4; ++byte) {
                  puts += static_cast<char>(place >> (8 * byte));
                }
              }
              return puts;
            }() +
            "."}) {
    write_bytes(at + "/.metadata", hostile);
    INFO(hostile.substr(0, 20));
    CHECK(contains(problem(), too_much));
  }
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  write_bytes(at + "/.metadata", start + "(" + repeated("N", 20'000'000) + "t.");
  CHECK(contains(problem(), "does not describe a checkpoint"));
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
  CHECK(after.ru_maxrss - before.ru_maxrss < 700 << 10);
  fs::remove(at + "/.metadata");
  CHECK(
      contains(input_error([&] { open_tensors(at); }), "it is not a checkpoint, and not a model"));
}

TEST_CASE("differences are named with their size") {
  const Folder folder;
  on_ranks(1, [&](int) {
    save_checkpoint(folder / "a", some_state(2));
    StateDict other = some_state(2);
    static_cast<float*>(other.tensors["model.a"].raw_data())[5] = 2.5F;
    static_cast<float*>(other.tensors["model.a"].raw_data())[6] = -2;
    other.tensors["model.b"] = full({5}, 2, DType::f32);
    other.tensors["none"] = empty({0, 3}, DType::f32);
    other.tensors["optimizer.step"] = full({}, 3, DType::f32);
    other.tensors["more"] = full({1}, 1);
    save_checkpoint(folder / "b", other);
  });
  const CheckpointReader a(folder / "a");
  const CheckpointReader b(folder / "b");
  CHECK(compare_tensors(a, a).empty());
  const std::vector<TensorDifference> all = compare_tensors(a, b);
  std::map<std::string, TensorDifference> by_name;
  for (const TensorDifference& d : all) {
    by_name[d.name] = d;
  }
  REQUIRE(by_name.size() == 5);
  CHECK(by_name["model.a"].elements == 2);
  CHECK(by_name["model.a"].max_absolute == 4);
  CHECK(by_name["model.a"].max_relative == 2);
  CHECK(by_name["model.a"].problem.empty());
  CHECK(by_name["model.b"].types == "bf16 and f32");
  CHECK(by_name["model.b"].elements == 0);
  CHECK(by_name["none"].problem == "shape [0, 2] and [0, 3]");
  CHECK(by_name["optimizer.step"].problem == "i64 and f32");
  CHECK(by_name["more"].problem == "only in the second");
  // A prefix, and values that are not numbers.
  StateDict x;
  x.tensors["a"] = full({2}, std::numeric_limits<double>::quiet_NaN());
  StateDict y;
  y.tensors["m.a"] = full({2}, std::numeric_limits<double>::quiet_NaN());
  on_ranks(1, [&](int) {
    save_checkpoint(folder / "x", x, "{}", {.only_finite = false});
    save_checkpoint(folder / "y", y, "{}", {.only_finite = false});
    ops::fill_(y.tensors["m.a"], 1);
    save_checkpoint(folder / "z", y);
  });
  const CheckpointReader nan(folder / "x");
  CHECK(compare_tensors(nan, CheckpointReader(folder / "y"), {.second_prefix = "m."}).empty());
  const auto apart = compare_tensors(nan, CheckpointReader(folder / "z"), {.second_prefix = "m."});
  REQUIRE(apart.size() == 1);
  CHECK(std::isinf(apart[0].max_absolute));
}

TEST_CASE("an export in several files is the folder that an export in one file is") {
  const Folder folder;
  StateDict state;
  for (int i = 0; i < 10; ++i) {
    state.tensors["layer." + std::to_string(i)] = full({100 + i}, i);
  }
  state.tensors["large"] = full({1000}, 7);
  on_ranks(1, [&](int) { save_checkpoint(folder / "c", state); });
  const CheckpointReader reader(folder / "c");
  export_weights(reader, folder / "one");
  export_weights(reader, folder / "many", {.max_file_bytes = 1300});
  CHECK(compare_tensors(SafetensorsFolder(folder / "one"), SafetensorsFolder(folder / "many"))
            .empty());
  const auto index = nlohmann::json::parse(read_file(folder / "many/model.safetensors.index.json"));
  CHECK(index["weight_map"].size() == 11);
  CHECK(index["metadata"]["total_size"] == 4 * (1000 + 10 * 100 + 45));
  int files = 0;
  for (const auto& entry : fs::directory_iterator(folder / "many")) {
    if (entry.path().extension() == ".safetensors") {
      ++files;
      const SafetensorsFile file(entry.path().string());
      std::int64_t bytes = 0;
      for (const auto& [name, info] : file.tensors()) {
        bytes += 4 * info.shape.product();
      }
      CHECK((bytes <= 1300 || file.tensors().size() == 1));
      CHECK(contains(entry.path().filename().string(), "-of-00005.safetensors"));
    }
  }
  CHECK(files == 5);
}

TEST_CASE("reading and exporting a model folder holds one tensor in memory") {
  constexpr std::int64_t rows = 4 << 10;  // of 1 KiB: 4 MiB
  constexpr int tensors = 40;
  const Folder folder;
  {
    StateDict state;
    const Tensor one = full({rows, 256}, 1);
    for (int i = 0; i < tensors; ++i) {
      state.tensors["t" + std::to_string(i)] = one;
    }
    on_ranks(1, [&](int) { save_checkpoint(folder / "c", state); });
    export_weights(CheckpointReader(folder / "c"), folder / "hf", {.max_file_bytes = 30 << 20});
  }
  const auto peak_growth = [&](const std::function<void()>& act) {
    const auto kib = [](const std::string& key) {
      std::ifstream status("/proc/self/status");
      for (std::string line; std::getline(status, line);) {
        if (line.starts_with(key + ":")) {
          return std::stoll(line.substr(key.size() + 1));
        }
      }
      return 0LL;
    };
    std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts again
    const long long before = kib("VmRSS");
    act();
    return kib("VmHWM") - before;
  };
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  return;  // freed memory stays with the sanitizer
#endif
  const long long tensor_kib = rows;
  CHECK(peak_growth([&] {
          export_weights(SafetensorsFolder(folder / "hf"), folder / "half", {.dtype = DType::bf16});
        }) < 4 * tensor_kib);
  CHECK(peak_growth([&] {
          export_weights(CheckpointReader(folder / "c"), folder / "again",
                         {.max_file_bytes = 20 << 20});
        }) < 4 * tensor_kib);
  CHECK(peak_growth([&] {
          write_torch_checkpoint(SafetensorsFolder(folder / "hf"), folder / "torch");
        }) < 6 * tensor_kib);
}
