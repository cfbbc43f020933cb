module;
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.app.config;

import :overrides;

namespace tessera::app {
namespace {

/// A part of a key: a name, or an entry of a list.
struct Step {
  std::string name;
  std::optional<std::size_t> index;
};

/// "parallel[0].options.output" -> parallel, [0], options, output; nothing if it is not a key.
std::optional<std::vector<Step>> split_key(std::string_view key) {
  std::vector<Step> steps;
  bool name_next = true;
  while (!key.empty()) {
    if (key.front() == '[' && !name_next) {
      const std::size_t close = key.find(']');
      std::size_t index = 0;
      const char* end = key.data() + (close == std::string_view::npos ? 0 : close);
      const auto [rest, error] = std::from_chars(key.data() + 1, end, index);
      if (close == std::string_view::npos || error != std::errc{} || rest != end) {
        return std::nullopt;
      }
      steps.push_back({{}, index});
      key.remove_prefix(close + 1);
      continue;
    }
    if (key.front() == '.' && !name_next) {
      name_next = true;
      key.remove_prefix(1);
      continue;
    }
    std::size_t length = 0;
    while (length < key.size() && (std::isalnum(static_cast<unsigned char>(key[length])) != 0 ||
                                   key[length] == '_' || key[length] == '-')) {
      ++length;
    }
    if (length == 0 || !name_next) {
      return std::nullopt;
    }
    steps.push_back({std::string(key.substr(0, length)), std::nullopt});
    key.remove_prefix(length);
    name_next = false;
  }
  return name_next ? std::nullopt : std::optional(steps);
}

bool is_toml(const std::string& value) {
  try {
    return toml::parse("v = " + value).size() == 1;
  } catch (const toml::parse_error&) {
    return false;
  }
}

/// The text in single quotes of TOML, or in double quotes with escapes when it holds one.
std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
    }
    out += c;
  }
  return out + "\"";
}

/// Quotes the words inside lists and inline tables that are not TOML values: [shard, tensor].
std::string quote_words(std::string_view value) {
  std::string out;
  while (!value.empty()) {
    const char c = value.front();
    if (c == '"' || c == '\'') {
      const std::size_t close = value.find(c, 1);
      const std::size_t length = close == std::string_view::npos ? value.size() : close + 1;
      out += value.substr(0, length);
      value.remove_prefix(length);
      continue;
    }
    if (std::string_view("[]{},= \t").find(c) != std::string_view::npos) {
      out += c;
      value.remove_prefix(1);
      continue;
    }
    const std::size_t length = std::min(value.find_first_of("[]{},=\"'"), value.size());
    std::string_view word = value.substr(0, length);
    while (word.back() == ' ') {
      word.remove_suffix(1);
    }
    const bool is_name = length < value.size() && value[length] == '=';
    out += is_name || is_toml(std::string(word)) ? std::string(word) : toml_string(word);
    value.remove_prefix(word.size());
  }
  return out;
}

toml::table parse_value(const std::string& value, const std::string& place) {
  std::string text = value;
  if (!is_toml(text)) {
    const bool structured = value.starts_with('[') || value.starts_with('{');
    text = structured ? quote_words(value) : toml_string(value);
    if (!is_toml(text)) {
      text = toml_string(value);
    }
  }
  return toml::parse("v = " + text, place);
}

std::string in_words(const std::vector<Step>& steps, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    text += steps[i].index ? fmt::format("[{}]", *steps[i].index)
                           : (text.empty() ? "" : ".") + steps[i].name;
  }
  return shown(text);
}

bool is_number(std::string_view name) {
  return !name.empty() && name.size() < 10 &&
         name.find_first_not_of("0123456789") == std::string_view::npos;
}

/// Why `parent`, named by the first `count` steps, does not have the next step.
std::string why_not(const toml::node& parent, const std::vector<Step>& steps, std::size_t count) {
  const std::string name = in_words(steps, count);
  const Step& step = steps[count];
  if (const toml::array* list = parent.as_array()) {
    if (step.index && list->empty()) {
      return fmt::format("{0} has no entries yet: {0}[0] adds one", name);
    }
    return step.index ? fmt::format(
                            "{0} has {1} entries: {0}[0] to {0}[{1}] can be set, the last of "
                            "which adds one",
                            name, list->size())
           : is_number(step.name) ? fmt::format("{0} is a list: write {0}[{1}]", name, step.name)
                                  : fmt::format("{0} is a list: write {0}[0].{1}, or {0}[1].{1}...",
                                                name, shown(step.name));
  }
  if (parent.is_table()) {
    return fmt::format("{0} is not a list: write {0}.KEY", name);
  }
  return fmt::format("{} is a single value and has no parts: write {}=VALUE", name, name);
}

