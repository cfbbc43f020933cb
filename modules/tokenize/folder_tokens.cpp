module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>

#include "vocabulary.hpp"
module tessera.tokenize;

import tessera.base;
import :built_in;

namespace tessera::tokenize {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* config_file = "tokenizer_config.json";
constexpr const char* map_file = "special_tokens_map.json";
constexpr const char* added_file = "added_tokens.json";

/// In the order in which transformers adds them.
constexpr std::array<const char*, 7> roles = {"bos_token", "eos_token", "unk_token", "sep_token",
                                              "pad_token", "cls_token", "mask_token"};

/// The tokens that files beside a tokenizer name, as transformers collects them.
class Reader {
 public:
  explicit Reader(fs::path folder) : folder_(std::move(folder)) {}

  FolderDefaults read() {
    const Json config = file(config_file);
    out_.add_bos = flag(config, "add_bos_token");
    out_.add_eos = flag(config, "add_eos_token");
    read_roles(config, config_file);
    // With added_tokens_decoder, transformers does not look at the other two files.
    const bool complete = config.contains("added_tokens_decoder");
    if (complete) {
      read_decoder(config["added_tokens_decoder"]);
    }
    read_named(config, config_file);
    if (!complete) {
      const Json map = file(map_file);
      read_roles(map, map_file);
      read_named(map, map_file);
      read_added(file(added_file));
    }
    std::ranges::stable_sort(out_.tokens, {}, &FolderToken::id);
    for (const char* const role : roles) {
      if (const auto found = out_.roles.find(role); found != out_.roles.end()) {
        out_.tokens.push_back(found->second);
      }
    }
    std::ranges::move(named_, std::back_inserter(out_.tokens));
    return std::move(out_);
  }

 private:
  [[noreturn]] void wrong(const std::string& where, const std::string& expected,
                          const Json& got) const {
    fail_input({.thing = where,
                .wrong = "is not supported",
                .expected = expected,
                .got = shown(json_text(got), 60)});
  }

  std::string path(const char* name) const { return (folder_ / name).string(); }

  Json file(const char* name) const {
    std::error_code error;
    if (!fs::is_regular_file(folder_ / name, error)) {
      return Json::object();
    }
    ParsedOrderedJson parsed = read_ordered_json_object(
        path(name), {.bytes = 100'000'000, .values = 4'000'000, .depth = 64});
    if (!parsed.problem.empty()) {
      fail_input({.thing = path(name), .wrong = parsed.problem});
    }
    return std::move(parsed.value);
  }

  static std::optional<bool> flag(const Json& object, const char* name) {
    const auto at = object.find(name);
    return at != object.end() && at->is_boolean() ? std::optional(at->get<bool>()) : std::nullopt;
  }

  /// A text, or an object with its settings.
  FolderToken token(const Json& value, const std::string& where) const {
    FolderToken out{.content = {}, .from = where};
    if (value.is_string()) {
      out.content = value.get<std::string>();
      return out;
    }
    if (!value.is_object() || !value.contains("content") || !value["content"].is_string()) {
      wrong(where, "a token: a text, or an object with content", value);
    }
    out.content = value["content"].get<std::string>();
    out.special = flag(value, "special").value_or(false);
    out.normalized = flag(value, "normalized").value_or(!out.special);
    out.single_word = flag(value, "single_word").value_or(false);
    out.strip_left = flag(value, "lstrip").value_or(false);
    out.strip_right = flag(value, "rstrip").value_or(false);
    return out;
  }

  /// bos_token and its like. Those of a later file replace the ones before, null included.
  void read_roles(const Json& object, const char* name) {
    for (const char* const role : roles) {
      const auto at = object.find(role);
      if (at == object.end()) {
        continue;
      }
      out_.roles.erase(role);
      if (at->is_null() || *at == "") {
        continue;
      }
      FolderToken one = token(*at, fmt::format("{}: {}", path(name), role));
      one.role = one.special = true;
      out_.roles.emplace(role, std::move(one));
    }
  }

  /// Lists of further special tokens, and objects with names for them.
  void read_named(const Json& object, const char* name) {
    for (const char* const key : {"additional_special_tokens", "extra_special_tokens"}) {
      const auto at = object.find(key);
      if (at == object.end() || at->is_null()) {
        continue;
      }
      const std::string where = fmt::format("{}: {}", path(name), key);
      if (!at->is_array() && !at->is_object()) {
        wrong(where, "tokens", *at);
      }
      for (const Json& one : *at) {
        named_.push_back(token(one, where));
        named_.back().special = true;
      }
    }
  }

  /// Tokens by their ids, whose order decides and nothing else.
  void read_decoder(const Json& tokens) {
    const std::string where = path(config_file) + ": added_tokens_decoder";
    if (!tokens.is_object()) {
      wrong(where, "an object of ids and their tokens", tokens);
    }
    for (const auto& [text, one] : tokens.items()) {
      FolderToken read = token(one, where);
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), read.id);
      if (error != std::errc() || end != text.data() + text.size() || read.id < 0 ||
          read.id >= most_ids) {
        wrong(where, "ids of tokens", text);
      }
      read.whole = true;
      out_.tokens.push_back(std::move(read));
    }
  }

  void read_added(const Json& ids) {
    for (const auto& [content, id] : ids.items()) {
      FolderToken one{.content = content, .from = path(added_file), .special = is_named(content)};
      if (!id.is_number_integer() || id < 0 || id >= most_ids) {
        wrong(fmt::format("{}: '{}'", one.from, shown(content)), "a token's id", id);
      }
      one.id = id.get<std::int64_t>();
      one.normalized = !one.special;
      out_.tokens.push_back(std::move(one));
    }
  }

  bool is_named(const std::string& content) const {
    return std::ranges::find(named_, content, &FolderToken::content) != named_.end() ||
           std::ranges::any_of(out_.roles,
                               [&](const auto& role) { return role.second.content == content; });
  }

  fs::path folder_;
  FolderDefaults out_;
  std::vector<FolderToken> named_;
};

}  // namespace

FolderDefaults folder_defaults(const std::string& folder) { return Reader(folder).read(); }

}  // namespace tessera::tokenize
