// Every option of a command and every key of a config that takes a text: an address of a store is
// taken, or refused with the reason. Options and keys are those that the program says it has.
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "stored_place.hpp"

namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using tessera::testing::CommandAnswer;
using tessera::testing::read_file;
using tessera::testing::StoredPlace;

/// What is asked for: no plugin has this scheme.
const std::string address = "gs:owner/name";
const std::string refused = "s3://bucket/x";

/// Addresses with secrets, which are refused without showing them.
const std::string with_secrets[] = {"https://me:hunter2@127.0.0.1:1/x", "s3://hunter2@bucket/x",
                                    "https://127.0.0.1:1/x?token=hunter2",
                                    "https://127.0.0.1:1/x?X-Amz-Signature=hunter2&X-Amz-Date=1"};

/// A command that refuses an address with a secret shows nothing of it.
void check_hides(const StoredPlace& place, const std::string& words) {
  const CommandAnswer answer = place.ask(words);
  INFO(words << "\n" << answer.out << answer.error);
  CHECK(answer.code == 2);
  CHECK((answer.out + answer.error).find("hunter2") == std::string::npos);
  CHECK_THAT(answer.error, Contains("error: "));
}

std::string without_backslashes(std::string text) {
  std::erase(text, '\\');
  return text;
}

/// "train --plugin" and "train CONFIG" of the manual, for values that are no numbers.
std::set<std::string> options_of(const std::string& manual) {
  const std::set<std::string> numbers = {"INT", "UINT", "FLOAT", "NUMBER", "SIZE", "SECONDS"};
  std::set<std::string> options;
  std::istringstream lines(without_backslashes(manual));
  std::string command;
  const auto after = [](const std::string& line, const std::string& mark) {
    const std::size_t at = line.find(mark);
    return at == std::string::npos
               ? ""
               : line.substr(at + mark.size(), line.find("fR", at) - at - mark.size());
  };
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(".SS tessera ")) {
      command = line.substr(12);
    } else if (line.starts_with("fI")) {
      options.insert(command + " " + after(line, "fI"));
    } else if (line.starts_with("fB--") && line.find("fI") != std::string::npos &&
               !numbers.contains(after(line, "fI"))) {
      options.insert(command + " " + after(line, "fB"));
    }
  }
  return options;
}

/// The words of a command with an address for each option that takes one.
const std::map<std::string, std::string> taken = {
    {"generate MODEL", "generate ADDRESS --prompt x"},
    {"generate --tokenizer", "generate model --prompt x --tokenizer ADDRESS"},
    {"generate --base", "generate model --prompt x --base ADDRESS"},
    {"generate --adapter", "generate model --prompt x --adapter ADDRESS"},
    {"generate --prompts", "generate model --prompts ADDRESS"},
    {"chat MODEL", "chat ADDRESS"},
    {"chat --tokenizer", "chat model --tokenizer ADDRESS"},
    {"chat --base", "chat model --base ADDRESS"},
    {"chat --adapter", "chat model --adapter ADDRESS"},
    {"chat --chat-template", "chat model --chat-template ADDRESS"},
    {"evaluate MODEL", "evaluate ADDRESS --text text.txt"},
    {"evaluate --tokenizer", "evaluate model --text text.txt --tokenizer ADDRESS"},
    {"evaluate --base", "evaluate model --text text.txt --base ADDRESS"},
    {"evaluate --adapter", "evaluate model --text text.txt --adapter ADDRESS"},
    {"evaluate --text", "evaluate model --text ADDRESS"},
    {"evaluate --jsonl", "evaluate model --jsonl ADDRESS"},
    {"evaluate --questions", "evaluate model --questions ADDRESS"},
    {"evaluate --tasks", "evaluate model --tasks ADDRESS"},
    {"evaluate --task-data", "evaluate model --text text.txt --task-data ADDRESS"},
    {"evaluate --shots-from", "evaluate model --text text.txt --shots 1 --shots-from ADDRESS"},
    {"evaluate --beside", "evaluate model --text text.txt --beside ADDRESS"},
    {"evaluate --chat-template", "evaluate model --text text.txt --chat-template ADDRESS"},
    {"compare MODEL", "compare ADDRESS text.txt"},
    {"compare STORED", "compare model ADDRESS"},
    {"serve MODEL", "serve ADDRESS"},
    {"serve --tokenizer", "serve model --tokenizer ADDRESS"},
    {"serve --base", "serve model --base ADDRESS"},
    {"serve --adapter", "serve model --adapter=one=ADDRESS"},
    {"serve --chat-template", "serve model --chat-template ADDRESS"},
    {"embed MODEL", "embed ADDRESS"},
    {"model describe FOLDER", "model describe ADDRESS"},
    {"replay RUN", "replay ADDRESS --step 1"},
    {"verify FOLDER", "verify ADDRESS"},
    {"bisect RUN", "bisect ADDRESS begun"},
    {"bisect OTHER", "bisect begun ADDRESS"},
    {"data where RUN", "data where ADDRESS --step 1"},
    {"data seen RUN", "data seen ADDRESS text.txt:1"},
    {"checkpoint info PATH", "checkpoint info ADDRESS"},
    {"checkpoint verify PATH", "checkpoint verify ADDRESS"},
    {"checkpoint export PATH", "checkpoint export ADDRESS --to x"},
    {"checkpoint export --to", "checkpoint export begun/step-00000001 --to ADDRESS"},
    {"checkpoint export --base", "checkpoint export begun/step-00000001 --to x --base ADDRESS"},
    {"checkpoint export --merge", "checkpoint export model --to x --merge ADDRESS"},
    {"checkpoint convert PATH", "checkpoint convert ADDRESS --to x --format torch"},
    {"checkpoint convert --to", "checkpoint convert model --to ADDRESS --format torch"},
    {"checkpoint diff FIRST", "checkpoint diff ADDRESS model"},
    {"checkpoint diff SECOND", "checkpoint diff model ADDRESS"},
    {"checkpoint diff --base", "checkpoint diff model model --base ADDRESS"},
};

