// Built-in families against transformers, in this process: logits of a batch, and gradients of
// every tensor of the folder (tests/reference/families.py).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "skip.hpp"
#include "support.hpp"

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.nn;
import tessera.models;
import tessera.checkpoint;
import tessera.hub;

#include "differences.hpp"

using namespace tessera;
using testing::largest_difference;

namespace {

const std::string data = TESSERA_SOURCE_FOLDER "/tests/reference/data/families/";

/// Keys that an export has in other words for the same model: layer_types, mlp_layer_types and
/// no_rope_layers say which layers, alpha is a part of the base, mscale of the scale of scores;
/// multi_query says that there is one head of keys.
const std::set<std::pair<std::string, std::string>> other_words = {
    {"exaone4", "sliding_window_pattern"},
    {"smollm3", "no_rope_layer_interval"},
    {"hunyuan_v1_dense", "rope_parameters"},
    {"deepseek_v2", "rope_parameters"},
    {"deepseek_v3", "rope_parameters"},
    {"qwen3_5_text", "rope_parameters"},
    {"ministral3", "rope_parameters"},
    {"gpt_oss", "rope_parameters"},
    {"llama4", "no_rope_layer_interval"},
    {"kimi_linear", "first_k_dense_replace"},
    {"falcon", "num_kv_heads"},
    {"granitemoehybrid", "rope_parameters"},
    {"gemma4_text", "per_layer_config"}};

/// Stored models of built-in families that are refused, and by which key.
const std::map<std::string, std::string> refused_models = {
    {"gemma4_text_experts", "enable_moe_block"}};

/// Stored models of families that are built in.
std::vector<std::string> stored_families() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(data)) {
    if (entry.path().extension() == ".json") {
      const auto json = nlohmann::json::parse(testing::read_file(entry.path().string()));
      const std::vector<std::string> known = models::built_in_families();
      if (std::ranges::find(known, json["type"].get<std::string>()) != known.end() &&
          !refused_models.contains(json["name"])) {
        names.push_back(json["name"]);
      }
    }
  }
  std::ranges::sort(names);
  return names;
}

struct Loaded {
  nlohmann::json json;
  hub::ModelShape shape;
  std::shared_ptr<nn::LanguageModel> model;
};

/// `path`: of the folder, and with .json and .safetensors of what transformers computes; `further`:
/// layers that predict tokens after the next one, of those that the folder has.
Loaded load(const std::string& path, const std::string& name, std::int64_t further = 0) {
  Loaded loaded;
  loaded.json = nlohmann::json::parse(testing::read_file(path + ".json"));
  loaded.shape = hub::read_model_folder(path);
  if (further > 0) {
    loaded.shape.values["further_layers"] = further;
  }
  loaded.model = hub::make_model(loaded.shape, 0);
  nn::materialize(*loaded.model);
  const SafetensorsFolder stored(path);
  const hub::HubWeights weights(stored, hub::family_of(loaded.shape), hub::sizes_of(loaded.shape));
  hub::check_stored_sizes(loaded.shape, weights, "", name);
  hub::load_model_weights(weights, *loaded.model);
  return loaded;
}

Tensor token_ids(const nlohmann::json& rows) {
  std::vector<double> values;
  for (const auto& row : rows) {
    for (const int id : row) {
      values.push_back(id);
    }
  }
  const auto count = static_cast<std::int64_t>(rows.size());
  return ops::cast(from_values(std::span<const double>(values),
                               {count, static_cast<std::int64_t>(rows[0].size())}),
                   DType::i64);
}

/// The mean loss of all tokens but the first ones.
Tensor mean_loss(const Loaded& loaded, const Tensor& ids) {
  const std::int64_t last = ids.size(1) - 1;
  const Tensor loss = loaded.model->loss_sum(ops::contiguous(ops::narrow(ids, 1, 0, last)),
                                             ops::contiguous(ops::narrow(ids, 1, 1, last)));
  return ops::mul_scalar(loss, 1.0 / static_cast<double>(ids.size(0) * last));
}

