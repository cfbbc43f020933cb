#include "trained.hpp"

#include <filesystem>
#include <string>
#include <vector>

#include "catch.hpp"

using nlohmann::json;
using trainer_test::read_file;
using trainer_test::Result;
using trainer_test::run_program;

namespace generation_test {

const std::string reference = std::string(TESSERA_SOURCE_FOLDER) + "/tests/reference/data/";

json conversation(const std::vector<std::string>& texts) {
  json messages = json::array();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", texts[i]}});
  }
  return {{"messages", messages}};
}

Trained::Trained() {
  folder_.write("tokenizer/tokenizer.json", read_file(reference + "tokenizers/byte_level.json"));
  folder_.write("tokenizer/tokenizer_config.json",
                json{{"eos_token", "<|im_end|>"},
                     {"chat_template", read_file(reference + "chat/chatml.jinja")}}
                    .dump());
  // The same tokens, and another one that ends texts.
  folder_.write("other/tokenizer.json", read_file(reference + "tokenizers/byte_level.json"));
  folder_.write("other/tokenizer_config.json",
                json{{"eos_token", "<|endoftext|>"},
                     {"chat_template", read_file(reference + "chat/chatml.jinja")}}
                    .dump());
  std::string chats;
  for (const auto& texts : std::vector<std::vector<std::string>>{
           {"Say one", "one ü1", "Again", "one ü1"}, {"Say two", "two 😀2", "Again", "two 😀2"}}) {
    chats += conversation(texts).dump() + "\n";
  }
  folder_.write("chats.jsonl", chats);
  std::string facts;
  for (const auto& [question, answer] : facts_) {
    facts += json{{"prompt", "Question: " + question + "\nAnswer:"}, {"completion", " " + answer}}
                 .dump() +
             "\n";
  }
  folder_.write("facts.jsonl", facts);
  folder_.write("run.toml", R"([model]
dim = 48
layers = 2
heads = 4
[data]
tokenizer = "tokenizer"
sources = [{ jsonl = ["chats.jsonl"] }, { jsonl = ["facts.jsonl"] }]
seq_len = 96
validation = 0
[train]
steps = 120
batch = 5
[optimizer]
lr = 1e-2
warmup = 10
[log]
metrics = ""
[checkpoint]
folder = "checkpoints"
every = 0
)");
  succeed("train " + path("run.toml"));
  checkpoint = path("checkpoints/step-00000120");
  model = path("model");
  succeed("checkpoint export " + checkpoint + " --to " + model);
  long_model = path("long_model");
  std::filesystem::copy(model, long_model, std::filesystem::copy_options::recursive);
  json config = json::parse(read_file(long_model + "/config.json"));
  config["max_position_embeddings"] = 1'000'000;
  folder_.write("long_model/config.json", config.dump());
}

std::string Trained::succeed(const std::string& command) {
  const Result result = run_program(command);
  INFO(command << "\n" << result.error);
  REQUIRE(result.code == 0);
  return result.out;
}

const Trained& trained() {
  static const Trained once;
  return once;
}

}  // namespace generation_test
