// Files whose weights are computed from their codes: GGUF files, model folders, adapters.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "folder.hpp"
#include "safetensors.hpp"

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.checkpoint;
import tessera.coded;
import tessera.hub;
import tessera.text;

using namespace tessera;
using coded::WeightForm;
using nlohmann::json;
using testing::contains;

namespace {

const std::string reference = TESSERA_REFERENCE_DATA "/";

/// A Llama with rows of whole blocks.
std::string wide_folder(const testing::Folder& scratch) {
  constexpr std::int64_t dim = 64;
  constexpr std::int64_t ffn = 256;
  constexpr std::int64_t vocab = 96;
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 0.2F);
  std::map<std::string, StoredTensor> tensors;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    const bool matrix = shape.size() > 1;
    std::vector<float> values(static_cast<std::size_t>(shape[0] * (matrix ? shape[1] : 1)));
    for (float& value : values) {
      value = matrix ? normal(random) : 1 + normal(random);
    }
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    tensors[name + ".weight"] = {
        "F32", std::move(shape), {bytes, bytes + values.size() * sizeof(float)}};
  };
  add("model.embed_tokens", {vocab, dim});
  add("lm_head", {vocab, dim});
  add("model.norm", {dim});
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    add(layer + "input_layernorm", {dim});
    add(layer + "post_attention_layernorm", {dim});
    add(layer + "self_attn.q_proj", {dim, dim});
    add(layer + "self_attn.k_proj", {dim / 2, dim});
    add(layer + "self_attn.v_proj", {dim / 2, dim});
    add(layer + "self_attn.o_proj", {dim, dim});
    add(layer + "mlp.gate_proj", {ffn, dim});
    add(layer + "mlp.up_proj", {ffn, dim});
    add(layer + "mlp.down_proj", {dim, ffn});
  }
  json config = json::parse(testing::read_file(reference + "folders/plain/config.json"));
  config["hidden_size"] = dim;
  config["intermediate_size"] = ffn;
  config["vocab_size"] = vocab;
  config["num_hidden_layers"] = 2;
  config["num_attention_heads"] = 4;
  config["num_key_value_heads"] = 2;
  config["head_dim"] = dim / 4;
  const std::string folder = scratch / "wide";
  scratch.write("wide/config.json", config.dump());
  write_safetensors(folder + "/model.safetensors", tensors);
  return folder;
}

/// Tensors with random values, as a file of safetensors has them.
class RandomTensors {
 public:
  void add(const std::string& name, const std::vector<std::int64_t>& shape, float middle = 0) {
    std::vector<float> values(count(shape));
    for (float& value : values) {
      value = middle + normal_(random_);
    }
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    all_[name] = {"F32", shape, {bytes, bytes + values.size() * sizeof(float)}};
  }
  /// Bytes from `least` on, so many different ones.
  void add_bytes(const std::string& name, const std::vector<std::int64_t>& shape, unsigned least,
                 unsigned different) {
    std::vector<std::byte> bytes(count(shape));
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(least + random_() % different);
    }
    all_[name] = {"U8", shape, bytes};
  }
  const std::map<std::string, StoredTensor>& all() const { return all_; }

 private:
  static std::size_t count(const std::vector<std::int64_t>& shape) {
    std::size_t product = 1;
    for (const std::int64_t extent : shape) {
      product *= static_cast<std::size_t>(extent);
    }
    return product;
  }
  std::mt19937 random_{7};
  std::normal_distribution<float> normal_{0, 0.2F};
  std::map<std::string, StoredTensor> all_;
};

/// Attention, norms, embeddings.
void add_rest(RandomTensors& tensors, std::int64_t dim, std::int64_t vocab, bool biases) {
  tensors.add("model.embed_tokens.weight", {vocab, dim});
  tensors.add("lm_head.weight", {vocab, dim});
  tensors.add("model.norm.weight", {dim}, 1);
  const std::string layer = "model.layers.0.";
  tensors.add(layer + "input_layernorm.weight", {dim}, 1);
  tensors.add(layer + "post_attention_layernorm.weight", {dim}, 1);
  for (const std::string name : {"q", "k", "v", "o"}) {
    tensors.add(layer + "self_attn." + name + "_proj.weight", {dim, dim});
    if (biases) {
      tensors.add(layer + "self_attn." + name + "_proj.bias", {dim});
    }
  }
}

