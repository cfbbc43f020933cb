// Folders in Hugging Face's form: what is read, computed, written again and refused.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "hub_folder.hpp"
#include "safetensors.hpp"
#include "small_model.hpp"
#include "support.hpp"

using equivalence::difference;
using equivalence::Folder;
using equivalence::has_the_same_words;
using equivalence::holds_the_same;
using equivalence::json_of;
using equivalence::layout;
using equivalence::one_step;
using equivalence::read_file;
using equivalence::reference;
using equivalence::tensors_of;
using tessera::testing::small_model;

namespace {

const std::vector<std::string> kFolders = {
    "plain", "old_config", "first_config", "head_dim", "sharded_files", "bf16", "tied"};

/// A copy of a stored folder whose config.json has these values in place of its own.
std::string changed_copy(const Folder& folder, const std::string& name, const std::string& to,
                         const nlohmann::json& changes) {
  std::filesystem::copy(reference("folders/" + name), folder / to);
  auto json = json_of(folder / to, "config.json");
  json.update(changes);
  folder.write(to + "/config.json", json.dump());
  return folder / to;
}

/// Starts a run of one step from `model` on text, or on tokens where `text` is empty, and returns
/// what the program says.
equivalence::Result start(const Folder& folder, const std::string& model, const std::string& more,
                          const std::string& text = "") {
  const std::string tokens =
      equivalence::write_tokens(folder, "ids.npy", std::vector<std::int32_t>(20, 1));
  std::string run = one_step(model, tokens, 4, 2);
  if (!text.empty()) {
    const std::string line = "tokens = [\"" + tokens + "\"]";
    run.replace(run.find(line), line.size(), "text = [\"" + folder.write("a.txt", text) + "\"]");
  }
  const std::string file = folder.write("run.toml", run);
  std::filesystem::remove_all(folder / "out");  // a run refuses the checkpoints of another
  return equivalence::run("train " + file + " log.metrics= checkpoint.folder=" + (folder / "out") +
                          " " + more);
}

/// The program refuses it as wrong input with all these words.
void refused(const equivalence::Result& result, const std::vector<std::string>& words) {
  INFO(result.error);
  CHECK(result.code == 2);
  for (const std::string& word : words) {
    INFO(word);
    CHECK(result.error.find(word) != std::string::npos);
  }
}

/// Adds 1 to a stored number, or makes it a NaN.
enum class Damage { other, nan };
void damage(const std::string& file, const std::string& tensor, std::size_t element, Damage how) {
  std::string bytes = read_file(file);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  const auto entry = nlohmann::json::parse(bytes.substr(8, length)).at(tensor);
  REQUIRE(entry.at("dtype") == "F32");
  const std::size_t at =
      8 + length + entry.at("data_offsets")[0].get<std::size_t>() + element * sizeof(float);
  float value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  value = how == Damage::nan ? std::nanf("") : value + 1;
  std::memcpy(bytes.data() + at, &value, sizeof value);
  std::ofstream(file, std::ios::binary) << bytes;
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
        const auto steps =
            equivalence::train(folder, "run",
                               one_step(reference("folders/" + name), tokens,
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
          own, "run", one_step(reference("folders/" + name), tokens, 8, 12), layout(where));
      const std::string exported =
          equivalence::export_checkpoint(own, equivalence::checkpoint(own, "run", 1), "export");
      holds_the_same(exported, reference("folders/" + name));
      has_the_same_words(exported, reference("folders/" + name));
      // And it is a folder to start from: the same model.
      CHECK(equivalence::same_bits(
          equivalence::train(own, "again", one_step(exported, tokens, 8, 12), layout(where)),
          first));
    }
  }
}

TEST_CASE("an export has the type that is asked for, and says so", "[folders]") {
  const Folder folder;
  REQUIRE(start(folder, reference("folders/plain"), "").code == 0);
  const std::string saved = folder / "out/step-00000001";
  for (const auto& [name, stored] : {std::pair{"bfloat16", "BF16"}, {"float16", "F16"}}) {
    equivalence::succeed("checkpoint export " + saved + " --no-tokenizer --to " + (folder / name) +
                         " --dtype " + name);
    CHECK(json_of(folder / name, "config.json").at("dtype") == name);
    for (const auto& [tensor, written] : tensors_of(folder / name)) {
      CHECK(written.dtype == stored);
    }
  }
  // A folder that is in use stays as it is.
  refused(equivalence::run("checkpoint export " + saved + " --to " + (folder / "bfloat16")),
          {"the folder is not empty", "new folder"});
}

