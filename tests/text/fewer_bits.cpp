// Weights in fewer bits: how commands keep them, and exports in other forms.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "safetensors.hpp"
#include "support.hpp"
#include "trained.hpp"

import tessera.base;
import tessera.tensor;
import tessera.coded;
import tessera.checkpoint;
import tessera.hub;
import tessera.text;

using generation_test::reference;
using generation_test::Trained;
using generation_test::trained;
using nlohmann::json;
using tessera::coded::WeightForm;
using trainer_test::has;
using trainer_test::Result;
using trainer_test::run_program;

namespace text = tessera::text;
namespace fs = std::filesystem;

namespace {

std::vector<double> logits_of(text::ModelFiles files, WeightForm form) {
  files.precision = form;
  const text::TextModel model(files);
  return model.ranks().next_logits(std::vector<std::int64_t>{3, 1, 7, 5}, 1, true);
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

/// A Llama with rows of whole blocks.
std::string wide_folder(const trainer_test::Folder& scratch) {
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
  json config = json::parse(trainer_test::read_file(reference + "folders/plain/config.json"));
  config["hidden_size"] = dim;
  config["intermediate_size"] = ffn;
  config["vocab_size"] = vocab;
  config["num_hidden_layers"] = 2;
  config["num_attention_heads"] = 4;
  config["num_key_value_heads"] = 2;
  config["head_dim"] = dim / 4;
  const std::string folder = (scratch.path() / "wide").string();
  scratch.write("wide/config.json", config.dump());
  write_safetensors(folder + "/model.safetensors", tensors);
  return folder;
}

std::int64_t bytes_of(const text::ModelFiles& files, WeightForm form) {
  text::ModelFiles own = files;
  own.precision = form;
  return text::TextModel(own).parameter_bytes();
}

std::string exported(const std::string& from, const std::string& to, const std::string& options) {
  fs::remove_all(to);
  return Trained::succeed("checkpoint export " + from + " --to " + to + " " + options);
}

}  // namespace

TEST_CASE("a GGUF file is computed from its codes, with the logits of their values") {
  const trainer_test::Folder scratch;
  const std::string folder = wide_folder(scratch);
  for (const std::string type : {"bfloat16", "q8_0", "q4_0", "q4_k_m"}) {
    INFO(type);
    const std::string to = (scratch.path() / type).string();
    const std::string said = exported(folder, to, "--format gguf --no-tokenizer --dtype " + type);
    has(said, " as " + type);
    const text::ModelFiles files(to + "/model.gguf");
    const std::vector<double> stored = logits_of(files, WeightForm::stored);
    const std::vector<double> decoded = logits_of(files, WeightForm::f32);
    CHECK(distance(decoded, stored) < 2e-6);  // the order of sums
    CHECK(bytes_of(files, WeightForm::stored) < bytes_of(files, WeightForm::f32) * 3 / 5);
    const double lost = distance(logits_of(folder, WeightForm::f32), stored);
    CHECK(lost > 1e-4);
    CHECK(lost < 0.8);  // weights at random
  }
}

TEST_CASE("a model folder has the form that is asked for, and a checkpoint too") {
  const text::ModelFiles folder(trained().model);
  const std::vector<double> exact = logits_of(folder, WeightForm::f32);
  CHECK(logits_of(folder, WeightForm::stored) == exact);
  for (const WeightForm form : {WeightForm::bf16, WeightForm::int8, WeightForm::q8_0}) {
    const std::vector<double> own = logits_of(folder, form);
    CHECK(distance(exact, own) > 1e-6);
    CHECK(distance(exact, own) < 0.05);
    CHECK(logits_of(trained().checkpoint, form) == own);
    CHECK(bytes_of(folder, form) < bytes_of(folder, WeightForm::f32) * 3 / 5);
  }
}

TEST_CASE("exports of folders change the form and keep the model") {
  const trainer_test::Folder scratch;
  const auto to = [&](const std::string& name) { return (scratch.path() / name).string(); };
  const std::string plain = reference + "folders/plain";
  const std::string adapter = reference + "adapters/lora";
  // An adapter is merged: the folder computes what both do together.
  has(exported(plain, to("merged"), "--no-tokenizer --dtype float32 --merge " + adapter),
      "(with the updates of " + adapter + ")");
  const text::ModelFiles both(plain, "", "", adapter);
  CHECK(distance(logits_of(both, WeightForm::f32), logits_of(to("merged"), WeightForm::f32)) <
        2e-6);
  // To GGUF and back.
  exported(to("merged"), to("gguf"), "--format gguf --no-tokenizer --dtype float32");
  exported(to("gguf"), to("back"), "--no-tokenizer");
  CHECK(logits_of(to("back"), WeightForm::f32) == logits_of(to("merged"), WeightForm::f32));
  // With its tokenizer and template.
  exported(trained().model, to("talks"), "--dtype bfloat16");
  const std::string input = trained().write("asked", "Say two\n");
  CHECK(run_program("chat " + to("talks") + " --temperature 0 <" + input).out == "two 😀2\n");

  const auto refused = [&](const std::string& options, const std::string& part) {
    const Result result = run_program("checkpoint export " + options + " --to " + to("refused"));
    CHECK(result.code == 2);
    has(result.error, part);
    CHECK_FALSE(fs::exists(to("refused")));
  };
  refused(plain, "there is no tokenizer to export with the model: the folder has none");
  refused(plain + " --no-tokenizer --adapter", "it has no low-rank updates of its own");
  refused(plain + " --no-tokenizer --base x", "it has all its weights, and no base");
  refused(plain + " --no-tokenizer --dtype q4_k_m", "q4_k_m is a type of GGUF files");
  refused(plain + " --no-tokenizer --merge " + plain, "adapter_config.json");
  refused(trained().checkpoint + " --merge " + adapter, "a checkpoint takes no adapter");
}

TEST_CASE("commands take a form of weights and of keys, on several ranks too") {
  const std::string input = trained().write("asked", "Say two\n");
  for (const std::string options :
       {"--precision q8_0", "--precision int8 --keys bf16",
        "--precision bf16 --keys bf16 --ranks 2",
        "--precision q8_0 --activations int8 --speculate 4",
        "--precision int8 --activations int8 --ranks 2", "--speculate 15 --ranks 2"}) {
    INFO(options);
    const Result result =
        run_program("chat " + trained().model + " --temperature 0 " + options + " <" + input);
    INFO(result.error);
    CHECK(result.out == "two 😀2\n");
  }
  CHECK(run_program("generate " + trained().model + " --prompt a --precision q3_k").code == 2);
  const auto refused = [&](const std::string& options, const std::string& part) {
    const Result result = run_program("generate " + trained().model + " --prompt a " + options);
    CHECK(result.code == 2);
    has(result.error, part);
  };
  refused("--activations int8", "no weight of the model is kept in integers");
  refused("--precision bf16 --activations int8 --ranks 2",
          "no weight of the model is kept in integers");
  refused("--speculate 4 --context 2", "speculation: the model computes texts one after the other");
  // The same text, and how much of it was guessed.
  const std::string drawn =
      "generate " + trained().model + " --prompt Say --tokens 60 --temperature 0.3 --seed 5";
  const Result without = run_program(drawn);
  const Result with = run_program(drawn + " --speculate 6");
  CHECK(with.out == without.out);
  has(with.error, " guessed tokens were right, ");
  CHECK(without.error.find("guessed") == std::string::npos);
}

TEST_CASE("a file whose codes have a scale that is NaN is refused, as one with plain elements") {
  const trainer_test::Folder scratch;
  const std::string to = (scratch.path() / "file").string();
  exported(wide_folder(scratch), to, "--format gguf --no-tokenizer --dtype q8_0");
  std::string bytes = trainer_test::read_file(to + "/model.gguf");
  // The scale of the last tensor's first block; tensors are filled up to 32 bytes.
  const auto source = tessera::open_tensors(to).source;
  REQUIRE(source->stored_type("token_embd.weight") == "Q8_0");
  const auto size =
      static_cast<std::size_t>(source->info("token_embd.weight").shape.product() / 32 * 34);
  bytes[bytes.size() - (size + 31) / 32 * 32 + 1] = '\x7f';
  scratch.write("file/model.gguf", bytes);
  for (const WeightForm form : {WeightForm::stored, WeightForm::f32}) {
    const std::string error =
        trainer_test::input_error([&] { logits_of(to + "/model.gguf", form); });
    has(error, "nan");
  }
}
