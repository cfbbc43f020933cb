// Configs that are wrong in every key, and damaged at random: each refusal says where, and is short
// whatever the config says.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.runs;
import tessera.app.config;

namespace runs = tessera::runs;
using namespace tessera::app;
using trainer_test::Folder;
using trainer_test::input_error;
using trainer_test::Result;
using trainer_test::run_program;

namespace {

constexpr std::size_t longest = 1000;  // of a line of an error

const std::string small_run = R"(model.dim = 32
model.layers = 1
model.heads = 2
data.text = ["text.txt"]
data.seq_len = 16
train.steps = 2
train.batch = 4
mesh.axes = ["shard"]
mesh.shape = [2]
checkpoint.folder = "checkpoints"
log.metrics = "metrics.jsonl"
parallel = [{ style = "FSDP", axis = "shard", on = ["model.layers.*", "."], options = { prefetch = 1 } }]
)";

/// The lines of small_run, but the one that gives `key`.
std::string without(const std::string& key) {
  std::string kept;
  std::size_t begin = 0;
  while (begin < small_run.size()) {
    const std::size_t end = small_run.find('\n', begin) + 1;
    if (small_run.compare(begin, key.size() + 1, key + " ") != 0) {
      kept += small_run.substr(begin, end - begin);
    }
    begin = end;
  }
  return kept;
}

/// A config in which the key has this value. Keys of lists are those of an entry.
std::string with(const runs::Key& key, const std::string& value) {
  if (!key.in_list()) {
    return without(key.path) + key.path + " = " + value + "\n";
  }
  if (key.section() != "parallel") {
    const std::string others = key.required ? "" : "sink = \"command\"\n";
    return small_run + "[[" + key.section() + "]]\n" + others + key.leaf() + " = " + value + "\n";
  }
  std::vector<std::pair<std::string, std::string>> entry = {{"style", "\"FSDP\""},
                                                            {"axis", "\"shard\""},
                                                            {"on", "[\".\"]"},
                                                            {"options", "{ prefetch = 1 }"}};
  std::string text = without("parallel") + "[[parallel]]\n";
  for (const auto& [leaf, usual] : entry) {
    text += leaf + " = " + (leaf == key.leaf() ? value : usual) + "\n";
  }
  return text;
}

/// "FILE:12: ...", or "command line, ARGUMENT: ..."; of several problems, "FILE: 3 problems".
bool has_place(std::string_view line, const std::string& file) {
  if (line.starts_with("command line, ")) {
    return true;
  }
  if (!line.starts_with(file)) {
    return false;
  }
  line.remove_prefix(file.size());
  const bool has_line = line.size() > 1 && line[1] >= '0' && line[1] <= '9';
  while (line.size() > 1 && line[0] == ':' && line[1] >= '0' && line[1] <= '9') {
    line.remove_prefix(std::min(line.find_first_not_of("0123456789", 1), line.size()));
  }
  return line.starts_with(": ") && (has_line || line.ends_with(" problems") ||
                                    // A config without a section [data] has no line for it.
                                    line.starts_with(": data.text: there is nothing to train on"));
}

/// Each line of the error is short, and its first one, or each of several problems, begins with a
/// place. `file` is how the config is named.
void is_placed_and_short(const std::string& error, const std::string& file) {
  INFO(error.substr(0, longest));
  std::size_t begin = 0;
  bool first = true;
  bool several = false;
  while (begin < error.size()) {
    const std::size_t end = std::min(error.find('\n', begin), error.size());
    const std::string line = error.substr(begin, end - begin);
    CHECK(line.size() <= longest);
    const bool problem = several && line.starts_with("  ") && !line.starts_with("  and ");
    if (first || problem) {
      INFO(line.substr(0, longest));
      CHECK(has_place(line.substr(problem ? 2 : 0), file));
      several = several || (line.starts_with(file + ": ") && line.ends_with(" problems"));
    }
    first = false;
    begin = end + 1;
  }
  CHECK(error.size() <= 25 * longest);
}

std::string quoted(const std::string& text) { return "\"" + text + "\""; }

std::vector<std::string> wrong_values() {
  const std::string much(20'000, 'a');
  const std::string list = "[" + quoted(much) + ", " + quoted(much) + "]";
  return {quoted(much),
          list,
          quoted(much + " {" + much),
          "{ " + much + " = 1 }",
          "[{ " + much + " = " + quoted(much) + " }]",
          quoted("nowhere"),
          "[\"nowhere\"]",
          "-1",
          "[-1]",
          "1e30",
          "true",
          "[]",
          "1979-05-27",
          "[[[[1]]]]"};
}

/// Texts with bytes, words and lines replaced, removed and repeated.
std::string damaged(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random);
  };
  std::string text = small_run;
  const std::size_t changes = 1 + below(3);
  for (std::size_t i = 0; i < changes && !text.empty(); ++i) {
    const std::size_t at = below(text.size());
    const std::size_t line =
        text.rfind('\n', at) == std::string::npos ? 0 : text.rfind('\n', at) + 1;
    const std::size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    switch (below(6)) {
      case 0:
        text[at] = static_cast<char>(32 + below(95));
        break;
      case 1:
        text.erase(at, 1 + below(4));
        break;
      case 2:
        text.erase(line, end > line ? end - line : 0);
        break;
      case 3:
        text.insert(line, end > line ? text.substr(line, end - line) : "\n");
        break;
      case 4:
        text.insert(at, std::string(1 + below(2000), "x9.[\"="[below(6)]));
        break;
      default:
        text.insert(line, "[" + std::string(1, "dmtx"[below(4)]) + "]\n");
        break;
    }
  }
  return text;
}

}  // namespace

