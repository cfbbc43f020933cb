// Files that others made: whatever is in them, the program ends soon with exit code 2, in little
// memory, and with an error of one line.
#include <sys/resource.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "catch.hpp"
#include "program.hpp"

using namespace faults;

namespace {

using Json = nlohmann::json;

/// With at most 6 GiB of addresses; the error.
std::string error_within_limits(const RunFolder& folder,
                                const std::vector<std::string>& arguments) {
  const Result result =
      run(folder, arguments,
          {.limits = {{RLIMIT_AS, 6UL << 30}, {RLIMIT_CPU, 60}}, .fixed_limits = true});
  std::string command;
  for (const std::string& argument : arguments) {
    command += " " + argument;
  }
  INFO("tessera" << command << "\n" << result.error.substr(0, 2000));
  CHECK(result.code == 2);
  CHECK(result.error.starts_with("error: "));
  CHECK(result.error.find("json.exception") == std::string::npos);
  CHECK(result.error.find("std::") == std::string::npos);
  CHECK(result.left_running == 0);
  return result.error;
}

void has(const std::string& text, const std::string& part) {
  INFO("'" << text << "' should hold '" << part << "'");
  CHECK(text.find(part) != std::string::npos);
}

/// A tokenizer of single bytes in the folder `tok`, and data and a config that use it.
void write_run(const RunFolder& folder, const Json& changes, const std::string& chat_template) {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(byte));
    vocab[name] = byte;
  }
  Json tokenizer = {
      {"version", "1.0"},
      {"added_tokens", {{{"id", 256}, {"content", "<|end|>"}, {"special", true}}}},
      {"normalizer", nullptr},
      {"pre_tokenizer", nullptr},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteFallback"}}},
      {"model",
       {{"type", "BPE"}, {"byte_fallback", true}, {"merges", Json::array()}, {"vocab", vocab}}}};
  tokenizer.update(changes);
  folder.write("tok/tokenizer.json", tokenizer.dump());
  folder.write("tok/tokenizer_config.json", R"({"eos_token": "<|end|>"})");
  folder.write("tok/chat_template.jinja", chat_template);
  std::string records;
  for (int i = 0; i < 4; ++i) {
    records +=
        R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": ")" +
        std::string(400, 'o') + "\"}]}\n";
  }
  folder.write("c.jsonl", records);
  folder.write(
      "c.toml",
      "[model]\ndim=32\nlayers=1\nheads=2\n[data]\ntokenizer=\"tok\"\njsonl=[\"c.jsonl\"]\n"
      "seq_len=2048\nvalidation=0\n[train]\nsteps=2\nbatch=2\n[checkpoint]\nfolder=\"\"\n");
}

const char* const good_template =
    "{%- for message in messages -%}{{ message.content }}<|end|>{%- endfor -%}";

}  // namespace

TEST_CASE("chat templates and tokenizers of strangers end a run in words") {
  const RunFolder folder;
  write_run(folder, Json::object(), good_template);
  CHECK(run(folder, {"data", "check", "c.toml"}).code == 0);
  const auto with = [&](const Json& changes, const std::string& chat_template) {
    write_run(folder, changes, chat_template);
    return error_within_limits(folder, {"data", "check", "c.toml"});
  };
  has(with(Json::object(),
           "{% set ns = namespace(t='x') %}{% for i in range(36) %}"
           "{% set ns.t = ns.t ~ ns.t %}{% endfor %}"),
      "the values of the template take more than 64 MiB");
  has(with(Json::object(),
           "{% macro m(n) %}{% if n > 0 %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}"
           "{% endmacro %}{{ m(45) }}"),
      "takes more than 20000000 steps");
  has(with(Json::object(), "{{ (-9223372036854775807 - 1) // -1 }}"), "a number is too large");
  has(with({{"pre_tokenizer",
             {{"type", "Split"},
              {"pattern", {{"Regex", R"((?:.|..){19}\x00|.)"}}},
              {"behavior", "Isolated"},
              {"invert", false}}}},
           good_template),
      "takes too many steps");
  const Json tenfold = {
      {"type", "Replace"}, {"pattern", {{"String", "o"}}}, {"content", "oooooooooo"}};
  has(with({{"normalizer", {{"type", "Sequence"}, {"normalizers", std::vector<Json>(9, tenfold)}}}},
           good_template),
      "grows to more than");
}

TEST_CASE("pickles, traces and black boxes of strangers end a command in words") {
  const RunFolder folder;
  std::string values = "\x80\x02(";
  values.resize(20'000'000, 'N');
  folder.write("p/.metadata", values + "t.");
  has(error_within_limits(folder, {"checkpoint", "info", "p"}), "does not describe a checkpoint");
  folder.write("t.json",
               R"({"traceEvents": [{"name": "x", "ph": "X", "ts": 1e999, "dur": 1, "pid": 0}]})");
  has(error_within_limits(folder, {"trace", "summary", "t.json"}), "t.json");
  folder.write("b/a-1.json", R"({"tessera_black_box": 1, "machine": "vm", "size": 2})");
  has(error_within_limits(folder, {"blackbox", "b"}), "'error' is missing");
}

TEST_CASE("a file that is not there, or not what a command reads, is exit code 2") {
  const RunFolder folder;
  std::string noise(4096, '\0');
  std::mt19937 random(1);
  for (char& byte : noise) {
    byte = static_cast<char>(random());
  }
  folder.write("noise", noise);
  folder.write("empty", "");
  folder.write("huge", "");
  std::filesystem::resize_file(folder / "huge", std::uintmax_t{1} << 40);  // it takes no blocks
  std::filesystem::create_directory(folder / "folder");
  const std::vector<std::vector<std::string>> commands = {{"train", "FILE", "--dry-run"},
                                                          {"data", "check", "FILE"},
                                                          {"data", "show", "FILE"},
                                                          {"plan", "FILE"},
                                                          {"graph", "stats", "FILE"},
                                                          {"graph", "show", "FILE"},
                                                          {"graph", "draw", "FILE", "a.svg"},
                                                          {"trace", "summary", "FILE"},
                                                          {"blackbox", "FILE"},
                                                          {"checkpoint", "info", "FILE"},
                                                          {"plot", "FILE"},
                                                          {"generate", "FILE", "--prompt", "a"},
                                                          {"pipeline", "--schedule", "FILE"},
                                                          {"compare", "FILE", "FILE"}};
  for (const char* const file : {"missing", "folder", "empty", "noise", "huge", "/dev/null"}) {
    for (std::vector<std::string> command : commands) {
      for (std::string& argument : command) {
        argument = argument == "FILE" ? file : argument;
      }
      error_within_limits(folder, command);
    }
  }
}