/// A second word of an encoder's command, which is asked for after its model.
const std::set<std::string> tried_elsewhere = {"embed --texts"};

/// Options of any command, and of one, that name no path.
const std::set<std::string> no_paths = {"OVERRIDES",
                                        "--device",
                                        "--stop",
                                        "--system",
                                        "--meet",
                                        "--precision",
                                        "--prompt",
                                        "--format",
                                        "--host",
                                        "--record-as",
                                        "--against",
                                        "--steps",
                                        "--only",
                                        "--mesh",
                                        "--shape",
                                        "--arguments",
                                        "--activations",
                                        "--keys",
                                        "--pooling",
                                        "--dtype",
                                        "--kind",
                                        "--part",
                                        "--metric",
                                        "PLACEMENTS",
                                        "SHELL",
                                        "data seen PLACE",
                                        "layout --to",
                                        "ops NAME",
                                        "plugin new NAME",
                                        "graph show --module",
                                        "graph roofline --measure",
                                        "bench WHAT"};

std::string with(std::string words, const std::string& what) {
  return words.replace(words.find("ADDRESS"), 7, what);
}

/// Words before the positional one that is tried.
std::string words_before(const std::string& option) {
  const std::map<std::string, std::string> before = {{"graph diff AFTER", "graph diff x"},
                                                     {"pipeline draw SCHEDULE", "pipeline draw"}};
  const auto found = before.find(option);
  return found == before.end() ? option.substr(0, option.rfind(' ')) : found->second;
}

}  // namespace

TEST_CASE("each option of a command takes an address of a store, or refuses it with the reason") {
  const StoredPlace place;
  place.write("out.txt", "");
  place.write("error.txt", "");
  const std::vector<std::string> names = place.names_below();
  std::set<std::string> options = options_of(place.tell("manual"));
  CHECK(options.size() > 120);
  for (const auto& [option, words] : taken) {
    INFO(option);
    CHECK(options.contains(option));
  }
  int refusals = 0;
  std::size_t secrets = 0;
  for (const std::string& option : options) {
    const std::string name = option.substr(option.rfind(' ') + 1);
    INFO(option);
    if (no_paths.contains(name) || no_paths.contains(option) || tried_elsewhere.contains(option)) {
      continue;
    }
    if (const auto found = taken.find(option); found != taken.end()) {
      const std::string error = place.refusal(with(found->second, address));
      CHECK_THAT(error, Contains("no plugin knows the scheme 'gs'") && Contains(address));
      check_hides(place, with(found->second, "'" + with_secrets[secrets++ % 4] + "'"));
      continue;
    }
    const std::string option_words = name.starts_with("--") ? " " + name + " " : " ";
    const std::string error = place.refusal(words_before(option) + option_words + refused);
    CHECK_THAT(error, Contains(name) && Contains(refused + " is an address of a store") &&
                          Contains("write ./s3://bucket/x"));
    check_hides(place,
                words_before(option) + option_words + "'" + with_secrets[secrets++ % 4] + "'");
    ++refusals;
  }
  CHECK(refusals > 40);
  CHECK(place.names_below() == names);
}

