module;
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/input_file.hpp>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>

#include "fields.hpp"
module tessera.tokenize;

import tessera.base;
import tessera.ggml;
import tessera.options;
import tessera.plugin;
import :built_in;

namespace tessera::tokenize {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view built_in_kinds[] = {"bytes", "gguf", "sentencepiece", "tiktoken",
                                               "tokenizer.json"};

std::unique_ptr<Tokenizer> make(std::string_view kind, const std::string& path,
                                PluginOptions& options, const FolderDefaults& defaults,
                                const std::string& where) {
  if (kind == "bytes") {
    return bytes_tokenizer();
  }
  if (kind == "tokenizer.json") {
    return hugging_face_tokenizer(path, defaults);
  }
  if (kind == "gguf") {
    return gguf_tokenizer(path, options);
  }
  if (kind == "sentencepiece") {
    return sentence_piece_tokenizer(path, options, defaults);
  }
  if (kind == "tiktoken") {
    return tiktoken_tokenizer(path, options, defaults);
  }
  const std::vector<std::string> known = tokenizer_kinds();
  if (std::ranges::find(known, kind) == known.end()) {
    fail_input({.thing = where,
                .wrong = fmt::format("there is no kind of tokenizer '{}' (there are {}){}",
                                     shown(kind), join_words(known), did_you_mean(kind, known)),
                .advice = "'tessera plugin list' shows the plugins"});
  }
  std::unique_ptr<Tokenizer> made = plugin::host().find<Tokenizer>(kind)(path, options);
  if (!made) {
    fail_input(
        {.thing = fmt::format("tokenizer '{}'", kind), .wrong = "its plugin returned no object"});
  }
  return made;
}

std::unique_ptr<Tokenizer> make_complete(std::string_view kind, const std::string& path,
                                         const PluginOptions& options,
                                         const FolderDefaults& defaults, const std::string& where) {
  PluginOptions read = options;  // a copy is the same options
  std::unique_ptr<Tokenizer> made = make(kind, path, read, defaults, where);
  read.finish();
  return made;
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

/// The kind of a file, by its name and its beginning.
std::string kind_of(const fs::path& file) {
  const std::string name = file.filename().string();
  if (name.ends_with(".json")) {
    // Mistral's files have a date in their names: tekken_240911.json.
    return name.starts_with("tekken") ? "tiktoken" : "tokenizer.json";
  }
  if (is_gguf(file.string())) {
    return "gguf";
  }
  return is_tiktoken(file.string()) ? "tiktoken" : "sentencepiece";
}

/// The file of a folder that decides.
fs::path tokenizer_file(const std::string& path) {
  if (is_file(path)) {
    return path;
  }
  const fs::path folder = path;
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    fail_input({.thing = path, .wrong = "there is no such file or folder"});
  }
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tekken.json"}) {
    if (is_file(folder / name)) {
      return folder / name;
    }
  }
  std::vector<std::string> found;
  for (fs::directory_iterator next(folder, error), end; !error && next != end;
       next.increment(error)) {
    const std::string name = next->path().filename().string();
    if (name.ends_with(".tiktoken") || name.ends_with(".model")) {
      found.push_back(name);
    }
  }
  std::ranges::sort(found);
  if (found.size() == 1) {
    return folder / found[0];
  }
  if (found.empty() && is_file(folder / "model.gguf")) {
    return folder / "model.gguf";
  }
  fail_input({.thing = path,
              .wrong = found.empty()
                           ? "there is no tokenizer in the folder"
                           : fmt::format("there are several tokenizers, {}", join_words(found)),
              .expected = "tokenizer.json, tokenizer.model, tekken.json, one file with the ending "
                          ".model or .tiktoken, or model.gguf",
              .advice = "name a file"});
}

/// The files beside a tokenizer.
class TokenizerFolder {
 public:
  TokenizerFolder(fs::path folder, OpenedTokenizer& opened)
      : folder_(std::move(folder)), opened_(opened) {}

  void read_all(const FolderDefaults& defaults) {
    names(defaults);
    if (const auto config = read(folder_ / "tokenizer_config.json")) {
      if (const auto at = config->find("chat_template"); at != config->end()) {
        templates(*at);
      }
    }
    if (is_file(folder_ / "chat_template.jinja")) {
      opened_.chat_template = input_text((folder_ / "chat_template.jinja").string());
    }
    if (const auto generation = read(folder_ / "generation_config.json")) {
      ids(*generation);
    }
    auto& stop = opened_.special.stop;
    if (opened_.special.eos && std::ranges::find(stop, *opened_.special.eos) == stop.end()) {
      stop.insert(stop.begin(), *opened_.special.eos);
    }
  }

 private:
  static std::optional<Json> read(const fs::path& file) {
    if (!is_file(file)) {
      return std::nullopt;
    }
    ParsedJson parsed =
        read_json_object(file.string(), {.bytes = 100'000'000, .values = 4'000'000, .depth = 64});
    if (!parsed.problem.empty()) {
      fail_input({.thing = file.string(), .wrong = parsed.problem});
    }
    return std::move(parsed.value);
  }

