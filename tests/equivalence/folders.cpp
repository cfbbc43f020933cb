// Folders in Hugging Face's form: what is read, computed, written again and refused.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "safetensors.hpp"
#include "support.hpp"

using equivalence::difference;
using equivalence::Folder;
using equivalence::layout;
using equivalence::read_file;
using equivalence::reference;

namespace {

const std::vector<std::string> kFolders = {
    "plain", "old_config", "first_config", "head_dim", "sharded_files", "bf16", "tied"};

/// One step that changes no bit of a weight.
std::string config(const std::string& model, const std::string& tokens, std::int64_t seq_len,
                   std::int64_t batch) {
  return "[model]\nfrom = \"" + model + "\"\n[data]\ntokens = [\"" + tokens +
         "\"]\nseq_len = " + std::to_string(seq_len) +
         "\nvalidation = 0.0\norder = \"sequential\"\n[train]\nsteps = 1\nbatch = " +
         std::to_string(batch) + "\n[optimizer]\nlr = 1e-30\nweight_decay = 0.0\n";
}

/// The tensors of all safetensors files of a folder.
std::map<std::string, StoredTensor> tensors_of(const std::string& folder) {
  std::map<std::string, StoredTensor> all;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") {
      all.merge(read_safetensors(entry.path()));
    }
  }
  return all;
}

/// A stored tensor's bytes as f32; bf16 is the upper half of an f32.
std::vector<std::byte> as_f32(const StoredTensor& tensor) {
  if (tensor.dtype == "F32") {
    return tensor.bytes;
  }
  REQUIRE(tensor.dtype == "BF16");
  std::vector<std::byte> wide(tensor.bytes.size() * 2);
  for (std::size_t i = 0; i < tensor.bytes.size(); i += 2) {
    std::memcpy(wide.data() + i * 2 + 2, tensor.bytes.data() + i, 2);
  }
  return wide;
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
    CHECK((as_f32(found->second) == as_f32(tensor)));
  }
}

}  // namespace

TEST_CASE("folders that transformers wrote give its losses", "[folders]") {
  for (const std::string& name : kFolders) {
    const auto expected =
        nlohmann::json::parse(read_file(reference("folders/" + name) + "/expected.json"));
    for (const char* where : {"one rank", "TP 2"}) {
      if (name == "sharded_files" && std::string(where) == "TP 2") {
        continue;  // one key head cannot be split over two ranks
      }
      INFO(name << " on " << where);
      double sum = 0;
      for (const auto& row : expected["input_ids"]) {
        const Folder folder;
        const auto ids = row.get<std::vector<std::int32_t>>();
        const std::string tokens = equivalence::write_tokens(folder, "ids.npy", ids);
        const auto steps = equivalence::train(folder, "run",
                                              config(reference("folders/" + name), tokens,
                                                     static_cast<std::int64_t>(ids.size()) - 1, 1),
                                              layout(where));
        REQUIRE(steps.size() == 1);
        sum += steps[0].loss;
      }
      const auto rows = static_cast<double>(expected["input_ids"].size());
      CHECK(difference(sum / rows, expected["loss_f64"]) <= 2e-6);
    }
  }
}

TEST_CASE("an exported folder holds the tensors that were read, from every kind of shards",
          "[folders]") {
  const Folder folder;
  std::vector<std::int32_t> ids(12 * 8 + 1);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int32_t>(i * 7 % 64);
  }
  const std::string tokens = equivalence::write_tokens(folder, "ids.npy", ids);
  for (const std::string& name : kFolders) {
    for (const char* where : {"one rank", "FSDP 3", "FSDP 2 x TP 2"}) {
      if (name == "sharded_files" && std::string(where) == "FSDP 2 x TP 2") {
        continue;  // one key head cannot be split over two ranks
      }
      INFO(name << " on " << where);
      const Folder own;
      const auto first = equivalence::train(
          own, "run", config(reference("folders/" + name), tokens, 8, 12), layout(where));
      const std::string exported =
          equivalence::export_checkpoint(own, equivalence::checkpoint(own, "run", 1), "export");
      holds_the_same(exported, reference("folders/" + name));
      // And it is a folder to start from: the same model.
      CHECK(equivalence::same_bits(
          equivalence::train(own, "again", config(exported, tokens, 8, 12), layout(where)), first));
    }
  }
}

TEST_CASE("folders whose model would be computed wrongly are refused by key and value",
          "[folders]") {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(reference("folders/refused"))) {
    const Folder folder;
    std::istringstream why(read_file(entry.path() / "why.txt"));
    std::string key;
    std::string value;
    std::getline(why, key);
    std::getline(why, value);
    const std::string tokens =
        equivalence::write_tokens(folder, "ids.npy", std::vector<std::int32_t>(20, 1));
    const std::string file = folder.write("run.toml", config(entry.path().string(), tokens, 4, 2));
    const auto result = equivalence::run("train " + file + " log.metrics= checkpoint.folder=");
    INFO(entry.path().string() << ": " << result.error);
    CHECK(result.code == 2);
    CHECK(result.error.find(key) != std::string::npos);
    CHECK(result.error.find(value) != std::string::npos);
    ++count;
  }
  CHECK(count == 8);
}
