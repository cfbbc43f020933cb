// Text from a checkpoint: what a token is must not depend on how far the cache is filled.
#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "greedy.hpp"
#include "small_model.hpp"
#include "support.hpp"

using equivalence::Folder;
using equivalence::layout;
using equivalence::succeed;
using tessera::testing::small_model;

namespace {

/// A small model that has learned a rhyme's letters, but not yet the rhyme.
std::string trained(const Folder& folder, const char* where) {
  std::string rhyme;
  for (int i = 0; i < 60; ++i) {
    rhyme += "one two buckle my shoe, three four knock at the door, " + std::to_string(i) + ". ";
  }
  folder.write("rhyme.txt", rhyme);
  const std::string config = small_model({.kv_heads = 2}) +
                             "[data]\ntext = [\"rhyme.txt\"]\nseq_len = 32\nvalidation = 0.0\n"
                             "[train]\nsteps = 40\nbatch = 12\n[optimizer]\nlr = 1e-2\n";
  equivalence::train(folder, "run", config, layout(where));
  return equivalence::checkpoint(folder, "run", 40);
}

std::string generate(const std::string& checkpoint, const std::string& prompt, std::size_t tokens,
                     const std::string& more) {
  return succeed("generate '" + checkpoint + "' --prompt '" + prompt + "' --tokens " +
                 std::to_string(tokens) + " " + more);
}

}  // namespace

TEST_CASE("greedy text is the same again, and goes on from any of its beginnings", "[generation]") {
  for (const char* where : {"one rank", "FSDP 2 x TP 2"}) {
    INFO(where);
    const Folder folder;
    const std::string from = trained(folder, where);
    const std::string prompt = "one two";
    const std::string text = generate(from, prompt, 24, "--temperature 0");
    // A byte is a token; the prompt comes first and a line's end last.
    REQUIRE(text.size() == prompt.size() + 24 + 1);
    CHECK(text.substr(0, prompt.size()) == prompt);
    CHECK(text.back() == '\n');
    CHECK(generate(from, prompt, 24, "--temperature 0") == text);
    REQUIRE(text.find_first_of("'\0") == std::string::npos);
    // What the cache gives token by token, one pass over the longer prompt gives too.
    for (const std::size_t done : {1, 7, 23}) {
      INFO(done);
      CHECK(generate(from, text.substr(0, prompt.size() + done), 24 - done, "--temperature 0") ==
            text);
    }
    CHECK(generate(from, prompt, 24, "--temperature 1 --top-k 1") == text);
  }
}

namespace {

using Ids = std::vector<int>;

/// A stored folder with transformers' greedy texts.
class StoredTexts {
 public:
  explicit StoredTexts(const nlohmann::json& stored) : name(stored["folder"].get<std::string>()) {
    const std::string model = equivalence::reference(name);
    const auto config = nlohmann::json::parse(equivalence::read_file(model + "/config.json"));
    std::string prompts;
    for (const auto& text : stored["texts"]) {
      prompts += equivalence::prompt_of(text["prompt"].get<Ids>()) + "\n";
      expected_.push_back(text["tokens"].get<Ids>());
    }
    command = "generate '" + model + "' --prompts '" + folder_.write("prompts.txt", prompts) +
              "' --json --temperature 0 --repetition-penalty 1.5 --tokens 24 --tokenizer '" +
              equivalence::words_tokenizer(folder_, config["vocab_size"]) + "' ";
  }

  void check(const std::string& more) const {
    INFO(name << " " << more);
    const std::vector<Ids> got = equivalence::continued(command + more);
    REQUIRE(got.size() == expected_.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      INFO("prompt " << i);
      REQUIRE(got[i].size() >= expected_[i].size());
      // A GPT-2 has one more: its position is the last one.
      const auto length = static_cast<Ids::difference_type>(expected_[i].size());
      CHECK(Ids(got[i].begin(), got[i].begin() + length) == expected_[i]);
    }
  }

  std::string name;
  std::string command;

 private:
  Folder folder_;
  std::vector<Ids> expected_;
};

nlohmann::json stored_texts() {
  auto stored = nlohmann::json::parse(
      equivalence::read_file(equivalence::reference("generation/greedy.json")));
  REQUIRE(stored.size() == 11);
  return stored;
}

}  // namespace

TEST_CASE("folders of every family continue prompts as transformers does", "[generation]") {
  for (const auto& stored : stored_texts()) {
    const StoredTexts texts(stored);
    // One prompt at a time, all together, and groups of different lengths.
    for (const char* batch : {"--batch 1", "--batch 8", "--batch 3"}) {
      texts.check(batch);
    }
  }
}