TEST_CASE("an export of a model that was trained from nothing says what it is", "[folders]") {
  const Folder folder;
  const std::string text = folder.write("a.txt", std::string(600, 'a'));
  equivalence::train(folder, "run",
                     small_model({.dim = 16, .layers = 1, .heads = 2}) + "[data]\ntext = [\"" +
                         text +
                         "\"]\nseq_len = 24\nvalidation = 0.0\n[train]\nsteps = 1\nbatch = 2\n",
                     layout("one rank"));
  const std::string exported =
      equivalence::export_checkpoint(folder, equivalence::checkpoint(folder, "run", 1), "export");
  const auto words = json_of(exported, "config.json");
  CHECK(words.at("vocab_size") == 256);
  CHECK(words.at("max_position_embeddings") == 24);
  CHECK(words.at("dtype") == "float32");
  for (const char* file : {"config.json", "generation_config.json"}) {
    for (const char* key : {"eos_token_id", "bos_token_id", "pad_token_id"}) {
      INFO(file << " " << key);
      CHECK(json_of(exported, file).at(key).is_null());
    }
  }
  // Every byte is a token: text may be trained on from there.
  CHECK(start(folder, exported, "", std::string(100, 'b')).code == 0);
}

TEST_CASE("text is refused where a model's tokens are not bytes", "[folders]") {
  const Folder folder;
  refused(start(folder, reference("folders/plain"), "", std::string(100, 'b')),
          {"model.from", "vocabulary of 64 tokens", "data.tokens"});
  const std::string text = folder.write("long.txt", std::string(600, 'a'));
  equivalence::train(folder, "run",
                     small_model({.dim = 16, .layers = 1, .heads = 2}) + "[data]\ntext = [\"" +
                         text +
                         "\"]\nseq_len = 24\nvalidation = 0.0\n[train]\nsteps = 1\nbatch = 2\n",
                     layout("one rank"));
  for (const char* file : {"tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt"}) {
    const std::string exported = equivalence::export_checkpoint(
        folder, equivalence::checkpoint(folder, "run", 1), file + std::string("-export"));
    folder.write(file + std::string("-export/") + file, "{}");
    refused(start(folder, exported, "", std::string(100, 'b')), {"model.from", file});
    CHECK(start(folder, exported, "").code == 0);  // on tokens
  }
}

TEST_CASE("weights that would be dropped, or are not finite, stop the run", "[folders]") {
  const Folder folder;
  // transformers computes with both tensors here, whatever config.json says.
  const std::string two = changed_copy(folder, "plain", "two", {{"tie_word_embeddings", true}});
  for (const char* more : {"", "--dry-run"}) {
    refused(start(folder, two, more),
            {"lm_head.weight", "model.embed_tokens.weight", "tie_word_embeddings"});
  }
  // A row of an embedding that no token of the data reads.
  const std::string row = changed_copy(folder, "plain", "row", nlohmann::json::object());
  damage(row + "/model.safetensors", "model.embed_tokens.weight", 50 * 32 + 3, Damage::nan);
  for (const char* more : {"", "--dry-run"}) {
    refused(start(folder, row, more), {"model.embed_tokens.weight", "[50, 3]", "nan"});
  }
  CHECK_FALSE(std::filesystem::exists(folder / "out/step-00000001"));
}

TEST_CASE("sizes that the weights do not have are refused before anything is built", "[folders]") {
  const Folder folder;
  int number = 0;
  const auto with = [&](const nlohmann::json& changes) {
    return start(folder, changed_copy(folder, "plain", std::to_string(number++), changes),
                 "--dry-run");
  };
  refused(with({{"num_hidden_layers", 16777216}}), {"num_hidden_layers", "at most 100000"});
  refused(with({{"num_hidden_layers", 100000}}), {"num_hidden_layers is 100000", "2 layers"});
  refused(with({{"num_hidden_layers", 1}}), {"num_hidden_layers is 1", "2 layers"});
  refused(with({{"vocab_size", 16777216}}), {"vocab_size is 16777216", "[64, 32]"});
  refused(with({{"hidden_size", 64}}), {"hidden_size 64", "[64, 32]"});
  refused(with({{"intermediate_size", 1000000}}), {"intermediate_size is 1000000", "[52, 32]"});
  refused(with({{"head_dim", 1000000}}), {"num_attention_heads times head_dim is 4000000"});
  refused(with({{"num_key_value_heads", 4}}), {"num_key_value_heads times head_dim is 32"});
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
    const std::string file =
        folder.write("run.toml", one_step(entry.path().string(), tokens, 4, 2));
    const auto result = equivalence::run("train " + file + " log.metrics= checkpoint.folder=");
    INFO(entry.path().string() << ": " << result.error);
    CHECK(result.code == 2);
    CHECK(result.error.find(key) != std::string::npos);
    CHECK(result.error.find(value) != std::string::npos);
    ++count;
  }
  CHECK(count == 4);
}
