// Adapters of PEFT in folders of models: against PEFT's own logits.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "safetensors.hpp"
#include "support.hpp"
#include "trained.hpp"

import tessera.base;
import tessera.text;

using generation_test::reference;
using generation_test::trained;
using nlohmann::json;
using trainer_test::has;
using trainer_test::input_error;
using trainer_test::read_file;

namespace text = tessera::text;

namespace {

std::string folder_of(const std::string& adapter) { return reference + "adapters/" + adapter; }

json expected_of(const std::string& adapter) {
  return json::parse(read_file(folder_of(adapter) + "/expected.json"));
}

std::string base_of(const json& expected) {
  return reference + expected.value("base", std::string("folders/plain"));
}

/// The largest difference of the logits of all tokens from the stored ones.
double difference(const text::TextModel& model, const json& expected) {
  double largest = 0;
  for (std::size_t row = 0; row < expected["input_ids"].size(); ++row) {
    const auto ids = expected["input_ids"][row].get<std::vector<std::int64_t>>();
    for (std::size_t at = 0; at < ids.size(); ++at) {
      const auto logits = model.ranks().next_logits(std::vector<std::int64_t>{ids[at]}, 1, at == 0);
      const auto stored = expected["logits"][row][at].get<std::vector<double>>();
      REQUIRE(logits.size() == stored.size());
      for (std::size_t i = 0; i < logits.size(); ++i) {
        largest = std::max(largest, std::abs(logits[i] - stored[i]));
      }
    }
  }
  return largest;
}

}  // namespace

TEST_CASE("a model with an adapter has PEFT's logits") {
  for (const std::string name : {"lora", "rslora", "dora", "patterns", "saved_head", "conv1d",
                                 "conv1d_dora", "fused", "sinks"}) {
    INFO(name);
    const json expected = expected_of(name);
    const text::TextModel model({base_of(expected), "", "", folder_of(name)});
    // Both sides are in f32, with logits up to 6: products by AVX-512 are 3.4e-5 away at most.
    CHECK(difference(model, expected) < 5e-5);
    const text::TextModel without(base_of(expected));
    CHECK(difference(without, expected) > 1e-2);
  }
}

TEST_CASE("an adapter that does not fit is refused with all that differs") {
  const std::string plain = reference + "folders/plain";
  const auto error = [](const std::string& model, const std::string& adapter) {
    return input_error([&] { const text::TextModel opened({model, "", "", adapter}); });
  };
  const std::string other = error(reference + "gpt2/tied", folder_of("lora"));
  has(other, "the adapter does not fit the model of");
  has(other, "(it was made for 'plain'); name another one:");
  has(other, "layers that the model does not have: model.layers.0.self_attn.k_proj");
  has(error(plain, folder_of("conv1d")), "layers that the model does not have: transformer.h.0.");
  has(error(plain, reference + "nothing"), "adapter_config.json");
  has(error(trained().checkpoint, folder_of("lora")), "a checkpoint takes no adapter");

  const trainer_test::Folder folder;
  const auto changed = [&](const auto& change) {
    std::filesystem::remove_all(folder.path() / "adapter");
    std::filesystem::copy(folder_of("lora"), folder.path() / "adapter");
    json config = json::parse(read_file(folder_of("lora") + "/adapter_config.json"));
    change(config);
    folder.write("adapter/adapter_config.json", config.dump());
    return error(plain, (folder.path() / "adapter").string());
  };
  CHECK(changed([](json&) {}).empty());
  has(changed([](json& config) { config["r"] = 5; }),
      "lora_A has shape [4, 32] and the model needs [5, 32]");
  has(changed([](json& config) { config["use_dora"] = true; }),
      "tensors that the folder lacks: base_model.model.");
  has(changed([](json& config) { config["target_modules"] = {"q_proj"}; }),
      "layers whose tensors PEFT ignores");
  has(changed([](json& config) { config["target_parameters"] = {"x"}; }),
      "target_parameters [\"x\"] is not supported");
  has(changed([](json& config) { config["peft_type"] = "IA3"; }),
      "it describes another kind of adapter");
  has(changed([](json& config) { config["modules_to_save"] = 5; }),
      "modules_to_save: expected a text or a list of texts, got 5");
}

TEST_CASE("an adapter of experts' parameters is refused by their names") {
  const std::string refused = input_error([] {
    const text::TextModel opened({reference + "families/gpt_oss", "", "", folder_of("experts")});
  });
  has(refused, "target_parameters");
  has(refused, "mlp.experts.gate_up_proj");
  has(refused, "mlp.experts.down_proj");
}

TEST_CASE("commands take an adapter, on several ranks too") {
  const std::string files =
      trained().model + " --prompt \"Question: \" --temperature 0 --tokens 4 --adapter ";
  const auto refused = trainer_test::run_program("generate " + files + folder_of("lora"));
  CHECK(refused.code == 2);
  has(refused.error, "the adapter does not fit the model of");
  // An update of one layer.
  constexpr std::size_t dim = 48;
  const auto values = [](std::vector<std::int64_t> shape, double scale) {
    std::vector<float> all(dim);
    for (std::size_t i = 0; i < dim; ++i) {
      all[i] = static_cast<float>(scale * std::sin(static_cast<double>(i)));
    }
    const auto* bytes = reinterpret_cast<const std::byte*>(all.data());
    return StoredTensor{"F32", std::move(shape), {bytes, bytes + all.size() * sizeof(float)}};
  };
  const trainer_test::Folder folder;
  folder.write(
      "adapter_config.json",
      json{{"peft_type", "LORA"}, {"r", 1}, {"lora_alpha", 1}, {"target_modules", {"o_proj"}}}
          .dump());
  const std::string layer = "base_model.model.model.layers.0.self_attn.o_proj.lora_";
  write_safetensors(
      (folder.path() / "adapter_model.safetensors").string(),
      {{layer + "A.weight", values({1, dim}, 1)}, {layer + "B.weight", values({dim, 1}, 5)}});
  const auto written = [&](const std::string& more) {
    return trained().succeed("generate " + files + folder.path().string() + more);
  };
  const std::string alone = written("");
  CHECK(alone != trained().succeed("generate " + trained().model +
                                   " --prompt \"Question: \" --temperature 0 --tokens 4"));
  CHECK(written(" --ranks 2") == alone);
}
