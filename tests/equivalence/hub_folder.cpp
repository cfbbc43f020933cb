#include "hub_folder.hpp"

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "catch.hpp"
#include "safetensors.hpp"
#include "support.hpp"

namespace equivalence {

std::string one_step(const std::string& model, const std::string& tokens, std::int64_t seq_len,
                     std::int64_t batch) {
  return "[model]\nfrom = \"" + model + "\"\n[data]\ntokens = [\"" + tokens +
         "\"]\nseq_len = " + std::to_string(seq_len) +
         "\nvalidation = 0.0\norder = \"sequential\"\n[train]\nsteps = 1\nbatch = " +
         std::to_string(batch) + "\n[optimizer]\nlr = 1e-30\nweight_decay = 0.0\n";
}

std::map<std::string, StoredTensor> tensors_of(const std::string& folder) {
  std::map<std::string, StoredTensor> all;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") {
      all.merge(read_safetensors(entry.path()));
    }
  }
  return all;
}

nlohmann::json json_of(const std::string& folder, const char* file) {
  return nlohmann::json::parse(read_file(folder + "/" + file));
}

void has_the_same_words(const std::string& exported, const std::string& source) {
  const auto written = json_of(exported, "config.json");
  const auto read = json_of(source, "config.json");
  for (const auto& [key, value] : read.items()) {
    if (key != "transformers_version" && key != "rope_scaling") {
      INFO(key);
      CHECK(written.at(key) == value);
    }
  }
  const std::string dtype = read.value("dtype", read.value("torch_dtype", ""));
  CHECK(written.at("dtype") == dtype);
  CHECK(written.at("torch_dtype") == dtype);
  if (std::filesystem::exists(source + "/generation_config.json")) {
    CHECK(json_of(exported, "generation_config.json") == json_of(source, "generation_config.json"));
  }
}

void holds_the_same(const std::string& exported, const std::string& source) {
  const auto written = tensors_of(exported);
  const auto read = tensors_of(source);
  CHECK(written.size() == read.size());
  for (const auto& [name, tensor] : read) {
    INFO(name);
    const auto found = written.find(name);
    REQUIRE(found != written.end());
    CHECK(found->second.shape == tensor.shape);
    CHECK(found->second.dtype == tensor.dtype);
    CHECK((found->second.bytes == tensor.bytes));
  }
}

}  // namespace equivalence
