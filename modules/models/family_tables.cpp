module;
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <ranges>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>
module tessera.models;

import tessera.base;
import tessera.nn;
import :decoder_values;
import :decoder_family;
import :family_tables;

namespace tessera::models {
namespace {

constexpr std::size_t largest_file = 1'000'000;

const char* type_text(const ModelValue& value) {
  constexpr const char* texts[] = {"true or false", "an integer",         "a number",
                                   "a text",        "a list of integers", "a list of numbers"};
  return texts[value.index()];
}

template <class Number>
std::optional<ModelValue> list_of(const toml::node& node);

/// The node as a value of the type that `to` has.
std::optional<ModelValue> value_of(const toml::node& node, const ModelValue& like) {
  if (std::holds_alternative<bool>(like)) {
    const auto value = node.value_exact<bool>();
    return value ? std::optional<ModelValue>(*value) : std::nullopt;
  }
  if (std::holds_alternative<std::int64_t>(like)) {
    const auto value = node.value_exact<std::int64_t>();
    return value ? std::optional<ModelValue>(*value) : std::nullopt;
  }
  if (std::holds_alternative<double>(like)) {
    const auto value = node.value<double>();
    return value && std::isfinite(*value) && !node.is_boolean() ? std::optional<ModelValue>(*value)
                                                                : std::nullopt;
  }
  if (std::holds_alternative<std::string>(like)) {
    const auto value = node.value_exact<std::string>();
    return value ? std::optional<ModelValue>(*value) : std::nullopt;
  }
  return std::holds_alternative<std::vector<double>>(like) ? list_of<double>(node)
                                                           : list_of<std::int64_t>(node);
}

template <class Number>
std::optional<ModelValue> list_of(const toml::node& node) {
  std::vector<Number> list;
  const toml::array* const array = node.as_array();
  if (array == nullptr || array->size() > longest_list) {
    return std::nullopt;
  }
  for (const toml::node& one : *array) {
    const std::optional<ModelValue> value = value_of(one, ModelValue(Number{}));
    if (!value) {
      return std::nullopt;
    }
    list.push_back(std::get<Number>(*value));
  }
  return list;
}

}  // namespace

ModelValue empty_value(const DecoderMember& member) {
  return std::visit(
      []<class Field>(DecoderField<Field>) -> ModelValue {
        if constexpr (std::is_enum_v<Field>) {
          return std::string();
        } else {
          return Field{};
        }
      },
      member);
}

std::string json_of(const toml::node& node) {
  std::ostringstream text;
  text << toml::json_formatter(node);
  return text.str();
}

std::string flag_of(const toml::node& node) {
  std::string json = json_of(node);
  return json == R"("null")" ? "null" : json;
}

FamilyTables::FamilyTables(const std::string& file, std::string_view text) : file_(file) {
  if (text.size() > largest_file) {
    fail_input({.thing = file,
                .wrong = "it is too large for a family file",
                .expected = fmt::format("at most {} bytes", largest_file),
                .got = fmt::format("{}", text.size())});
  }
  try {
    root_ = toml::parse(text, file);
  } catch (const toml::parse_error& error) {
    fail_input({.thing = fmt::format("{}:{}", file, error.source().begin.line),
                .wrong = std::string(error.description())});
  }
}

void FamilyTables::problem(const toml::node& node, const std::string& text) {
  problems_.push_back(fmt::format("{}:{}: {}", file_, node.source().begin.line, text));
}

void FamilyTables::throw_if_any() const {
  if (problems_.size() == 1) {
    fail_input(problems_[0]);
  }
  if (!problems_.empty()) {
    std::string text = fmt::format("{}: {} problems", file_, problems_.size());
    constexpr std::size_t shown_problems = 30;
    for (const std::string& one : problems_ | std::views::take(shown_problems)) {
      text += "\n  " + one;
    }
    const std::size_t more = problems_.size() - std::min(shown_problems, problems_.size());
    fail_input(text + (more == 0 ? "" : fmt::format("\n  and {} more", more)));
  }
}

void FamilyTables::check_names(const toml::table& table, const std::string& where,
                               const std::vector<std::string>& known) {
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    if (std::ranges::find(known, name) == known.end()) {
      problem(node, fmt::format("{}{}: unknown key{} (there are {})", where, shown(name),
                                did_you_mean(name, known), join_words(known)));
    }
  }
}

std::optional<ModelValue> FamilyTables::read_value(const toml::node& node, const std::string& name,
                                                   const ModelValue& like) {
  std::optional<ModelValue> value = value_of(node, like);
  if (!value) {
    problem(node, fmt::format("{}: expected {}", name, type_text(like)));
  }
  return value;
}

std::optional<ModelValue> FamilyTables::taken(const toml::table& table, const std::string& key,
                                              const std::string& where, const ModelValue& like) {
  const toml::node* const node = table.get(key);
  return node == nullptr ? std::nullopt : read_value(*node, where + key, like);
}

