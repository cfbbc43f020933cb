// Sharded checkpoints: saved on one mesh and loaded on others, bit for bit, and only the bytes that
// a rank needs.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "../support/safetensors.hpp"
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

/// Names, types and shapes of a state: even, uneven and empty shards, no dims, no elements.
const std::map<std::string, TensorInfo>& state_infos() {
  static const std::map<std::string, TensorInfo> infos = {
      {"model.even", {DType::f32, {8, 4}}},    {"model.uneven", {DType::f32, {7, 5}}},
      {"model.few", {DType::bf16, {3}}},       {"model.six", {DType::f64, {6, 3, 2}}},
      {"model.none", {DType::f32, {0, 4}}},    {"optimizer.step", {DType::i64, {}}},
      {"optimizer.one", {DType::i32, {1, 1}}}, {"optimizer.mask", {DType::boolean, {5, 2}}}};
  return infos;
}

/// The byte of a global element: known on every rank without a file. Bit 6 is clear, so that no
/// floating value has all bits of its exponent set: saves refuse what is not finite.
unsigned char byte_at(const std::string& name, std::int64_t element, std::size_t byte) {
  const std::size_t seed = std::hash<std::string>{}(name);
  const std::size_t value = static_cast<std::size_t>(element) * 8 + byte;
  const std::size_t mixed = (value * 2654435761U + seed) >> 7;
  return static_cast<unsigned char>(state_infos().at(name).dtype == DType::boolean ? mixed % 2
                                                                                   : mixed & 0xbf);
}

/// Calls f(byte of the local memory, its true value) for all bytes of the calling rank's part.
void for_each_byte(const std::string& name, const Tensor& x,
                   const std::function<void(unsigned char&, unsigned char)>& f) {
  const Tensor& local = local_of(x);
  const Dims begin = x.is_distributed() ? local_offset(*x.spec()) : Dims::filled(x.dims(), 0);
  const std::size_t width = size_of(x.dtype());
  const Dims global = contiguous_strides(x.shape());
  const Dims own = contiguous_strides(local.shape());
  auto* data = static_cast<unsigned char*>(local.raw_data());
  for (std::int64_t i = 0; i < local.numel(); ++i) {
    std::int64_t element = 0;
    std::int64_t at = 0;
    for (int d = 0; d < x.dims(); ++d) {
      const std::int64_t index = i / own[d] % local.shape()[d];
      element += (begin[d] + index) * global[d];
      at += index * local.strides()[d];
    }
    for (std::size_t b = 0; b < width; ++b) {
      f(data[static_cast<std::size_t>(at) * width + b], byte_at(name, element, b));
    }
  }
}

/// A mesh and how every tensor lies on it; no mesh: plain tensors.
struct Arrangement {
  std::string name;
  int ranks;
  Layout layout;
};

std::vector<Arrangement> arrangements() {
  const auto one = DeviceMesh::make({"shard"}, {1});
  const auto two = DeviceMesh::make({"shard"}, {2});
  const auto three = DeviceMesh::make({"shard"}, {3});
  const auto four = DeviceMesh::make({"shard"}, {4});
  const auto square = DeviceMesh::make({"shard", "tensor"}, {2, 2});
  return {{"plain", 1, {}},
          {"one", 1, Layout::make(one, {Shard(0)})},
          {"rows over two", 2, Layout::make(two, {Shard(0)})},
          {"columns over two", 2, Layout::make(two, {Shard(1)})},
          {"replicas", 2, Layout::make(two, {Replicate()})},
          {"rows over three", 3, Layout::make(three, {Shard(0)})},
          {"rows over four", 4, Layout::make(four, {Shard(0)})},
          {"hybrid", 4, Layout::make(square, {Replicate(), Shard(0)})},
          {"rows and columns", 4, Layout::make(square, {Shard(0), Shard(1)})},
          {"rows after rows", 4, Layout::make(square, {Shard(0), Shard(0)}, {1, 0})},
          {"columns over three", 3, Layout::make(three, {Shard(1)})},
          {"columns over four", 4, Layout::make(four, {Shard(1)})},
          {"replicas of three", 3, Layout::make(three, {Replicate()})},
          {"all four replicas", 4, Layout::make(square, {Replicate(), Replicate()})},
          {"replicas of columns", 4, Layout::make(square, {Replicate(), Shard(1)})},
          {"rows before rows", 4, Layout::make(square, {Shard(0), Shard(0)})},
          {"columns after columns", 4, Layout::make(square, {Shard(1), Shard(1)}, {1, 0})},
          {"columns and rows", 4, Layout::make(square, {Shard(1), Shard(0)})},
          {"depth over two", 2, Layout::make(two, {Shard(2)})},
          {"another order of ranks", 4,
           Layout::make(DeviceMesh::make({"a"}, {4}, {2, 0, 3, 1}), {Shard(0)})}};
}

