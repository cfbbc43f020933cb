// Folders of encoders: what comes back from an export, what is refused and by which name, other
// labels, names of older writers.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "folder.hpp"

import tessera.base;
import tessera.checkpoint;
import tessera.encoders;
import tessera.nn;
import tessera.ops;
import tessera.tensor;

using namespace tessera;
using encoders::EncoderFolder;
using testing::Folder;

namespace {

const std::string data = TESSERA_REFERENCE_DATA "/families/";
const std::vector<std::string> stored = {"bert",      "modernbert",        "vit",     "bert_masked",
                                         "bert_base", "modernbert_masked", "vit_base"};

nlohmann::json config_of(const std::string& folder) {
  return nlohmann::json::parse(std::ifstream(folder + "/config.json"));
}

/// The tensors of a folder under their names.
std::map<std::string, Tensor> tensors_in(const std::string& folder) {
  const SafetensorsFolder file(folder);
  std::map<std::string, Tensor> all;
  for (const auto& [name, info] : file.tensors()) {
    all.emplace(name, file.read(name));
  }
  return all;
}

/// A folder with this config and these tensors.
std::string write(const Folder& folder, const std::string& name, const nlohmann::json& config,
                  const std::map<std::string, Tensor>& tensors) {
  folder.write(name + "/config.json", config.dump());
  export_weights(TensorsInMemory(tensors), folder / name);
  return folder / name;
}

std::string why(const nlohmann::json& config) {
  return testing::error_of([&] { encoders::parse_encoder_config(config.dump(), "config.json"); });
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("folders of encoders come back with their tensors and words") {
  const NoGrad no_grad;
  for (const std::string& name : stored) {
    DYNAMIC_SECTION(name) {
      const Folder folder;
      const EncoderFolder opened(data + name);
      const auto model = encoders::encoder_from_folder(data + name);
      encoders::write_encoder_folder(
          opened.config(), TensorsInMemory(nn::values_by_name(nn::all_parameters(*model))),
          folder / "back");
      const auto before = tensors_in(data + name);
      const auto after = tensors_in(folder / "back");
      CHECK(after.size() == before.size());
      for (const auto& [key, value] : before) {
        INFO(key);
        REQUIRE(after.contains(key));
        CHECK(after.at(key).dtype() == value.dtype());
        CHECK(after.at(key).shape() == value.shape());
        CHECK(to_doubles(after.at(key)) == to_doubles(value));
      }
      const nlohmann::json words = config_of(folder / "back");
      const nlohmann::json read = config_of(data + name);
      for (const auto& [key, value] : read.items()) {
        INFO(key);
        CHECK((key == "transformers_version" || (words.contains(key) && words[key] == value)));
      }
    }
  }
}

TEST_CASE("config.json of an encoder is refused with every name that is wrong") {
  nlohmann::json config = config_of(data + "bert");
  config.update({{"hidden_act", "tanhshrink"},
                 {"is_decoder", true},
                 {"position_embedding_type", "relative_key"},
                 {"num_attention_heads", 5},
                 {"hidden_dropout_prob", 1.5},
                 {"new_way_to_attend", 3}});
  const std::string bert = why(config);
  for (const char* key : {"hidden_act", "is_decoder", "position_embedding_type",
                          "num_attention_heads", "hidden_dropout_prob", "new_way_to_attend"}) {
    INFO(bert);
    CHECK(has(bert, key));
  }
  config = config_of(data + "modernbert");
  config.update({{"mlp_dropout", 0.1},
                 {"layer_types", {"full_attention", "chunked_attention"}},
                 {"classifier_pooling", "max"}});
  config["rope_parameters"]["full_attention"]["rope_type"] = "yarn";
  const std::string modern = why(config);
  for (const char* key : {"mlp_dropout", "chunked_attention", "classifier_pooling", "yarn"}) {
    INFO(modern);
    CHECK(has(modern, key));
  }
  config = config_of(data + "vit");
  config.update({{"patch_size", 5}, {"architectures", {"ViTForMaskedImageModeling"}}});
  CHECK(has(why(config), "patch_size"));
  CHECK(has(why(config), "ViTForMaskedImageModeling"));
  config = config_of(data + "bert");
  config["model_type"] = "berd";
  CHECK(has(why(config), "did you mean 'bert'"));
  config = config_of(data + "bert");
  config["problem_type"] = "multi_label_classification";
  CHECK(has(why(config), "problem_type"));
  config = config_of(data + "bert");
  config["id2label"] = {{"0", "no"}, {"2", "yes"}};
  CHECK(has(why(config), "id2label"));
}

TEST_CASE("weights that do not fit an encoder's config are named before they are read") {
  const Folder folder;
  nlohmann::json config = config_of(data + "bert");
  auto tensors = tensors_in(data + "bert");
  tensors.erase("bert.encoder.layer.1.output.dense.bias");
  tensors.emplace("bert.encoder.layer.0.extra.weight", zeros({2, 2}));
  const std::string missing = write(folder, "missing", config, tensors);
  const std::string names = testing::error_of([&] { encoders::encoder_from_folder(missing); });
  INFO(names);
  CHECK(has(names, "model.layers.1.mlp.down_proj.bias"));
  CHECK(has(names, "bert.encoder.layer.0.extra.weight"));
  config["num_hidden_layers"] = 90000;
  const std::string many = write(folder, "many", config, tensors_in(data + "bert"));
  CHECK(has(testing::error_of([&] { EncoderFolder opened(many); }), "num_hidden_layers"));
  config["num_hidden_layers"] = 2;
  config["intermediate_size"] = 48;
  const std::string wide = write(folder, "wide", config, tensors_in(data + "bert"));
  CHECK(has(testing::error_of([&] { EncoderFolder(wide).build(); }), "mlp.up_proj"));
}

TEST_CASE("a folder for masked tokens becomes a classifier with a head of its own") {
  const NoGrad no_grad;
  for (const std::string name : {"bert_masked", "modernbert_masked", "vit_base", "bert"}) {
    DYNAMIC_SECTION(name) {
      EncoderFolder opened(data + name);
      opened.set_labels({"bad", "fair", "good", "excellent"});
      const auto model = opened.build();
      nn::materialize(*model);
      set_seed(3);
      nn::initialize(*model);
      opened.load(*model);
      CHECK(model->shape().classes == 4);
      const Folder folder;
      encoders::write_encoder_folder(
          opened.config(), TensorsInMemory(nn::values_by_name(nn::all_parameters(*model))),
          folder / "classifier");
      const EncoderFolder again(folder / "classifier");
      CHECK(again.config().labels == opened.config().labels);
      const auto before = tensors_in(data + name);
      const auto after = tensors_in(folder / "classifier");
      std::size_t same = 0;
      for (const auto& [key, value] : before) {
        for (const std::string prefix : {"", "bert.", "vit."}) {
          if (const auto found = after.find(prefix + key); found != after.end()) {
            same += to_doubles(found->second) == to_doubles(value) ? 1 : 0;
            break;
          }
        }
      }
      CHECK(after.at("classifier.weight").shape() == Dims{4, 32});
      CHECK(same >= before.size() - 6);  // all but heads and poolers
      CHECK(has(testing::error_of([&] { opened.set_labels({"one", "one"}); }), "labels"));
    }
  }
}

TEST_CASE("names of older BERT folders are read") {
  const NoGrad no_grad;
  const Folder folder;
  std::map<std::string, Tensor> tensors;
  for (const auto& [key, value] : tensors_in(data + "bert_masked")) {
    std::string name = key;
    for (const auto& [to, from] :
         {std::pair<std::string, std::string>{"LayerNorm.gamma", "LayerNorm.weight"},
          {"LayerNorm.beta", "LayerNorm.bias"}}) {
      if (name.ends_with(from)) {
        name.replace(name.size() - from.size(), from.size(), to);
      }
    }
    tensors.emplace(name, value);
  }
  // Of the second task of pretraining, which the class for masked tokens does not have.
  tensors.emplace("cls.seq_relationship.weight", zeros({2, 32}));
  tensors.emplace("bert.pooler.dense.weight", zeros({32, 32}));
  const std::string old = write(folder, "old", config_of(data + "bert_masked"), tensors);
  const auto a = encoders::encoder_from_folder(data + "bert_masked");
  const auto b = encoders::encoder_from_folder(old);
  const auto wanted = nn::values_by_name(nn::all_parameters(*a));
  for (const auto& [name, value] : nn::values_by_name(nn::all_parameters(*b))) {
    INFO(name);
    CHECK(to_doubles(value) == to_doubles(wanted.at(name)));
  }
}

TEST_CASE("an encoder refuses inputs that it is not made for") {
  const auto bert = encoders::encoder_from_folder(data + "bert");
  const Tensor ids = zeros({1, 65}, DType::i64);
  CHECK(has(testing::error_of([&] { (*bert)(Tensors{ids}); }), "at most 64 tokens"));
  const auto vit = encoders::encoder_from_folder(data + "vit");
  CHECK(
      has(testing::error_of([&] { (*vit)(Tensors{zeros({1, 3, 16, 16})}); }), "[rows, 3, 12, 12]"));
  const auto modern = encoders::encoder_from_folder(data + "modernbert");
  const Tensor few = zeros({1, 4}, DType::i64);
  CHECK(has(testing::error_of([&] { (*modern)(Tensors{few, {}, few}); }), "token_type_ids"));
  const auto base = encoders::encoder_from_folder(data + "bert_base");
  CHECK(has(testing::error_of([&] { base->loss_sum(Tensors{few}, few); }), "no loss"));
}
