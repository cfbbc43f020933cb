// Files whose weights are computed from their codes: GGUF files, model folders, adapters.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
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