/// A Mixtral whose experts have rows of whole blocks; a folder has each of them alone.
std::string mixtral_folder(const testing::Folder& scratch) {
  RandomTensors tensors;
  add_rest(tensors, 64, 96, false);
  const std::string mixture = "model.layers.0.block_sparse_moe.";
  tensors.add(mixture + "gate.weight", {4, 64});
  for (int expert = 0; expert < 4; ++expert) {
    const std::string own = mixture + "experts." + std::to_string(expert) + ".w";
    tensors.add(own + "1.weight", {256, 64});
    tensors.add(own + "3.weight", {256, 64});
    tensors.add(own + "2.weight", {64, 256});
  }
  const json config = {{"model_type", "mixtral"},
                       {"architectures", {"MixtralForCausalLM"}},
                       {"hidden_size", 64},
                       {"intermediate_size", 256},
                       {"vocab_size", 96},
                       {"num_hidden_layers", 1},
                       {"num_attention_heads", 4},
                       {"num_key_value_heads", 4},
                       {"num_local_experts", 4},
                       {"num_experts_per_tok", 2},
                       {"max_position_embeddings", 64},
                       {"sliding_window", nullptr},
                       {"rms_norm_eps", 1e-5},
                       {"rope_theta", 10000.0},
                       {"tie_word_embeddings", false}};
  scratch.write("mixtral/config.json", config.dump());
  write_safetensors((scratch / "mixtral") + "/model.safetensors", tensors.all());
  return scratch / "mixtral";
}

/// A gpt-oss with its experts in MXFP4.
std::string gpt_oss_folder(const testing::Folder& scratch) {
  RandomTensors tensors;
  add_rest(tensors, 64, 96, true);
  const std::string layer = "model.layers.0.";
  tensors.add(layer + "self_attn.sinks", {4});
  tensors.add(layer + "mlp.router.weight", {4, 64});
  tensors.add(layer + "mlp.router.bias", {4});
  const std::string experts = layer + "mlp.experts.";
  tensors.add(experts + "gate_up_proj_bias", {4, 192});
  tensors.add(experts + "down_proj_bias", {4, 64});
  tensors.add_bytes(experts + "gate_up_proj_blocks", {4, 192, 2, 16}, 0, 256);
  tensors.add_bytes(experts + "gate_up_proj_scales", {4, 192, 2}, 122, 4);
  tensors.add_bytes(experts + "down_proj_blocks", {4, 64, 3, 16}, 0, 256);
  tensors.add_bytes(experts + "down_proj_scales", {4, 64, 3}, 122, 4);
  json config = json::parse(testing::read_file(reference + "families/gpt_oss/config.json"));
  config["hidden_size"] = 64;
  config["intermediate_size"] = 96;
  config["vocab_size"] = 96;
  config["num_hidden_layers"] = 1;
  config["layer_types"] = {"full_attention"};
  config["num_attention_heads"] = 4;
  config["num_key_value_heads"] = 4;
  config["head_dim"] = 16;
  config["num_local_experts"] = 4;
  config["num_experts_per_tok"] = 2;
  config["attention_bias"] = true;
  config["swiglu_limit"] = 7.0;  // what a GGUF file does not say
  config["tie_word_embeddings"] = false;
  config["quantization_config"] = {{"quant_method", "mxfp4"}};
  scratch.write("gpt_oss/config.json", config.dump());
  write_safetensors((scratch / "gpt_oss") + "/model.safetensors", tensors.all());
  return scratch / "gpt_oss";
}

/// The same model as a GGUF file.
std::string gguf_of(const std::string& folder, const std::string& type, const std::string& to) {
  const NoGrad no_grad;
  hub::ModelShape shape = hub::read_model_folder(folder);
  shape.dtype = "float32";
  const OpenedTensors opened = hub::open_hub_tensors(folder);
  const auto tensors =
      hub::gguf_tensors(*opened.source, {.config = hub::hub_config(shape), .type = type});
  checkpoint_format("gguf").write(*tensors, to, {});
  return to + "/model.gguf";
}

