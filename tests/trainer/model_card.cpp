// README.md of an export: what was trained on what.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "catch.hpp"
#include "small_model.hpp"
#include "support.hpp"

using nlohmann::json;
using tessera::testing::small_model;
using trainer_test::Folder;
using trainer_test::has;
using trainer_test::read_file;
using trainer_test::Result;
using trainer_test::run_program;

namespace {

/// The text between the first two of these after the heading.
std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const std::size_t from = text.find(begin);
  REQUIRE(from != std::string::npos);
  const std::size_t to = text.find(end, from + begin.size());
  REQUIRE(to != std::string::npos);
  return text.substr(from + begin.size(), to - from - begin.size());
}

}  // namespace

TEST_CASE("an export says what was trained on what, for how long and with which settings") {
  const Folder folder;
  std::string words;
  for (int i = 0; i < 200; ++i) {
    words += "Some words and the number " + std::to_string(i) + ".\n";
  }
  folder.write("a `text` | of mine.txt", words);
  const std::string config = folder.write(
      "run.toml", small_model({.dim = 16, .layers = 1, .heads = 2}) +
                      "[data]\ntext = [\"a `text` | of mine.txt\"]\nseq_len = 16\nvalidation = 0\n"
                      "[train]\nsteps = 3\nbatch = 4\n[log]\nmetrics = \"secret/metrics.jsonl\"\n"
                      "[checkpoint]\nfolder = \"saved\"\n[[parallel]]\nstyle = \"LoRA\"\n"
                      "on = [\"**.q_proj\"]\n");
  const Result run = run_program("train " + config);
  INFO(run.error);
  REQUIRE(run.code == 0);
  const std::string step = (folder.path() / "saved/step-00000003").string();
  const std::string to = (folder.path() / "my | model").string();
  const Result exported =
      run_program("checkpoint export " + step + " --no-tokenizer --to '" + to + "'");
  INFO(exported.error);
  REQUIRE(exported.code == 0);
  has(exported.out, "README.md");
  const std::string card = read_file(to + "/README.md");
  INFO(card);
  CHECK(card.starts_with("# my \\| model\n"));
  has(card, "llama, ");
  has(card, ": 3 steps, 192 tokens.");
  has(card, "It began with random weights.");
  has(card, "| `optimizer.lr` |");
  has(card, "| `data.content` |");
  CHECK(card.find("secret") == std::string::npos);
  CHECK(card.find(folder.path().string()) == std::string::npos);
  const json settings = json::parse(between(card, "```json\n", "\n```"));
  CHECK(settings.at("data").at("text").at(0) == "a `text` | of mine.txt");
  CHECK(settings.at("train").at("steps") == 3);
  CHECK_FALSE(settings.contains("log"));
  CHECK_FALSE(settings.contains("checkpoint"));

  const std::string adapter = (folder.path() / "adapter").string();
  const Result updates = run_program("checkpoint export " + step + " --adapter --to " + adapter);
  INFO(updates.error);
  REQUIRE(updates.code == 0);
  has(read_file(adapter + "/README.md"), "An adapter (LoRA) of a llama");
}