/// The layout with Replicate where it cuts a dim that the tensor lacks.
Layout fitting(Layout layout, int dims) {
  for (int axis = 0; axis < layout.ndim(); ++axis) {
    if (layout.placement(axis).dim() >= dims) {
      layout = layout.with_placement(axis, Replicate());
    }
  }
  return layout;
}

/// The calling rank's part of the state, zero.
StateDict blank_state(const Arrangement& arrangement) {
  StateDict state;
  for (const auto& [name, info] : state_infos()) {
    if (!arrangement.layout) {
      state.tensors[name] = zeros(info.shape, info.dtype);
      continue;
    }
    const SpecHandle spec =
        Spec::make(fitting(arrangement.layout, info.shape.size()), info.shape, info.dtype);
    state.tensors[name] = make_distributed(zeros(local_shape(*spec), info.dtype), spec);
  }
  return state;
}

StateDict true_state(const Arrangement& arrangement) {
  StateDict state = blank_state(arrangement);
  for (const auto& [name, tensor] : state.tensors) {
    for_each_byte(name, tensor, [](unsigned char& byte, unsigned char truth) { byte = truth; });
  }
  return state;
}

bool is_true(const StateDict& state) {
  bool good = true;
  for (const auto& [name, tensor] : state.tensors) {
    for_each_byte(name, tensor, [&](const unsigned char& byte, unsigned char truth) {
      good = good && byte == truth;
    });
  }
  return good;
}

void save_true(const Arrangement& arrangement, const std::string& path) {
  on_ranks(arrangement.ranks, [&](int) { save_checkpoint(path, true_state(arrangement)); });
}

std::uint64_t local_bytes(const StateDict& state) {
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : state.tensors) {
    const Tensor& local = local_of(tensor);
    bytes += static_cast<std::uint64_t>(local.numel()) * size_of(local.dtype());
  }
  return bytes;
}

}  // namespace

TEST_CASE("what is saved on one mesh loads on every other, bit for bit, reading only own parts") {
  for (const Arrangement& saved : arrangements()) {
    const Folder folder;
    save_true(saved, folder / "c");
    CHECK(folder.names() == std::vector<std::string>{"c"});
    for (const Arrangement& wanted : arrangements()) {
      INFO("saved as " << saved.name << ", loaded as " << wanted.name);
      for (int rank = 0; rank < wanted.ranks; ++rank) {
        set_current_rank(rank);
        const CheckpointReader reader(folder / "c");
        StateDict state = blank_state(wanted);
        REQUIRE_FALSE(is_true(state));
        const LoadReport report = load_state(reader, state);
        CHECK(report.missing.empty());
        CHECK(report.unexpected.empty());
        CHECK(is_true(state));
        CHECK(reader.bytes_read() == local_bytes(state));
      }
      set_current_rank(0);
    }
  }
}

TEST_CASE("replicas are written once") {
  for (const Arrangement& arrangement : arrangements()) {
    INFO(arrangement.name);
    const Folder folder;
    save_true(arrangement, folder / "c");
    std::uint64_t expected = 0;
    for (const auto& [name, info] : state_infos()) {
      expected += static_cast<std::uint64_t>(info.shape.product()) * size_of(info.dtype);
    }
    std::uint64_t written = 0;
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "c")) {
      if (entry.path().extension() == ".safetensors") {
        ++files;
        for (const auto& [key, tensor] : read_safetensors(entry.path().string())) {
          written += tensor.bytes.size();
        }
      }
    }
    CHECK(written == expected);
    CHECK(files == 1);  // all ranks hold the tensors without dims, and so write one file
  }
}

TEST_CASE("loading writes into the memory that is there, whatever its strides") {
  const Folder folder;
  save_true(arrangements()[2], folder / "c");
  const CheckpointReader reader(folder / "c");
  // Two parameters in one flat buffer, as a group of parameters has them; one of them transposed.
  const Tensor flat = full({100}, 77);
  StateDict state;
  state.tensors["model.even"] = alias(flat, {8, 4}, {1, 8}, 10);
  state.tensors["model.uneven"] = alias(flat, {7, 5}, {5, 1}, 50);
  LoadReport report = load_state(reader, state, {.strict = false});
  CHECK(report.unexpected.size() == state_infos().size() - 2);
  CHECK(is_true(state));
  const std::vector<double> all = to_doubles(flat);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i < 10 || (i >= 42 && i < 50) || i >= 85) {
      CHECK(all[i] == 77);
    }
  }
}