text::ModelFiles as(text::ModelFiles files, WeightForm form) {
  files.precision = form;
  return files;
}

std::vector<double> logits_of(const text::ModelFiles& files, WeightForm form) {
  const text::TextModel model(as(files, form));
  return model.ranks().next_logits(std::vector<std::int64_t>{3, 1, 7, 5}, 1, true);
}

std::int64_t bytes_of(const text::ModelFiles& files, WeightForm form) {
  return text::TextModel(as(files, form)).parameter_bytes();
}

/// The norm of the difference over that of the first ones.
double distance(const std::vector<double>& from, const std::vector<double>& other) {
  REQUIRE(from.size() == other.size());
  double squares = 0;
  double all = 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    squares += (from[i] - other[i]) * (from[i] - other[i]);
    all += from[i] * from[i];
  }
  return std::sqrt(squares / all);
}

}  // namespace

TEST_CASE("a GGUF file is computed from its codes, with the logits of their values") {
  const testing::Folder scratch;
  const std::string folder = wide_folder(scratch);
  const std::vector<double> exact = logits_of(folder, WeightForm::f32);
  for (const std::string type : {"BF16", "F16", "Q8_0", "Q4_0", "Q4_K_M"}) {
    INFO(type);
    const text::ModelFiles file(gguf_of(folder, type, scratch / type));
    const std::vector<double> stored = logits_of(file, WeightForm::stored);
    CHECK(distance(logits_of(file, WeightForm::f32), stored) < 2e-6);  // the order of sums
    CHECK(bytes_of(file, WeightForm::stored) < bytes_of(file, WeightForm::f32) * 3 / 5);
    CHECK(distance(exact, stored) > 1e-5);
    CHECK(distance(exact, stored) < 0.6);
  }
}

TEST_CASE("experts of a GGUF file are computed from its codes, those of a folder from ours") {
  const testing::Folder scratch;
  const std::string folder = mixtral_folder(scratch);
  const std::vector<double> exact = logits_of(folder, WeightForm::f32);
  for (const std::string type : {"BF16", "F16", "Q8_0", "Q4_0", "Q4_K_M"}) {
    INFO(type);
    const text::ModelFiles file(gguf_of(folder, type, scratch / type));
    const std::vector<double> stored = logits_of(file, WeightForm::stored);
    CHECK(distance(logits_of(file, WeightForm::f32), stored) < 2e-6);  // the order of sums
    CHECK(bytes_of(file, WeightForm::stored) < bytes_of(file, WeightForm::f32) * 11 / 20);
    CHECK(distance(exact, stored) > 1e-5);
    CHECK(distance(exact, stored) < 0.6);
  }
  for (const WeightForm form : {WeightForm::bf16, WeightForm::int8, WeightForm::q4_k}) {
    CHECK(distance(exact, logits_of(folder, form)) > 1e-5);
    CHECK(distance(exact, logits_of(folder, form)) < (form == WeightForm::q4_k ? 0.6 : 0.1));
    CHECK(bytes_of(folder, form) < bytes_of(folder, WeightForm::f32) * 11 / 20);
  }
}

TEST_CASE("experts in MXFP4 stay in it, and compute what their values do") {
  const testing::Folder scratch;
  const text::ModelFiles folder(gpt_oss_folder(scratch));
  const std::vector<double> stored = logits_of(folder, WeightForm::stored);
  CHECK(distance(logits_of(folder, WeightForm::f32), stored) < 2e-6);
  // 17 bytes for 32 numbers of 4 experts.
  const std::int64_t numbers = 4 * (192 * 64 + 64 * 96);
  CHECK(bytes_of(folder, WeightForm::f32) - bytes_of(folder, WeightForm::stored) ==
        numbers * 4 - numbers / 32 * 17);
  text::ModelFiles rounded = folder;
  rounded.activations = coded::Activations::int8;
  const double apart = distance(stored, logits_of(rounded, WeightForm::stored));
  CHECK(apart > 1e-5);
  CHECK(apart < 0.05);
}

