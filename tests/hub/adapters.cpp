// Weights as they are read with low-rank updates merged into them, where the weight itself is kept
// as 4-bit codes: against the values that torchao decodes. And what PEFT's adapter_config.json says
// of each layer, against PEFT's own functions.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.checkpoint;
import tessera.hub;

#include "support.hpp"

using namespace tessera;

namespace {

constexpr std::int64_t kRows = 192;
constexpr std::int64_t kColumns = 256;

/// A layer of 192 x 256 with a weight in 4-bit codes and an update of rank 2.
std::map<std::string, Tensor> packed_layer() {
  const SafetensorsFile stored(TESSERA_SOURCE_FOLDER "/tests/reference/data/nf4.safetensors");
  std::map<std::string, Tensor> tensors;
  for (const std::string part : {"codes", "scales", "factors", "mean"}) {
    tensors.emplace("model.layer." + part, stored.read(part));
  }
  std::vector<float> a(2 * kColumns);
  std::vector<float> b(kRows * 2);
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<float>(std::sin(static_cast<double>(i)));
  }
  for (std::size_t i = 0; i < b.size(); ++i) {
    b[i] = static_cast<float>(std::cos(static_cast<double>(i)));
  }
  tensors.emplace("model.layer.lora_A", from_values(std::span<const float>(a), {2, kColumns}));
  tensors.emplace("model.layer.lora_B", from_values(std::span<const float>(b), {kRows, 2}));
  tensors.emplace("model.norm.weight", full({4}, 3));
  return tensors;
}

hub::Updates updates(const std::string& packing) {
  return {{"layer", {.rank = 2, .alpha = 3, .packing = packing}}};
}

}  // namespace

TEST_CASE("a weight in 4-bit codes is read decoded, with its update", "[adapters]") {
  const TensorsInMemory source(packed_layer());
  const hub::MergedWeights merged(source, updates("nf4"), "model.");
  CHECK(merged.tensors().size() == 2);
  CHECK(merged.info("model.layer.weight") == TensorInfo{DType::f32, {kRows, kColumns}});
  CHECK(to_doubles(merged.read("model.norm.weight")) == std::vector<double>{3, 3, 3, 3});

  const SafetensorsFile stored(TESSERA_SOURCE_FOLDER "/tests/reference/data/nf4.safetensors");
  const std::vector<double> values = to_doubles(stored.read("values"));
  const std::vector<double> a = to_doubles(source.read("model.layer.lora_A"));
  const std::vector<double> b = to_doubles(source.read("model.layer.lora_B"));
  // Whole, and a box whose rows begin inside of a factor's block of scales.
  for (const LocalPart& box :
       {LocalPart{{0, 0}, {kRows, kColumns}}, LocalPart{{70, 3}, {60, 90}}}) {
    const Tensor read = empty(box.shape, DType::f32);
    merged.read("model.layer.weight", box, read);
    const std::vector<double> got = to_doubles(read);
    double largest = 0;
    for (std::int64_t i = 0; i < box.shape[0]; ++i) {
      for (std::int64_t j = 0; j < box.shape[1]; ++j) {
        const auto row = static_cast<std::size_t>(box.offset[0] + i);
        const auto column = static_cast<std::size_t>(box.offset[1] + j);
        const double expected =
            values[row * kColumns + column] +
            1.5 * (b[2 * row] * a[column] + b[2 * row + 1] * a[kColumns + column]);
        const double difference = got[static_cast<std::size_t>(i * box.shape[1] + j)] - expected;
        largest = std::max(largest, std::fabs(difference));
      }
    }
    CHECK(largest < 4e-6);  // values up to 12
  }
}

TEST_CASE("codes that do not fit each other, or another form, are refused", "[adapters]") {
  const auto error = [](const char* part, const Tensor& other, const std::string& packing = "nf4") {
    std::map<std::string, Tensor> tensors = packed_layer();
    tensors[std::string("model.layer.") + part] = other;
    const TensorsInMemory source(std::move(tensors));
    return testing::error_of([&] { hub::MergedWeights(source, updates(packing), "model."); });
  };
  CHECK(error("codes", empty({kRows, 100}, DType::u8)).find("blocks of 64") != std::string::npos);
  CHECK(error("scales", empty({kRows, 3}, DType::i8)).find("layer.scales") != std::string::npos);
  CHECK(error("factors", empty({2}, DType::f32)).find("f32 [3]") != std::string::npos);
  CHECK(error("mean", empty({1}, DType::f64)).find("layer.mean") != std::string::npos);
  CHECK(error("lora_A", empty({3, kColumns}, DType::f32)).find("layer.lora_A") !=
        std::string::npos);
  CHECK(error("mean", full({1}, 0), "int4").find("'int4'") != std::string::npos);
}

