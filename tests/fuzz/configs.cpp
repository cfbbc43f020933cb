// Configs of runs, models, adapters and hardware.
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "target.hpp"

import tessera.base;
import tessera.tensor;
import tessera.nn;
import tessera.models;
import tessera.runs;
import tessera.app.base;
import tessera.app.config;
import tessera.hub;
import tessera.encoders;
import tessera.app.plan;

using namespace tessera;

namespace {

const fuzz::Target run_config{
    "run_config",
    [](std::string_view input) {
      const runs::RunSpec config = app::parse_config(input, "/folder/run.toml");
      const std::string text = app::to_toml(config);
      fuzz::expect(to_json(app::parse_config(text, "/folder/run.toml")) == to_json(config),
                   "config: its text is of another one");
    },
    {"configs/demo.toml", "configs/three_d.toml", "configs/lora.toml", "configs/float8.toml",
     "configs/pipeline.toml", "configs/shared_experts.toml"}};

/// Values on the command line, "train.steps=5", one in each line.
const fuzz::Target config_override{
    "config_override", [](std::string_view input) {
      std::vector<std::string> overrides;
      std::istringstream lines{std::string(input)};
      for (std::string line; std::getline(lines, line);) {
        overrides.push_back(line);
      }
      static_cast<void>(
          app::parse_config("[data]\ntext = [\"a.txt\"]\n[mesh]\naxes = [\"a\"]\nshape = [2]\n",
                            "/folder/run.toml", overrides));
    }};

const fuzz::Target family_file{
    "family_file",
    [](std::string_view input) {
      const models::FamilyFile file = models::read_family_file("a.family.toml", input);
      const models::DecoderFamily family(file.traits);
      models::ModelSizes sizes;
      sizes.vocab = 16;
      sizes.values = models::ModelValues(family.keys());
      if (family.complete(sizes).empty()) {
        static_cast<void>(family.parameters(sizes));
        static_cast<void>(family.tensors(sizes));
        static_cast<void>(family.write(sizes));
      }
    },
    {"modules/models/families/llama.family.toml", "modules/models/families/gpt_neox.family.toml",
     "modules/models/families/stablelm.family.toml", "modules/models/families/smollm3.family.toml",
     "modules/models/families/qwen2_moe.family.toml"}};

const fuzz::Target model_config{
    "model_config",
    [](std::string_view input) {
      const hub::ModelShape shape = hub::parse_hub_config(input, "config.json");
      static_cast<void>(shape.text());
      static_cast<void>(shape.parameters());
      fuzz::expect(hub::parse_hub_config(hub::hub_config(shape), "again") == shape,
                   "config.json: what is written is another model");
    },
    {"tests/reference/data/decoders/qwen3/config.json",
     "tests/reference/data/decoders/gemma3/config.json",
     "tests/reference/data/decoders/llama3/config.json",
     "tests/reference/data/decoders/phi3/config.json",
     "tests/reference/data/decoders/qwen2_moe/config.json",
     "tests/reference/data/decoders/mistral/config.json"}};

const fuzz::Target image_processor{
    "image_processor",
    [](std::string_view input) {
      const encoders::EncoderShape shape{.image_size = 12, .patch_size = 4, .channels = 3};
      const encoders::ImageProcessor images(input, "preprocessor_config.json", shape);
      const encoders::ImageProcessor again(images.text(), "again", shape);
      fuzz::expect(again.text() == images.text(),
                   "preprocessor_config.json: what is written is another processor");
    },
    {"tests/reference/data/image_classification/vit/preprocessor_config.json"}};

const fuzz::Target adapter_config{
    "adapter_config",
    [](std::string_view input) {
      const hub::PeftConfig config =
          hub::read_peft_config(fuzz::file_of(input, "adapter_config.json"));
      for (const char* const module : {"model.layers.0.self_attn.q_proj", "lm_head", ""}) {
        static_cast<void>(config.of(module));
        static_cast<void>(config.targets.contains(module));
      }
    },
    {"tests/reference/data/adapters/lora/adapter_config.json",
     "tests/reference/data/adapters/dora/adapter_config.json",
     "tests/reference/data/adapters/patterns/adapter_config.json"}};

const fuzz::Target hardware{
    "hardware",
    [](std::string_view input) {
      const app::Hardware one = app::read_hardware(fuzz::file_of(input, "hardware.toml"));
      const app::Hardware again =
          app::read_hardware(fuzz::file_of(app::hardware_text(one), "hardware.toml"));
      fuzz::expect(app::hardware_text(again) == app::hardware_text(one),
                   "hardware: its text is of another one");
    },
    {"configs/hardware"}};

}  // namespace