/// The largest difference of a tensor's gradient, as a share of its norm.
struct Deviation {
  double largest = 0;
  std::string where;
  void take(double difference, const std::string& place) {
    if (!(difference <= largest)) {
      largest = difference;
      where = place;
    }
  }
};
Deviation largest_gradient_difference(const Loaded& loaded, const Tensor& ids) {
  backward(mean_loss(loaded, ids));
  std::map<std::string, Tensor> gradients;
  for (const auto& [key, parameter] : nn::named_parameters(*loaded.model)) {
    const Tensor gradient = parameter->value.grad();
    gradients.emplace(key, gradient ? gradient : zeros(parameter->value.shape()));
  }
  const TensorsInMemory source(std::move(gradients));
  const hub::HubExport back(source, "", hub::family_of(loaded.shape), hub::sizes_of(loaded.shape));
  Deviation deviation;
  for (const auto& [key, stored] : loaded.json["gradients"].items()) {
    INFO(key);
    if (!back.tensors().contains(key) && stored[0] == 0.0) {
      continue;  // what no gradient trains is a parameter in transformers too
    }
    REQUIRE(back.tensors().contains(key));
    const std::vector<double> values = to_doubles(back.read(key));
    double squares = 0;
    for (const double value : values) {
      squares += value * value;
    }
    const double norm = stored[0];
    const double scale = std::max(norm, 1e-3);  // some are 0 but for rounding
    deviation.take(std::abs(std::sqrt(squares) - norm) / scale, key + ", its norm");
    for (const auto& element : stored[1]) {
      const auto at = element[0].get<std::size_t>();
      deviation.take(std::abs(values[at] - element[1].get<double>()) / scale,
                     fmt::format("{}[{}]", key, at));
    }
  }
  return deviation;
}

/// Logits, and gradients that differ by `most` at most, of the stored model; `to` gets the row of a
/// table.
void compare(const std::string& path, const std::string& name, double most,
             std::vector<std::string>& to) {
  const Loaded loaded = load(path, name);
  const Tensor ids = token_ids(loaded.json["input_ids"]);
  const SafetensorsFile stored(path + ".safetensors");
  double logits = 0;
  {
    const NoGrad no_grad;
    logits = largest_difference((*loaded.model)(Tensors{ids})[0], stored.read("logits"));
  }
  const Deviation gradients = largest_gradient_difference(loaded, ids);
  INFO(gradients.where);
  const double own = loaded.json["largest_f32_error"];
  CHECK(logits <= 1e-5 + own);
  CHECK(gradients.largest <= most);
  to.push_back(fmt::format("| {} | {:.1e} | {:.1e} |", name, logits, gradients.largest));
}

}  // namespace

TEST_CASE("logits and gradients of every built-in family are those of transformers") {
  const std::vector<std::string> names = stored_families();
  REQUIRE(names.size() >= 20);
  for (const std::string& name : names) {
    DYNAMIC_SECTION(name) {
      std::vector<std::string> rows;
      compare(data + name, name, 2e-5, rows);
      if (std::getenv("TESSERA_FAMILY_TABLE") != nullptr) {
        fmt::print("{}\n", rows.at(0));
      }
    }
  }
}

// Of the folder that TESSERA_FAMILY_DRAWS names: tests/reference/families.py --draws 10 --to
// FOLDER.
TEST_CASE("models with drawn configs are those of transformers", "[.drawn]") {
  const char* const folder = std::getenv("TESSERA_FAMILY_DRAWS");
  if (folder == nullptr) {
    testing::skip("TESSERA_FAMILY_DRAWS names no folder of tests/reference/families.py --draws");
    return;
  }
  std::vector<std::string> compared;
  std::vector<std::string> refusals;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") {
      continue;
    }
    const std::string path = (entry.path().parent_path() / entry.path().stem()).string();
    const std::string name = entry.path().stem().string();
    INFO(name);
    try {
      compare(path, name, 5e-5, compared);
    } catch (const Error& error) {
      refusals.push_back(name + ": " + error.what());
    }
  }
  for (std::vector<std::string>* const lines : {&compared, &refusals}) {
    std::ranges::sort(*lines);
    fmt::print("{}\n", fmt::join(*lines, "\n"));
  }
  fmt::print("{} compared, {} refused\n", compared.size(), refusals.size());
  CHECK(compared.size() > 2 * refusals.size());
}

/// The folder's tensors, read as the model's and exported again, are the same.
void check_export(const std::string& folder, const hub::ModelShape& shape) {
  const NoGrad no_grad;
  const SafetensorsFolder stored(folder);
  const hub::HubWeights weights(stored, hub::family_of(shape), hub::sizes_of(shape));
  const hub::HubExport back(weights, "", hub::family_of(shape), hub::sizes_of(shape));
  CHECK(back.tensors().size() == stored.tensors().size());
  for (const auto& [key, info] : stored.tensors()) {
    INFO(key);
    REQUIRE(back.tensors().contains(key));
    CHECK(back.info(key) == info);
    CHECK(to_doubles(back.read(key)) == to_doubles(stored.read(key)));
  }
}

