// A model beside what transformers computes of it: outputs of modules and gradients.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.tensor;
import tessera.checkpoint;
import tessera.text;

using namespace tessera;
using nlohmann::json;
using trainer_test::Folder;
using trainer_test::has;
using trainer_test::input_error;
using trainer_test::read_file;
using trainer_test::run_program;

namespace {

namespace fs = std::filesystem;

const std::string reference = std::string(TESSERA_SOURCE_FOLDER) + "/tests/reference/data/";
constexpr double tolerance = 2e-6;  // of float32

std::string folder_of(const std::string& model) {
  return reference + (model == "gpt2" ? "gpt2/tied" : "decoders/" + model);
}
std::string stored_of(const std::string& model) {
  return reference + "activations/" + model + ".safetensors";
}

text::StoredComparison compared(const std::string& model) {
  return text::compare_stored(text::TextModel(folder_of(model)), SafetensorsFile(stored_of(model)),
                              tolerance);
}

/// A copy of a model's folder whose config.json has another value.
void copy_with(const Folder& folder, const std::string& model, const std::string& key,
               const json& value) {
  fs::copy(folder_of(model), folder.path(), fs::copy_options::recursive);
  json config = json::parse(read_file(folder_of(model) + "/config.json"));
  REQUIRE(config.contains(json::json_pointer(key)));
  config[json::json_pointer(key)] = value;
  folder.write("config.json", config.dump());
}

/// What differs first from what is stored of a qwen3 with such a config.
std::string first_difference_with(const std::string& key, const json& value) {
  const Folder folder;
  copy_with(folder, "qwen3", key, value);
  const text::StoredComparison comparison = text::compare_stored(
      text::TextModel(folder.path().string()), SafetensorsFile(stored_of("qwen3")), 1e-4);
  const auto first =
      std::ranges::find_if(comparison.compared, [](const auto& each) { return !each.agrees; });
  return first == comparison.compared.end() ? "" : first->name;
}

std::string error_with(std::map<std::string, Tensor> tensors) {
  const TensorsInMemory stored(std::move(tensors), "stored");
  return input_error(
      [&] { text::compare_stored(text::TextModel(folder_of("qwen3")), stored, tolerance); });
}

}  // namespace

TEST_CASE("models compute what transformers computes, module by module") {
  // Heads before tokens (gemma3), a factor within the embedding (gemma2), matrices that are
  // transposed and fused (gpt2): where transformers has them, nothing else is computed.
  for (const std::string model : {"qwen3", "gemma2", "gemma3", "phi3", "gpt2"}) {
    INFO(model);
    const text::StoredComparison comparison = compared(model);
    std::size_t gradients = 0;
    for (const text::StoredDifference& each : comparison.compared) {
      INFO(each.name << " " << each.problem << " " << each.relative);
      CHECK(each.agrees);
      gradients += each.name.ends_with(".grad") ? 1 : 0;
    }
    // 3 layers with at least 4 products and 2 norms each, which have gradients too.
    CHECK(comparison.compared.size() - gradients > 3 * 6);
    CHECK(gradients > 3 * 6);
    CHECK(std::ranges::none_of(comparison.unknown,
                               [](const auto& name) { return name.ends_with(".grad"); }));
  }
}

TEST_CASE("the first difference is where a model is computed in another way") {
  CHECK(first_difference_with("/rms_norm_eps", 0.1) == "model.layers.0.input_layernorm");
  CHECK(first_difference_with("/rope_parameters/rope_theta", 100.0) ==
        "model.layers.0.self_attn.o_proj");
}

TEST_CASE("compare prints a table that ends with the first difference") {
  const auto equal = run_program("compare " + folder_of("qwen3") + " " + stored_of("qwen3"));
  INFO(equal.error);
  CHECK(equal.code == 0);
  has(equal.out, "agree within 0.0001");
  has(equal.out, "not compared: 4 that the model does not have: model.layers.0.mlp.act_fn, ");

  const Folder folder;
  copy_with(folder, "qwen3", "/rms_norm_eps", 0.1);
  const auto other = run_program("compare " + folder.path().string() + " " + stored_of("qwen3"));
  CHECK(other.code == 1);
  has(other.out, "the first one is model.layers.0.input_layernorm, and what is computed before it");

  const auto as_json =
      run_program("compare --json " + folder.path().string() + " " + stored_of("qwen3"));
  CHECK(as_json.code == 1);
  const json result = json::parse(as_json.out);
  CHECK(result["first"] == "model.layers.0.input_layernorm");
  CHECK(result["compared"][0]["name"] == "model.embed_tokens");
  CHECK(result["compared"][0]["agrees"] == true);
}

TEST_CASE("shapes that differ in more than the count of rows, and NaN, are differences") {
  const SafetensorsFile file(stored_of("qwen3"));
  const std::string norm = "model.norm";
  Tensor values = file.read(norm);
  const Dims shape = values.shape();
  values.data<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  const Tensor other = zeros({shape[0], shape[1] + 1, shape[2]});
  const TensorsInMemory stored(
      {{"input_ids", file.read("input_ids")}, {norm, values}, {"model.layers.0", other}});
  const text::StoredComparison comparison =
      text::compare_stored(text::TextModel(folder_of("qwen3")), stored, tolerance);
  REQUIRE(comparison.compared.size() == 2);
  CHECK(comparison.compared[0].problem == "the model's shape is " + to_string(shape));
  CHECK(!comparison.compared[1].agrees);
  CHECK(std::isinf(comparison.compared[1].largest));
}

TEST_CASE("what cannot be compared is an error that says what is missing") {
  has(error_with({{"model.norm", zeros({2, 2})}}),
      "stored: there is no tensor 'input_ids' (expected integers of shape [rows, tokens])");
  has(error_with({{"input_ids", zeros({2, 2})}}), "got f32 [2, 2]");
  has(error_with({{"input_ids", zeros({2, 2}, DType::i64)}, {"norm", zeros({2, 2})}}),
      "no tensor has the name of a module");
  has(error_with({{"input_ids", zeros({2, 1}, DType::i64)}, {"lm_head.weight.grad", zeros({2})}}),
      "at least 2 tokens");
  has(error_with({{"input_ids", full({1, 2}, 5000, DType::i64)}, {"lm_head", zeros({2})}}), "5000");
  const auto missing = run_program("compare " + folder_of("qwen3") + " /nowhere.safetensors");
  CHECK(missing.code == 2);
  has(missing.error, "/nowhere.safetensors");
}