TEST_CASE(
    "strict loading lists all that is missing, unexpected or does not fit, and writes nothing") {
  const Folder folder;
  save_true(arrangements()[5], folder / "c");
  const CheckpointReader reader(folder / "c");
  StateDict state = blank_state(arrangements()[0]);
  state.tensors.erase("model.few");
  state.tensors.erase("model.six");
  state.tensors["model.new"] = zeros({2});
  state.tensors["model.even"] = zeros({8, 5});
  state.tensors["model.uneven"] = zeros({7, 5}, DType::bf16);
  state.tensors["optimizer.step"] = zeros({}, DType::i32);
  state.tensors["optimizer.mask"] = Tensor();
  state.scalars["step"] = std::int64_t{3};
  const std::string error = input_error([&] { load_state(reader, state); });
  INFO(error);
  for (const char* part :
       {"missing: model.new, step", "unexpected: model.few, model.six", "'model.even': shape",
        "expected [8, 5], got [8, 4]", "'model.uneven': type", "'optimizer.step': type",
        "'optimizer.mask': the tensor is undefined"}) {
    CHECK(contains(error, part));
  }
  CHECK(to_doubles(state.tensors.at("optimizer.one")) == std::vector<double>{0});

  state.tensors["model.even"] = zeros({8, 4});
  state.tensors.erase("optimizer.step");
  state.tensors["optimizer.mask"] = zeros({5, 2}, DType::boolean);
  const LoadReport report = load_state(reader, state, {.strict = false, .cast = true});
  CHECK(report.missing == std::vector<std::string>{"model.new", "step"});
  CHECK(report.unexpected == std::vector<std::string>{"model.few", "model.six", "optimizer.step"});
  CHECK(std::get<std::int64_t>(state.scalars.at("step")) == 3);
}

TEST_CASE("a part of a state loads by its prefix") {
  const Folder folder;
  save_true(arrangements()[0], folder / "c");
  StateDict model = true_state(arrangements()[0]).part("model");
  for (auto& [name, tensor] : model.tensors) {
    tensor = zeros(tensor.shape(), tensor.dtype());
  }
  const CheckpointReader reader(folder / "c");
  load_state(reader, model, {.prefix = "model."});
  StateDict whole;
  whole.merge("model", model);
  CHECK(is_true(whole));
}

TEST_CASE("scalars and meta data come back exactly") {
  const Folder folder;
  StateDict state;
  state.scalars = {{"step", std::int64_t{1} << 62},
                   {"least", std::numeric_limits<std::int64_t>::min()},
                   {"lr", 0.1},
                   {"whole", 2.0},
                   {"zero", -0.0},
                   {"tiny", std::numeric_limits<double>::denorm_min()},
                   {"inf", -std::numeric_limits<double>::infinity()},
                   {"nan", std::numeric_limits<double>::quiet_NaN()},
                   {"text", std::string("a \"quoted\" \xc3\xa9\n")}};
  const std::string data = R"({"config":{"dim":256},"tokens":[1,2.5]})";
  on_ranks(2, [&](int) { save_checkpoint(folder / "c", state, data); });
  const CheckpointReader reader(folder / "c");
  CHECK(nlohmann::json::parse(reader.meta()) == nlohmann::json::parse(data));
  StateDict loaded = state;
  for (auto& [name, scalar] : loaded.scalars) {
    std::visit([](auto& value) { value = {}; }, scalar);
  }
  load_state(reader, loaded);
  CHECK(std::isnan(std::get<double>(loaded.scalars.at("nan"))));
  CHECK(std::signbit(std::get<double>(loaded.scalars.at("zero"))));
  loaded.scalars.erase("nan");
  state.scalars.erase("nan");
  CHECK(loaded.scalars == state.scalars);
}

TEST_CASE("an export is the whole tensors in one file, cast where asked") {
  const Folder folder;
  save_true(arrangements()[9], folder / "c");
  const CheckpointReader reader(folder / "c");
  const auto names =
      export_weights(reader, folder / "out", {.prefix = "model.", .exclude = {"n*"}});
  CHECK(names == std::vector<std::string>{"even", "few", "six", "uneven"});
  const auto stored = read_safetensors(folder / "out/model.safetensors");
  REQUIRE(stored.size() == 4);
  for (const auto& [name, tensor] : stored) {
    INFO(name);
    const TensorInfo& info = state_infos().at("model." + name);
    const std::size_t width = size_of(info.dtype);
    REQUIRE(tensor.bytes.size() == static_cast<std::size_t>(info.shape.product()) * width);
    for (std::size_t i = 0; i < tensor.bytes.size(); ++i) {
      REQUIRE(static_cast<unsigned char>(tensor.bytes[i]) ==
              byte_at("model." + name, static_cast<std::int64_t>(i / width), i % width));
    }
  }
  CHECK(SafetensorsFile(folder / "out/model.safetensors").metadata().at("format") == "pt");

  export_weights(SafetensorsFolder(folder / "out"), folder / "half", {.dtype = DType::bf16});
  CHECK(SafetensorsFolder(folder / "half").info("six") == TensorInfo{DType::bf16, {6, 3, 2}});
  CHECK(contains(input_error([&] { export_weights(reader, folder / "x", {.prefix = "nothing"}); }),
                 "nothing"));
}