TEST_CASE("experts whose gates share a folder's tensor keep the codes of a file") {
  const testing::Folder scratch;
  const std::string folder = gpt_oss_folder(scratch);
  const text::ModelFiles file(gguf_of(folder, "Q8_0", scratch / "file"));
  const std::vector<double> stored = logits_of(file, WeightForm::stored);
  CHECK(distance(logits_of(file, WeightForm::f32), stored) < 2e-6);
  CHECK(distance(logits_of(folder, WeightForm::f32), stored) < 0.1);
  const std::int64_t numbers = 4 * (192 * 64 + 64 * 96);
  CHECK(bytes_of(file, WeightForm::f32) - bytes_of(file, WeightForm::stored) >=
        numbers * 4 - numbers / 32 * 34);
}

TEST_CASE("numbers of 4 bits have the values that transformers and ggml's package decode") {
  const NoGrad no_grad;
  const SafetensorsFile file(reference + "mxfp4.safetensors");
  const auto unpacked = hub::unpacked_mxfp4(file);
  const std::string name = "model.layers.0.mlp.experts.gate_up_proj";
  const Tensor rows = unpacked->stored_rows(name, 0, 128);
  REQUIRE(rows.shape() == Dims{128, 2 * 17});
  const Tensor decoded = coded::decoded({.type = coded::CodeType::mxfp4, .codes = rows});
  // [experts, in, out]
  CHECK(to_doubles(decoded) ==
        to_doubles(ops::reshape(ops::transpose(file.read("values"), 1, 2), {128, 64})));
  // Rows of two experts.
  const Tensor some = unpacked->stored_rows(name, 60, 10);
  CHECK(to_doubles(some) == to_doubles(ops::narrow(rows, 0, 60, 10)));

  const OpenedTensors types = open_tensors(reference + "gguf/types.gguf");
  const Tensor blocks = types.source->stored_rows("MXFP4", 0, 18);  // of a stack
  REQUIRE(blocks.defined());
  CHECK(to_doubles(coded::decoded({.type = coded::CodeType::mxfp4, .codes = blocks})) ==
        to_doubles(types.source->read("MXFP4")));
}

namespace {

/// A family's small model with these weights; `form`: of its layers.
std::shared_ptr<nn::LanguageModel> family_model(const std::string& folder, WeightForm form) {
  const hub::ModelShape shape = hub::read_model_folder(folder);
  const OpenedTensors opened = hub::open_hub_tensors(folder);
  const hub::HubWeights weights(*opened.source, hub::family_of(shape), hub::sizes_of(shape));
  auto model = hub::make_model(shape, 0);
  for (nn::SparseMixture* const mixture : nn::all_mixtures(*model)) {
    if (weights.contains(mixture->name() + ".choice_bias")) {
      mixture->add_bias();
    }
  }
  model->set_names();
  text::set_weight_form(*model, form, 1);
  nn::materialize(*model);
  hub::load_model_weights(weights, *model);
  model->train(false);
  return model;
}

/// Gives a weight the values of its codes in 8 bits by rows, which are near it.
void take_rounded(const Tensor& weight, const nn::Module& layer, const std::string& name) {
  const std::string own = name == "weight" ? "" : name + "_";
  const Tensor codes = layer.parameter(own + "codes")->value;
  const Tensor scales = layer.parameter(own + "scales")->value;
  REQUIRE(codes.shape() == weight.shape());
  const std::int64_t columns = weight.size(-1);
  const auto* const code = static_cast<const std::int8_t*>(codes.raw_data());
  for (std::int64_t i = 0; i < weight.numel(); ++i) {
    const float scale = scales.data<float>()[i / columns];
    const float value = static_cast<float>(code[i]) * scale;
    if (std::abs(value - weight.data<float>()[i]) > 0.50001F * scale) {
      FAIL(layer.name() << " " << name << ", element " << i);
    }
    weight.data<float>()[i] = value;
  }
}

}  // namespace