// tests/reference/further_tokens.py.
TEST_CASE("layers that predict tokens after the next one add their losses") {
  const std::string path = TESSERA_SOURCE_FOLDER "/tests/reference/data/further/deepseek_v3";
  const Loaded loaded = load(path, "deepseek_v3", 2);
  const Tensor ids = token_ids(loaded.json["input_ids"]);
  const double expected = loaded.json["loss_f64"];
  CHECK(std::abs(to_doubles(mean_loss(loaded, ids)).at(0) - expected) < 1e-5);
  const Deviation gradients = largest_gradient_difference(loaded, ids);
  INFO(gradients.where);
  CHECK(gradients.largest <= 2e-5);
  // While nothing is trained they are not computed, and losses of tokens do not have theirs.
  loaded.model->train(false);
  CHECK((*loaded.model)(Tensors{ids}).size() == 1);
  CHECK(std::abs(to_doubles(mean_loss(loaded, ids)).at(0) - expected) > 0.1);
  check_export(path, loaded.shape);
  const hub::ModelShape again = hub::parse_hub_config(hub::hub_config(loaded.shape), "again");
  CHECK((hub::sizes_of(again) == hub::sizes_of(loaded.shape)));
  CHECK(hub::parse_hub_config(hub::hub_config(again), "again") == again);
  // Without the key they are counted, and not read.
  const hub::ModelShape plain = hub::read_model_folder(path);
  const SafetensorsFolder stored(path);
  const hub::HubWeights weights(stored, hub::family_of(plain), hub::sizes_of(plain));
  CHECK(weights.further().size() > 40);
  CHECK(weights.tensors().contains("model.layers.1.mlp.gate.weight"));
  CHECK(!weights.tensors().contains("model.layers.2.mlp.gate.weight"));
}

TEST_CASE("further tokens of a document are those that it has alone") {
  const NoGrad no_grad;
  const Loaded loaded =
      load(TESSERA_SOURCE_FOLDER "/tests/reference/data/further/deepseek_v3", "deepseek_v3", 2);
  const auto row = [](const std::vector<std::int64_t>& values) {
    return from_values(std::span<const std::int64_t>(values), {1, std::ssize(values)});
  };
  const auto loss = [&](const Tensor& tokens, const Tensor& targets,
                        const nn::RowDocuments& documents) {
    return to_doubles(loaded.model->loss_sum(tokens, targets, documents)).at(0);
  };
  const double alone = loss(row({5, 17, 40, 8}), row({17, 40, 8, 61}), {}) +
                       loss(row({33, 2, 71}), row({2, 71, 90}), {});
  const double together =
      loss(row({5, 17, 40, 8, 33, 2, 71}), row({17, 40, 8, 61, 2, 71, 90}),
           {.first = row({0, 0, 0, 0, 4, 4, 4}), .positions = row({0, 1, 2, 3, 0, 1, 2})});
  CHECK(std::abs(together - alone) < 1e-4);
}

TEST_CASE("the last layer of a Gemma 4 has no window, whatever config.json says") {
  auto config = nlohmann::json::parse(testing::read_file(data + "gemma4_text/config.json"));
  const auto read = [&] { return hub::parse_hub_config(config.dump(), "config.json"); };
  const hub::ModelShape given = read();
  REQUIRE(config["layer_types"].back() == "full_attention");
  config["layer_types"].back() = "sliding_attention";  // transformers makes it full_attention
  hub::ModelShape changed = read();
  CHECK(changed.values == given.values);
  // Without a list too: none of these three layers is the sixth one.
  config.erase("layer_types");
  config.erase("per_layer_config");
  config["num_kv_shared_layers"] = 0;
  CHECK(std::get<std::vector<std::int64_t>>(read().values.at("global_layers")) ==
        std::vector<std::int64_t>{2});
  changed.values["global_layers"] = std::vector<std::int64_t>{1};
  models::ModelSizes sizes = hub::sizes_of(changed);
  const auto problems = hub::family_of(changed).complete(sizes);
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].keys[0] == "global_layers");
  CHECK(problems[0].text.starts_with("must have the last layer, which has no window here"));
}

TEST_CASE("stored models with what a family has not are refused by the key") {
  for (const auto& [name, key] : refused_models) {
    const std::string error =
        testing::input_error([&] { static_cast<void>(hub::read_model_folder(data + name)); });
    CHECK(error.find(key) != std::string::npos);
  }
}

TEST_CASE("folders of every built-in family come back with their tensors and words") {
  for (const std::string& name : stored_families()) {
    DYNAMIC_SECTION(name) {
      const hub::ModelShape shape = hub::read_model_folder(data + name);
      check_export(data + name, shape);
      const auto written = nlohmann::json::parse(hub::hub_config(shape));
      const auto read = nlohmann::json::parse(testing::read_file(data + name + "/config.json"));
      for (const auto& [key, value] : read.items()) {
        INFO(key);
        const bool in_other_words =
            key == "transformers_version" || other_words.contains({name, key});
        CHECK((in_other_words || (written.contains(key) && written[key] == value)));
      }
      CHECK(hub::parse_hub_config(written.dump(), name) == shape);
    }
  }
}