/// The node that `step` names in `parent`, created as `fresh` where it is absent; nullptr if
/// `parent` cannot hold it.
toml::node* descend(toml::node& parent, const Step& step, toml::node&& fresh) {
  if (step.index) {
    toml::array* list = parent.as_array();
    if (list == nullptr || *step.index > list->size()) {
      return nullptr;
    }
    if (*step.index == list->size()) {
      if (fresh.is_table()) {
        list->push_back(std::move(*fresh.as_table()));
      } else {
        list->push_back(std::move(*fresh.as_array()));
      }
    }
    return list->get(*step.index);
  }
  toml::table* table = parent.as_table();
  if (table == nullptr) {
    return nullptr;
  }
  if (!table->contains(step.name)) {
    table->insert(step.name, std::move(fresh));
  }
  return table->get(step.name);
}

/// The text without users, passwords and queries of URLs, which may be secrets.
std::string without_secrets(std::string text) {
  for (std::size_t at = 0; (at = text.find("://", at)) != std::string::npos;) {
    at += 3;
    const std::size_t end = std::min(text.find_first_of(" \t\n\"',]}", at), text.size());
    const std::size_t path = std::min(text.find_first_of("/?#", at), end);
    const std::size_t query = text.find_first_of("?#", at);
    if (query < end) {
      text.replace(query + 1, end - query - 1, "***");
    }
    if (const std::size_t host = text.rfind('@', path); host != std::string::npos && host >= at) {
      text.replace(at, host - at, "***");
    }
  }
  return text;
}

}  // namespace

void apply_override(toml::table& root, const std::string& argument, runs::Problems& problems) {
  const runs::SourceLine place{"command line, " + shown(without_secrets(argument)), 0};
  const std::size_t equals = argument.find('=');
  const auto steps =
      equals == std::string::npos ? std::nullopt : split_key(argument.substr(0, equals));
  if (!steps || steps->front().index) {
    problems.add(place, "expected key=value, for instance train.steps=50 or mesh.shape=[2,2]");
    return;
  }
  toml::table holder;
  try {
    holder = parse_value(argument.substr(equals + 1), place.source);
  } catch (const toml::parse_error& error) {
    problems.add(place, fmt::format("the value is not TOML: {}", shown(error.description(), 300)));
    return;
  }
  toml::node* parent = &root;
  std::function<void()> undo;  // what cannot be set leaves nothing behind
  const auto refuse = [&](std::size_t count) {
    problems.add(place, why_not(*parent, *steps, count));
    if (undo) {
      undo();
    }
  };
  const std::size_t last_step = steps->size() - 1;
  for (std::size_t i = 0; i < last_step; ++i) {
    const Step& step = (*steps)[i];
    if (!undo) {
      if (toml::table* table = parent->as_table();
          table != nullptr && !table->contains(step.name)) {
        undo = [table, &step] { table->erase(step.name); };
      } else if (toml::array* list = parent->as_array();
                 list != nullptr && step.index == list->size()) {
        undo = [list] { list->pop_back(); };
      }
    }
    toml::node* const next = (*steps)[i + 1].index ? descend(*parent, step, toml::array{})
                                                   : descend(*parent, step, toml::table{});
    if (next == nullptr) {
      refuse(i);
      return;
    }
    parent = next;
  }
  const Step& last = steps->back();
  toml::table* table = parent->as_table();
  toml::array* list = parent->as_array();
  if (table != nullptr && !last.index) {
    table->insert_or_assign(last.name, std::move(*holder.get("v")));
  } else if (list != nullptr && last.index && *last.index <= list->size()) {
    if (*last.index < list->size()) {
      list->replace(list->begin() + static_cast<std::ptrdiff_t>(*last.index),
                    std::move(*holder.get("v")));
    } else {
      list->push_back(std::move(*holder.get("v")));
    }
  } else {
    refuse(last_step);
  }
}

}  // namespace tessera::app