TEST_CASE("a key that is not given has the place of its table, or of another key of its section") {
  runs::RunSpec config;
  config.file = "run.toml";
  config.given["data"] = {"run.toml", 1};
  config.given["parallel[1]"] = {"run.toml", 4};
  config.given["train.steps"] = {"run.toml", 7};
  CHECK(config.place("data.files") == "run.toml:1: data.files");
  CHECK(config.place("parallel[1].style") == "run.toml:4: parallel[1].style");
  CHECK(config.place("train.steps") == "run.toml:7: train.steps");
  CHECK(config.place("train.seed") == "run.toml:7: train.seed");
  CHECK(config.place("model.dim") == "run.toml: model.dim");
}

TEST_CASE("what parsing a config refuses has a place and is short", "[refusals]") {
  int refused = 0;
  const auto parse = [&](const std::string& text, const std::vector<std::string>& overrides = {}) {
    const std::string error = input_error([&] { parse_config(text, "run.toml", overrides); });
    if (!error.empty()) {
      ++refused;
      is_placed_and_short(error, "run.toml");
    }
  };
  REQUIRE(input_error([&] { parse_config(small_run, "run.toml"); }).empty());
  for (const runs::Key& key : runs::config_keys()) {
    INFO(key.path);
    for (const std::string& value : wrong_values()) {
      parse(with(key, value));
      const std::string name = key.in_list() ? key.section() + "[0]." + key.leaf() : key.path;
      parse(small_run, {name + "=" + value});
    }
  }
  const std::string much(20'000, 'k');
  for (const std::string& line :
       {much + " = 1", "[" + much + "]", "train." + much + " = 1", "model." + much + " = {}",
        "optimizer.options." + much + " = 2000-01-01", "parallel." + much + " = 3"}) {
    parse(small_run + line + "\n");
    parse(without("parallel") + line + "\n");
  }
  for (const std::string& argument :
       {much, much + "=1", "train." + much + "=1", "train.steps." + much + "=1",
        "parallel[0]." + much + "=1", "parallel[9]." + much + "=1", "mesh." + much + "[3]=1"}) {
    parse(small_run, {argument});
  }
  std::string many = small_run;
  for (int i = 0; i < 5000; ++i) {
    many += "train.key" + std::to_string(i) + " = 1\n";
  }
  parse(many);
  for (std::uint32_t seed = 0; seed < 3000; ++seed) {
    INFO("seed " << seed);
    parse(damaged(seed));
  }
  CHECK(refused > 3000);
}

TEST_CASE("what a run refuses of its config has a place and is short", "[refusals]") {
  const Folder folder;
  std::string words;
  for (int i = 0; i < 400; ++i) {
    words += "the cat sat on the mat. ";
  }
  folder.write("text.txt", words);
  folder.write("empty.txt", "");
  const auto run = [&](const std::string& text, const std::string& overrides = "") {
    const std::string file = folder.write("run.toml", text);
    const Result result = run_program("train " + file + " --dry-run " + overrides);
    INFO(overrides);
    CHECK((result.code == 0 || result.code == 2));
    if (result.code == 2) {
      REQUIRE(result.error.starts_with("error: "));
      is_placed_and_short(result.error.substr(7, result.error.size() - 8), file);
    }
    return result.code;
  };
  REQUIRE(run(small_run) == 0);
  const std::string much(30'000, 'a');
  for (const runs::Key& key : runs::config_keys()) {
    INFO(key.path);
    for (const std::string& value : {quoted(much), "[" + quoted(much) + "]", quoted("nowhere"),
                                     std::string("[\"nowhere\"]"), std::string("7")}) {
      if (input_error([&] { parse_config(with(key, value), "run.toml"); }).empty()) {
        run(with(key, value));
      }
    }
  }
  // What only the whole of a config shows.
  for (const char* overrides : {"'mesh.axes=[shard,tensor]' 'mesh.shape=[2,2]'",
                                "'parallel=[]'",
                                "train.batch=3",
                                "train.micro_batch=3",
                                "data.seq_len=5000",
                                "data.validation=0.0001",
                                "'data.text=[empty.txt]'",
                                "'data.text=[missing.txt,other.txt]'",
                                "'data.tokens=[text.txt]' 'data.text=[]' model.vocab=9",
                                "checkpoint.folder=text.txt",
                                "log.metrics=.",
                                "log.metrics=text.txt/m",
                                "model.from=.",
                                "model.adapter=.",
                                "'parallel[0].options.prefetch=many'",
                                "'parallel[0].options.x=1'",
                                "'parallel[0].on=[model.nothing]'",
                                "train.freeze=[nothing]",
                                "train.freeze=['**']",
                                "train.device=gpu",
                                "mesh.transport=wire",
                                "optimizer.name=adan",
                                "optimizer.options.beta=3",
                                "'optimizer.groups=[{on=[nothing]}]'",
                                "plugins.paths=[x.so]",
                                "checkpoint.resume=nowhere",
                                "checkpoint.resume=text.txt",
                                "trace.file=. trace.steps=[1,2]",
                                "graph.capture=true graph.memory_budget=1KiB",
                                "graph.capture=true graph.transforms=[x]",
                                "graph.capture=true graph.mode=expand"}) {
    INFO(overrides);
    CHECK(run(small_run, overrides) == 2);
  }
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    INFO("seed " << seed);
    const std::string text = damaged(seed + 10'000);
    if (input_error([&] { parse_config(text, "run.toml"); }).empty()) {
      run(text);
    }
  }
}