void FamilyTables::set(const toml::table& table, const std::string& key, const std::string& where,
                       std::vector<std::string>& to) {
  const toml::node* const node = table.get(key);
  if (node == nullptr) {
    return;
  }
  const toml::array* const list = node->as_array();
  std::vector<std::string> texts;
  for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
    if (const auto text = list->get(i)->value_exact<std::string>()) {
      texts.push_back(*text);
    }
  }
  if (list == nullptr || texts.size() != list->size() || texts.size() > longest_list) {
    problem(*node,
            fmt::format("{}{}: expected a list of at most {} texts", where, key, longest_list));
    return;
  }
  to.insert(to.end(), texts.begin(), texts.end());
}

void FamilyTables::set(const toml::table& table, const std::string& key, const std::string& where,
                       FieldPlace to) {
  std::visit([&](auto* place) { set(table, key, where, *place); }, to);
}

void FamilyTables::required(const toml::table& table, const std::string& key, std::string& to) {
  if (!table.contains(key)) {
    problem(key + " is missing");
  }
  set(table, key, "", to);
}

const toml::table* FamilyTables::section(const std::string& name) {
  const toml::node* const node = root_.get(name);
  if (node != nullptr && !node->is_table()) {
    problem(*node, fmt::format("{}: expected a table", name));
  }
  return node == nullptr ? nullptr : node->as_table();
}

const toml::table* FamilyTables::part(const toml::table& table, const std::string& name,
                                      const std::string& where) {
  const toml::node* const node = table.get(name);
  if (node != nullptr && !node->is_table()) {
    problem(*node, fmt::format("{}{}: expected a table", where, name));
  }
  return node == nullptr ? nullptr : node->as_table();
}

void FamilyTables::each(const std::string& name,
                        const std::function<void(const toml::table&)>& read) {
  each(root_, name, "", read);
}
void FamilyTables::each(const toml::table& table, const std::string& name, const std::string& where,
                        const std::function<void(const toml::table&)>& read) {
  const toml::node* const node = table.get(name);
  if (node == nullptr) {
    return;
  }
  const toml::array* const list = node->as_array();
  const bool fits = list != nullptr && list->size() <= longest_list &&
                    std::ranges::all_of(*list, [](const auto& one) { return one.is_table(); });
  if (!fits) {
    problem(*node, fmt::format("{0}{1}: expected at most {2} tables, [[{0}{1}]]", where, name,
                               longest_list));
    return;
  }
  for (const toml::node& one : *list) {
    read(*one.as_table());
  }
}

void FamilyTables::read_texts(const toml::table& table, const std::string& name,
                              const std::vector<std::string>& known,
                              std::map<std::string, std::string>& to) {
  if (!known.empty()) {
    check_names(table, name + ".", known);
  }
  for (const auto& [key, node] : table) {
    if (const auto text = read_value(node, fmt::format("{}.{}", name, key.str()), std::string())) {
      to[std::string(key.str())] = std::get<std::string>(*text);
    }
  }
}
void FamilyTables::read_texts(const std::string& name, const std::vector<std::string>& known,
                              std::map<std::string, std::string>& to) {
  if (const toml::table* const table = section(name)) {
    read_texts(*table, name, known, to);
  }
}

const NamedDecoderMember* FamilyTables::member(const toml::node& node, const std::string& name) {
  const std::span<const NamedDecoderMember> all = decoder_members();
  const auto found = std::ranges::find(all, name, &NamedDecoderMember::name);
  if (found != all.end()) {
    return &*found;
  }
  std::vector<std::string> known;
  for (const NamedDecoderMember& one : all) {
    known.push_back(one.name);
  }
  problem(node, fmt::format("there is no property '{}' of decoders{}; docs/family-files.md lists "
                            "them",
                            shown(name), did_you_mean(name, known)));
  return nullptr;
}

bool FamilyTables::is_word(const toml::node& node, const std::string& name,
                           const DecoderMember& member, const ModelValue& value) {
  const std::vector<std::string> words = words_of(member);
  const auto* const word = std::get_if<std::string>(&value);
  if (word == nullptr || words.empty() || std::ranges::find(words, *word) != words.end()) {
    return true;
  }
  problem(node, fmt::format("{}: there is no '{}'{} (there are {})", name, shown(*word),
                            did_you_mean(*word, words), join_words(words)));
  return false;
}

void FamilyTables::read_members(const toml::table& table, const std::string& where,
                                std::vector<std::pair<DecoderMember, ModelValue>>& to) {
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    const NamedDecoderMember* const found = member(node, name);
    if (found == nullptr) {
      continue;
    }
    const auto value = read_value(node, where + name, empty_value(found->member));
    if (value && is_word(node, where + name, found->member, *value)) {
      to.emplace_back(found->member, *value);
    }
  }
}

}  // namespace tessera::models