TEST_CASE("the latest checkpoint is found, older ones are removed") {
  const Folder folder;
  CHECK(latest_checkpoint(folder / "none") == std::nullopt);
  CHECK(latest_checkpoint(folder / "") == std::nullopt);
  const Arrangement plain = arrangements()[0];
  for (const std::int64_t step : {5, 100, 20}) {
    save_true(plain, checkpoint_folder(folder / "", step));
  }
  folder.write("step-00000300.tmp-1/checkpoint.json", "{");
  folder.write("notes/step-00000400", "");
  REQUIRE(latest_checkpoint(folder / "") == checkpoint_folder(folder / "", 100));
  prune_checkpoints(HeldFolder(folder / ""), 2);
  CHECK(folder.names() ==
        std::vector<std::string>{"notes", "step-00000020", "step-00000100", "step-00000300.tmp-1"});
  folder.write("step-00000100/checkpoint.json", "{}");
  const std::string error = input_error([&] { latest_checkpoint(folder / ""); });
  CHECK(contains(error, "step-00000100', cannot be used"));
  CHECK(contains(error, "step-00000020', the newest good one"));
  CHECK_FALSE(input_error([&] { prune_checkpoints(HeldFolder(folder / ""), 0); }).empty());
}

TEST_CASE("checkpoints are removed in the folder that is held, not in one that has its name") {
  const Folder folder;
  for (const std::int64_t step : {1, 2}) {
    save_true(arrangements()[0], checkpoint_folder(folder / "run", step));
  }
  const HeldFolder held(folder / "run");
  std::filesystem::rename(folder / "run", folder / "moved");
  for (const std::int64_t step : {1, 2}) {
    save_true(arrangements()[0], checkpoint_folder(folder / "run", step));
  }
  prune_checkpoints(held, 1);
  CHECK(checkpoints_in(folder / "run").size() == 2);
  CHECK(checkpoints_in(folder / "moved") ==
        std::vector<std::string>{folder / "moved/step-00000002"});
}

TEST_CASE("a newest checkpoint on a disk that is not there is an error, and not passed over") {
  const Folder folder;
  save_true(arrangements()[0], checkpoint_folder(folder / "", 5));
  std::filesystem::create_directory_symlink("/nowhere/step-00000007", folder / "step-00000007");
  CHECK(checkpoints_in(folder / "") ==
        std::vector<std::string>{folder / "step-00000007", folder / "step-00000005"});
  const std::string error = input_error([&] { latest_checkpoint(folder / ""); });
  CHECK(contains(error, "step-00000007', cannot be used"));
  CHECK(contains(error, "step-00000005', the newest good one"));
}

TEST_CASE("a checkpoint whose index is damaged is not removed: which files are its is not known") {
  const Folder folder;
  const Arrangement plain = arrangements()[0];
  for (const std::int64_t step : {1, 2, 3}) {
    save_true(plain, checkpoint_folder(folder / "", step));
  }
  folder.write("step-00000001/checkpoint.json", "{}");
  const std::string error = run_error([&] { prune_checkpoints(HeldFolder(folder / ""), 1); });
  CHECK(contains(error, "old ones cannot be removed: '" + folder / "step-00000001" + "'"));
  CHECK(folder.names() == std::vector<std::string>{"step-00000001", "step-00000003"});
  CHECK(std::filesystem::exists(folder / "step-00000001/rank-0.safetensors"));
}

TEST_CASE("a removal that was interrupted is completed by the next one") {
  const Folder folder;
  save_true(arrangements()[0], checkpoint_folder(folder / "", 5));
  folder.write("step-00000003.tmp-removed/rank-7.safetensors", "half");
  folder.write("step-00000004.tmp-removed/notes.txt", "mine");
  const std::string error = run_error([&] { prune_checkpoints(HeldFolder(folder / ""), 1); });
  CHECK(contains(error, "step-00000004.tmp-removed' (notes.txt is in it"));
  CHECK(folder.names() == std::vector<std::string>{"step-00000004.tmp-removed", "step-00000005"});
}
