module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.options;

import tessera.base;

namespace tessera {

using nlohmann::json;

void read_option(PluginOptions& options, const OptionKey& key, bool& value) {
  value = options.flag(key.name, value);
}

void read_option(PluginOptions& options, const OptionKey& key, int& value) {
  const std::int64_t read = options.integer(key.name, value, key.range);
  if (!std::in_range<int>(read)) {
    options.refuse(fmt::format("option '{}' is too large (got {})", key.name, read));
  }
  value = static_cast<int>(read);
}

void read_option(PluginOptions& options, const OptionKey& key, std::int64_t& value) {
  value = options.integer(key.name, value, key.range);
}

void read_option(PluginOptions& options, const OptionKey& key, double& value) {
  value = options.number(key.name, value, key.range);
}

void read_option(PluginOptions& options, const OptionKey& key, std::string& value) {
  value = options.text(key.name, value);
}

void read_option(PluginOptions& options, const OptionKey& key, std::vector<std::string>& value) {
  value = options.texts(key.name, value);
}

void read_option(PluginOptions& options, const OptionKey& key, const WordField& value) {
  value.set(options.choice(key.name, value.word(), value.words()));
}

std::string option_json(bool value) { return value ? "true" : "false"; }
std::string option_json(int value) { return fmt::format("{}", value); }
std::string option_json(std::int64_t value) { return fmt::format("{}", value); }
std::string option_json(double value) { return json_text(json(value)); }
std::string option_json(const std::string& value) { return json_text(json(value)); }
std::string option_json(const std::vector<std::string>& value) { return json_text(json(value)); }

std::string checked_word(const OptionKey& key, const WordField& value) {
  const std::string word = value.word();
  if (std::ranges::find(value.words(), word) == value.words().end()) {
    fail_input({.thing = fmt::format("option '{}'", key.name),
                .wrong = "its value is none of those that it may have",
                .expected = expected_words(value.words())});
  }
  return word;
}

void OptionsText::add(const std::string& name, const std::string& json) {
  if (!json.empty()) {
    add(option_json(name) + ": " + json);
  }
}

std::string OptionsText::object() const { return "{" + text_ + "}"; }
std::string OptionsText::list() const { return "[" + text_ + "]"; }

void OptionsText::add(const std::string& json) { text_ += (text_.empty() ? "" : ", ") + json; }

}  // namespace tessera