namespace {

using OrderedJson = nlohmann::ordered_json;

hub::PeftConfig read_config(const trainer_test::Folder& folder, OrderedJson json) {
  json["peft_type"] = "LORA";
  return hub::read_peft_config(folder.write("adapter_config.json", json.dump()));
}

const OrderedJson& peft_results() {
  static const OrderedJson results = OrderedJson::parse(
      trainer_test::read_file(TESSERA_SOURCE_FOLDER "/tests/reference/data/peft_patterns.json"));
  return results;
}

}  // namespace

TEST_CASE("of several patterns that match a layer, the first of the file decides", "[adapters]") {
  const trainer_test::Folder folder;
  const auto modules = peft_results()["modules"].get<std::vector<std::string>>();
  for (const auto& sample : peft_results()["patterns"]) {
    INFO(sample["pattern"].dump());
    const hub::PeftConfig config = read_config(folder, {{"r", 1},
                                                        {"lora_alpha", 1},
                                                        {"rank_pattern", sample["pattern"]},
                                                        {"alpha_pattern", sample["pattern"]}});
    CHECK(config.problems.empty());
    for (std::size_t i = 0; i < modules.size(); ++i) {
      INFO(modules[i]);
      CHECK(config.of(modules[i]).rank == sample["values"][i].get<std::int64_t>());
      CHECK(config.of(modules[i]).alpha == sample["values"][i].get<double>());
    }
  }
  for (const char* pattern : {".*q_proj", "layers\\.0", "q_proj$", "(q|v)_proj", "x^q_proj"}) {
    INFO(pattern);
    const hub::PeftConfig config = read_config(folder, {{"rank_pattern", {{pattern, 2}}}});
    REQUIRE(config.problems.size() == 1);
    CHECK(config.problems[0].find("is a regular expression") != std::string::npos);
  }
}

TEST_CASE("the layers that PEFT gives an update are known", "[adapters]") {
  const trainer_test::Folder folder;
  const auto modules = peft_results()["modules"].get<std::vector<std::string>>();
  for (const auto& sample : peft_results()["targets"]) {
    INFO(sample["config"].dump());
    const auto expected = sample["modules"].get<std::set<std::string>>();
    const hub::PeftConfig config = read_config(folder, sample["config"]);
    CHECK(config.problems.empty());
    for (const std::string& module : modules) {
      INFO(module);
      CHECK(config.targets.contains(module) == (expected.count(module) > 0));
    }
  }
}

TEST_CASE("patterns that go out give every layer its own values", "[adapters]") {
  // Ends of each other, and names that differ only where another has a dot.
  hub::Updates updates;
  std::set<std::string> modules;
  std::int64_t rank = 1;
  for (const char* name : {"b.q", "a.b.q", "c.a.b.q", "a_b.q", "a.b_q", "a_b_q", "q", "c.q", "d"}) {
    updates[name] = {.rank = rank, .alpha = static_cast<double>(rank) / 2};
    modules.insert(name);
    rank = rank % 3 + 1;
  }
  const trainer_test::Folder folder;
  const hub::PeftConfig config = hub::read_peft_config(
      folder.write("adapter_config.json", hub::peft_config(updates, modules, "base")));
  CHECK(config.problems.empty());
  CHECK(config.base == "base");
  for (const auto& [module, update] : updates) {
    INFO(module);
    CHECK(config.of(module).rank == update.rank);
    CHECK(config.of(module).alpha == update.alpha);
    CHECK(config.targets.contains(module));
  }
}

TEST_CASE("layers of newer families have PEFT's names, or adapters are refused by their name",
          "[adapters]") {
  const auto check = [](const std::string& family, const std::string& layer) {
    const std::string folder = TESSERA_SOURCE_FOLDER "/tests/reference/data/families/" + family;
    const hub::ModelShape shape = hub::read_model_folder(folder);
    const std::vector<std::string> layers = {layer};
    hub::check_takes_adapters(hub::family_of(shape), hub::sizes_of(shape), layers, "run.toml");
  };
  const std::string first = "model.layers.0.";
  const std::string second = "model.layers.1.";
  check("deepseek_v3", first + "self_attn.kv_a_proj_with_mqa");
  check("deepseek_v3", first + "self_attn.q_b_proj");
  check("gpt_oss", first + "self_attn.q_proj");
  check("llama4", first + "self_attn.o_proj");
  check("qwen3_next", second + "self_attn.k_proj");
  check("kimi_linear", second + "self_attn.kv_b_proj");
  for (const auto& [family, layer] :
       {std::pair{"qwen3_next", first + "recurrent.q_proj"},
        {"qwen3_next", second + "self_attn.q_proj"},  // with a gate by heads
        {"mamba2", first + "recurrent.o_proj"},
        {"lfm2", first + "recurrent.o_proj"},
        {"kimi_linear", first + "recurrent.gate_a_proj"},
        {"falcon", first + "self_attn.q_proj"}}) {
    INFO(family << ", " << layer);
    const std::string error = testing::input_error([&] { check(family, layer); });
    CHECK(error.find(layer + ", which a folder has in another form") != std::string::npos);
  }
}