  void names(const FolderDefaults& defaults) {
    if (opened_.kind != "tokenizer.json") {
      check_known(defaults);
    }
    const auto role = [&](const char* name, std::optional<TokenId>& id) {
      if (const auto at = defaults.roles.find(name); at != defaults.roles.end()) {
        id = opened_.tokenizer->id(at->second.content);
      }
    };
    role("bos_token", opened_.special.bos);
    role("eos_token", opened_.special.eos);
    role("pad_token", opened_.special.pad);
    role("unk_token", opened_.special.unknown);
  }

  /// Error (input): a file names a token that the tokenizer lacks. Only transformers' own format
  /// says how it would divide texts.
  void check_known(const FolderDefaults& defaults) const {
    for (const FolderToken& token : defaults.tokens) {
      const auto found = opened_.tokenizer->id(token.content);
      if (!found || (token.id >= 0 && token.id != *found)) {
        fail_input(
            {.thing = token.from,
             .wrong = found ? fmt::format("the token '{}' has the id {} there, and {} in {}",
                                          shown(token.content), token.id, *found, opened_.file)
                            : fmt::format("the token '{}' is not in the tokenizer's vocabulary",
                                          shown(token.content)),
             .advice = "save the tokenizer with transformers, which writes tokenizer.json"});
      }
    }
  }

  /// A template, or a list of named ones.
  void templates(const Json& value) {
    if (value.is_string()) {
      opened_.chat_template = value.get<std::string>();
      return;
    }
    for (const Json& one : value.is_array() ? value : Json::array()) {
      if (!one.is_object() || !one.contains("name") || !one["name"].is_string() ||
          !one.contains("template") || !one["template"].is_string()) {
        fail_input({.thing = (folder_ / "tokenizer_config.json").string() + ": chat_template",
                    .wrong = "is not supported",
                    .expected = "a text, or a list of objects with name and template"});
      }
      const std::string text = one["template"].get<std::string>();
      if (one["name"] == "default") {
        opened_.chat_template = text;
      } else {
        opened_.chat_templates[one["name"].get<std::string>()] = text;
      }
    }
  }

  /// The ids of generation_config.json.
  void ids(const Json& object) {
    const auto check = [&](const Json& id, const char* name) {
      if (!id.is_number_integer() || id < 0 || id >= opened_.tokenizer->vocab_size()) {
        fail_input(
            {.thing = (folder_ / "generation_config.json").string() + ": " + name,
             .wrong = fmt::format("the id {} is not in the tokenizer's vocabulary", json_shown(id)),
             .expected = fmt::format("0 to {}", opened_.tokenizer->vocab_size() - 1)});
      }
      return id.get<TokenId>();
    };
    const auto one = [&](const char* name, std::optional<TokenId>& id) {
      if (const auto at = object.find(name); at != object.end() && !at->is_null()) {
        id = check(*at, name);
      }
    };
    one("bos_token_id", opened_.special.bos);
    one("pad_token_id", opened_.special.pad);
    const auto eos = object.find("eos_token_id");
    if (eos == object.end() || eos->is_null()) {
      return;
    }
    for (const Json& id : eos->is_array() ? *eos : Json::array({*eos})) {
      opened_.special.stop.push_back(check(id, "eos_token_id"));
    }
  }

  fs::path folder_;
  OpenedTokenizer& opened_;
};

}  // namespace

bool is_built_in_kind(std::string_view kind) {
  return std::ranges::find(built_in_kinds, kind) != std::end(built_in_kinds);
}

std::vector<std::string> tokenizer_kinds() {
  std::vector<std::string> names = plugin::host().names(Tokenizer::plugin_kind.name);
  names.insert(names.end(), std::begin(built_in_kinds), std::end(built_in_kinds));
  std::ranges::sort(names);
  return names;
}

std::shared_ptr<const Tokenizer> make_tokenizer(std::string_view kind, const std::string& path,
                                                const PluginOptions& options,
                                                const std::string& where) {
  return make_complete(kind, path, options, {}, where);
}

OpenedTokenizer open_tokenizer(const std::string& path, const PluginOptions& options) {
  const fs::path file = tokenizer_file(path);
  const fs::path folder = file.parent_path();
  OpenedTokenizer opened;
  opened.kind = kind_of(file);
  opened.file = file.string();
  if (is_gguf(opened.file)) {
    opened.tokenizer = make_complete(opened.kind, opened.file, options, {}, path);
    describe_gguf(opened);
    return opened;
  }
  const FolderDefaults defaults = folder_defaults(folder.string());
  opened.tokenizer = make_complete(opened.kind, opened.file, options, defaults, path);
  opened.special = opened.tokenizer->special_tokens();
  TokenizerFolder(folder, opened).read_all(defaults);
  return opened;
}

}  // namespace tessera::tokenize