TEST_CASE("each key of a config takes an address of a store, or refuses it with the reason") {
  const StoredPlace place;
  // Keys that read; those of checkpoints; and texts that are no paths.
  const std::set<std::string> read = {
      "model.from",         "model.base",   "model.adapter",         "data.text",
      "data.jsonl",         "data.tokens",  "data.sources",          "data.tokenizer",
      "data.chat_template", "data.exclude", "data.validation_files", "checkpoint.folder",
      "checkpoint.resume"};
  const std::set<std::string> no_path = {
      "model.family", "model.layer_pattern", "data.labels", "data.template_members",
      "data.end_tokens", "data.allow_dropped", "train.clip_norm_type", "train.freeze",
      "train.device", "optimizer.name", "mesh.axes", "mesh.transport", "mesh.interface",
      "parallel.style", "parallel.axis", "parallel.on", "log.sample_prompt", "sinks.sink",
      "graph.mode", "graph.passes", "graph.transforms", "graph.memory_budget", "checkpoint.allow",
      // Tables, whose texts are of plugins or of templates.
      "data.columns", "data.tokenizer_options", "data.template_options", "train.on_spike",
      "optimizer.options", "optimizer.groups", "parallel.options", "sinks.options"};
  // What is checked before files are.
  const std::map<std::string, std::string> beside = {
      {"model.base", "model.from=begun/step-00000001 "},
      {"data.tokens", "model.vocab=10 "},
      {"graph.offload", "graph.capture=true 'graph.memory_budget=\"1GiB\"' "},
      {"graph.dump", "graph.capture=true "},
      {"graph.program", "graph.capture=true "}};
  std::istringstream lines(place.tell("keys"));
  std::set<std::string> tried;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t open = line.find("` (");
    if (!line.starts_with("- `") || open == std::string::npos) {
      continue;
    }
    const std::string key = line.substr(3, open - 3);
    const std::string type = line.substr(open + 3, line.find(';', open) - open - 3);
    if (type.find("path") == std::string::npos && type.find("text") == std::string::npos &&
        type.find("table") == std::string::npos) {
      continue;
    }
    INFO(line);
    if (no_path.contains(key)) {
      CHECK(type.find("path") == std::string::npos);
      continue;
    }
    tried.insert(key);
    const std::string value = key == "data.sources"      ? "[{jsonl=[\"" + address + "\"]}]"
                              : type.starts_with("list") ? "[\"" + address + "\"]"
                                                         : address;
    const bool is_data =
        key == "data.jsonl" || key == "data.tokens" || key == "data.sources" || key == "data.text";
    std::string words = is_data ? "train run.toml " : "train run.toml 'data.text=[\"text.txt\"]' ";
    words += beside.contains(key) ? beside.at(key) : "";
    const std::string first = words + "'" + key + "=";
    const std::string error = place.refusal(first + value + "'");
    for (const std::string& secret : with_secrets) {
      std::string other = value;
      check_hides(place, first + other.replace(other.find(address), address.size(), secret) + "'");
    }
    CHECK_THAT(error, Contains(key) && Contains(address));
    CHECK_THAT(error, read.contains(key) ? Contains("no plugin knows the scheme 'gs'")
                                         : Contains("no place of a store for this key"));
  }
  CHECK(std::ranges::includes(tried, read));
  CHECK(tried.size() > read.size() + 5);
  CHECK(!fs::exists(place / "gs:owner"));
  for (const std::string& name : place.names_below()) {
    INFO(name);
    CHECK((!fs::is_regular_file(place / name) ||
           read_file(place / name).find("hunter2") == std::string::npos));
  }
}