TEST_CASE("several ranks continue prompts as transformers does", "[generation]") {
  for (const auto& stored : stored_texts()) {
    const StoredTexts texts(stored);
    texts.check("--ranks 2 --batch 3");
    if (texts.name.starts_with("gpt2")) {
      texts.check("--ranks 4");
      continue;
    }
    const auto refused = equivalence::run(texts.command + "--ranks 4");
    CHECK(refused.code == 2);
    CHECK(refused.error.find("its 2 heads cannot be split over 4 ranks") != std::string::npos);
    if (texts.name == "decoders/llama3") {
      texts.check("--ranks 4 --split 2");
      texts.check("--ranks 3 --split 1");  // four prompts
    }
  }
}

TEST_CASE("drawn text is the seed's", "[generation]") {
  const Folder folder;
  const std::string from = trained(folder, "one rank");
  const std::string text = generate(from, "three", 30, "--temperature 1.5 --seed 3");
  CHECK(generate(from, "three", 30, "--temperature 1.5 --seed 3") == text);
  CHECK(generate(from, "three", 30, "--temperature 1.5 --seed 4") != text);
}

TEST_CASE("text ends before the model's own eos, and at no other token", "[generation]") {
  const Folder folder;
  const std::string from = trained(folder, "one rank");
  const std::string prompt = "one two";
  // Without an eos all tokens come, whatever they are.
  const std::string whole = generate(from, prompt, 60, "--temperature 0");
  REQUIRE(whole.size() == prompt.size() + 60 + 1);
  const std::string text = whole.substr(prompt.size(), 60);
  const std::string exported = equivalence::export_checkpoint(folder, from, "export");
  // The same weights with other ids in config.json and generation_config.json: one step that
  // changes no bit keeps them.
  const auto with_eos = [&](const std::string& name, const std::string& config_eos,
                            const std::string& generation_eos) {
    const auto set = [&](const char* file, const std::string& eos) {
      auto json = nlohmann::json::parse(equivalence::read_file(exported + "/" + file));
      json["eos_token_id"] = nlohmann::json::parse(eos);
      folder.write(std::string("export/") + file, json.dump());
    };
    set("config.json", config_eos);
    set("generation_config.json", generation_eos);
    equivalence::train(folder, name,
                       "[model]\nfrom = \"export\"\n[data]\ntext = [\"rhyme.txt\"]\nseq_len = "
                       "32\nvalidation = 0.0\n[train]\nsteps = 1\nbatch = 12\n[optimizer]\nlr = "
                       "1e-30\nweight_decay = 0.0\n",
                       layout("one rank"));
    return generate(equivalence::checkpoint(folder, name, 1), prompt, 60, "--temperature 0");
  };
  const auto until = [&](std::size_t end) { return prompt + text.substr(0, end) + "\n"; };
  const auto id = [](char c) { return std::to_string(static_cast<unsigned char>(c)); };
  const char space = ' ';
  const char other = text[text.find_first_not_of(' ', 5)];
  CHECK(with_eos("none", "null", "null") == whole);
  CHECK(with_eos("one", id(space), id(space)) == until(text.find(space)));
  CHECK(with_eos("list", "null", "[1, " + id(space) + ", " + id(other) + "]") ==
        until(std::min(text.find(space), text.find(other))));
  // generation_config.json decides, as in transformers.
  CHECK(with_eos("generation", id(space), id(other)) == until(text.find(other)));
  CHECK(with_eos("not_config", id(space), "null") == whole);
}

TEST_CASE("text cannot be made without a prompt, a tokenizer or a checkpoint", "[generation]") {
  const Folder folder;
  const std::string from = trained(folder, "one rank");
  CHECK(equivalence::run("generate '" + from + "' --prompt ''").code == 2);
  CHECK(equivalence::run("generate /nowhere --prompt a").code == 2);
  const std::string tokens = small_model({.vocab = 101, .dim = 16, .layers = 1, .heads = 2}) +
                             "[data]\ntokens = [\"" + equivalence::reference("curves/tokens.npy") +
                             "\"]\nseq_len = 8\nvalidation = 0.0\n[train]\nsteps = 1\nbatch = 2\n";
  equivalence::train(folder, "tokens", tokens, layout("one rank"));
  const auto result = equivalence::run("generate '" + equivalence::checkpoint(folder, "tokens", 1) +
                                       "' --prompt a");
  CHECK(result.code == 2);
  CHECK(result.error.find("tokenizer") != std::string::npos);
}