TEST_CASE("experts of every family compute in 8 bits what their rounded matrices do") {
  const NoGrad no_grad;
  const std::vector<std::int64_t> numbers = {1, 7, 3, 2, 9, 4};
  const Tensor tokens = from_values(std::span(numbers), {1, 6});
  for (const std::string family :
       {"olmoe", "gpt_oss", "deepseek_v2", "deepseek_v3", "granitemoe", "glm4_moe", "minimax_m2",
        "qwen3_next", "llama4", "ernie4_5_moe", "nemotron_h", "kimi_linear", "granitemoehybrid",
        "glm4_moe_lite"}) {
    INFO(family);
    const std::string folder = reference + "families/" + family;
    const auto in_codes = family_model(folder, WeightForm::int8);
    const auto plain = family_model(folder, WeightForm::f32);
    int stacks = 0;
    int matched = 0;
    int all = 0;
    for (const nn::Module* const module : nn::all_modules(*in_codes)) {
      for (const nn::PackedWeight& packed : nn::packed_weights_of(*module)) {
        ++all;
        for (const nn::ParameterPointer& parameter : nn::all_parameters(*plain)) {
          if (parameter->name == module->name() + "." + packed.name) {
            ++matched;
            take_rounded(parameter->value, *module, packed.name);
            stacks += packed.shape.size() == 3 ? 1 : 0;
          }
        }
      }
    }
    CHECK(stacks > 0);
    CHECK(matched == all);
    const double apart = distance(to_doubles((*plain)(tokens)), to_doubles((*in_codes)(tokens)));
    CHECK(apart < 1e-5);
  }
}

TEST_CASE("Q4_K_M has the types that llama-quantize gives the tensors") {
  const testing::Folder scratch;
  const OpenedTensors opened =
      open_tensors(gguf_of(wide_folder(scratch), "Q4_K_M", scratch / "file"));
  const std::map<std::string, std::string> types = {
      {"output.weight", "Q8_0"},  // 64 columns: no whole blocks of 256
      {"token_embd.weight", "Q5_0"},     {"output_norm.weight", "F32"},
      {"blk.0.attn_q.weight", "Q5_0"},   {"blk.1.attn_v.weight", "Q8_0"},
      {"blk.0.ffn_down.weight", "Q4_K"}, {"blk.1.ffn_down.weight", "Q6_K"},
      {"blk.1.ffn_norm.weight", "F32"}};
  for (const auto& [name, type] : types) {
    INFO(name);
    CHECK(opened.source->stored_type(name) == type);
  }
}

TEST_CASE("a model folder has the form that is asked for, and an adapter is merged before") {
  const testing::Folder scratch;
  const text::ModelFiles folder(wide_folder(scratch));
  const std::vector<double> exact = logits_of(folder, WeightForm::f32);
  CHECK(logits_of(folder, WeightForm::stored) == exact);
  for (const WeightForm form : {WeightForm::bf16, WeightForm::int8, WeightForm::q8_0}) {
    CHECK(distance(exact, logits_of(folder, form)) > 1e-6);
    CHECK(distance(exact, logits_of(folder, form)) < 0.1);
    CHECK(bytes_of(folder, form) < bytes_of(folder, WeightForm::f32) * 3 / 5);
  }
  // Merged weights are sums in f32, whatever the form of the base.
  const text::ModelFiles adapted(reference + "folders/plain", "", "", reference + "adapters/lora");
  CHECK(logits_of(adapted, WeightForm::stored) == logits_of(adapted, WeightForm::f32));
  CHECK(distance(logits_of(adapted, WeightForm::f32), logits_of(adapted, WeightForm::bf16)) < 0.05);
}

TEST_CASE("a file whose codes have a scale that is NaN is refused, as with decoded weights") {
  const testing::Folder scratch;
  const std::string file = gguf_of(wide_folder(scratch), "Q8_0", scratch / "file");
  std::string bytes = testing::read_file(file);
  // The scale of the last tensor's first block; tensors are filled up to 32 bytes.
  const TensorInfo last = open_tensors(file).source->info("token_embd.weight");
  const auto size = static_cast<std::size_t>(last.shape.product() / 32 * 34);
  bytes[bytes.size() - (size + 31) / 32 * 32 + 1] = '\x7f';
  scratch.write("file/model.gguf", bytes);
  for (const WeightForm form : {WeightForm::stored, WeightForm::f32}) {
    const std::string error = testing::input_error([&] { logits_of(file, form); });
    CHECK(contains(error, "nan"));
    CHECK(contains(error, "[0, 0]"));
  }
}
