module;
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/printable.hpp>
#include <tessera/shown.hpp>
#include <type_traits>
#include <utility>
#include <variant>
module tessera.app.config;

import tessera.base;
import tessera.options;
import tessera.runs;
import :toml_values;

namespace tessera::app {
namespace {

std::string describe_node(const toml::node& node) {
  if (const auto* text = node.as_string()) {
    return fmt::format("the text \"{}\"", shown(text->get()));
  }
  if (const auto* number = node.as_integer()) {
    return fmt::format("the integer {}", number->get());
  }
  if (const auto* number = node.as_floating_point()) {
    return fmt::format("the number {}", printable(number->get()));
  }
  if (const auto* flag = node.as_boolean()) {
    return flag->get() ? "true" : "false";
  }
  return node.is_array() ? "a list" : node.is_table() ? "a table" : "a date or time";
}

std::optional<nlohmann::ordered_json> json_of(const toml::node& node) {
  if (const auto* text = node.as_string()) {
    return text->get();
  }
  if (const auto* number = node.as_integer()) {
    return number->get();
  }
  if (const auto* number = node.as_floating_point()) {
    return std::isfinite(number->get()) ? std::optional<nlohmann::ordered_json>(number->get())
                                        : std::nullopt;
  }
  if (const auto* flag = node.as_boolean()) {
    return flag->get();
  }
  if (const toml::array* list = node.as_array()) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const toml::node& entry : *list) {
      auto value = json_of(entry);
      if (!value) {
        return std::nullopt;
      }
      all.push_back(std::move(*value));
    }
    return all;
  }
  if (const toml::table* table = node.as_table()) {
    nlohmann::ordered_json all = nlohmann::ordered_json::object();
    for (const auto& [key, entry] : *table) {
      auto value = json_of(entry);
      if (!value) {
        return std::nullopt;
      }
      all[std::string(key.str())] = std::move(*value);
    }
    return all;
  }
  return std::nullopt;
}

/// A key of a table; in quotes where it is not a word.
std::string toml_key(const std::string& key) {
  const bool word = !key.empty() && std::ranges::all_of(key, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
  return word ? key : json_text(nlohmann::ordered_json(key));
}

/// JSON as a value of TOML, whose numbers, texts and lists are the same.
std::string toml_text(const nlohmann::ordered_json& value) {
  if (!value.is_structured() || value.empty()) {
    return json_text(value);
  }
  std::vector<std::string> parts;
  for (const auto& [key, part] : value.items()) {
    parts.push_back(value.is_array() ? toml_text(part)
                                     : fmt::format("{} = {}", toml_key(key), toml_text(part)));
  }
  return value.is_array() ? fmt::format("[{}]", fmt::join(parts, ", "))
                          : fmt::format("{{ {} }}", fmt::join(parts, ", "));
}

/// One value of the wanted type, or what was expected instead.
struct Reader {
  const runs::Key& key;
  std::string expected = {};  // set when a read failed
  bool in_list = false;       // the value is an entry of a list

  bool read(const toml::node& node, bool& out) {
    const auto* flag = node.as_boolean();
    expected = "true or false";
    return flag != nullptr && (out = flag->get(), true);
  }
  bool read(const toml::node& node, std::int64_t& out) {
    const auto* number = node.as_integer();
    expected = expected_number("an integer", key.range);
    return number != nullptr && contains(key.range, static_cast<double>(number->get())) &&
           (out = number->get(), true);
  }
  bool read(const toml::node& node, double& out) {
    expected = expected_number("a finite number", key.range);
    if (!node.is_number()) {
      return false;
    }
    const double value = *node.value<double>();
    return contains(key.range, value) && (out = value, true);
  }
  bool read(const toml::node& node, std::string& out) {
    const auto* text = node.as_string();
    expected = expected_text(key);
    if (text == nullptr) {
      return false;
    }
    if (std::string problem = problem_of_text(key, text->get(), in_list); !problem.empty()) {
      expected = std::move(problem);
      return false;
    }
    out = text->get();
    return true;
  }
  bool read(const toml::node& node, runs::Names& out) {
    const toml::array* list = node.as_array();
    std::vector<std::string> names(list == nullptr ? 1 : list->size());
    bool good = !names.empty();
    for (std::size_t i = 0; good && i < names.size(); ++i) {
      good = read(list == nullptr ? node : *list->get(i), names[i]);
    }
    if (node.as_string() == nullptr) {
      expected = "a text or a list of texts, none of them empty";
    }
    return good && (out.all = std::move(names), true);
  }
  bool read(const toml::node& node, WordField& out) {
    std::string word;
    return read(node, word) && out.set(word);
  }
  bool read(const toml::node& node, runs::JsonText& out) {
    expected = "a table of texts, finite numbers, booleans, lists and tables";
    const auto value = node.is_table() ? json_of(node) : std::nullopt;
    return value && (out.text = value->dump(), true);
  }

  bool read(const toml::node& node, runs::JsonList& out) {
    expected = "a list of tables of texts, finite numbers, booleans, lists and tables";
    const toml::array* list = node.as_array();
    const bool tables = list != nullptr && std::ranges::all_of(*list, [](const toml::node& entry) {
                          return entry.is_table();
                        });
    const auto value = tables ? json_of(node) : std::nullopt;
    return value && (out.text = value->dump(), true);
  }
};

/// A value that is right and that this one may have been meant to be, as advice: 1e3 where a whole
/// number is wanted is 1000, "3" is 3, and 3 where a text is wanted is "3".
template <class T>
std::string meant(const toml::node& node, const runs::Key& key, bool in_list) {
  std::string text;
  if (const auto* given = node.as_string()) {
    text = given->get();
  } else if (const auto* number = node.as_floating_point();
             number != nullptr && std::abs(number->get()) <= 0x1p53) {
    text = fmt::format("{:.0f}", number->get());
    if (std::stod(text) != number->get()) {
      return "";
    }
  } else if (const auto* whole = node.as_integer()) {
    text = fmt::format("{}", whole->get());
  }
  constexpr std::size_t longest = 40;  // of a number or a name
  if (text.empty() || text.size() > longest) {
    return "";
  }
  if (std::is_same_v<T, std::string> || std::is_same_v<T, runs::Names>) {
    text = node.is_string() ? "" : fmt::format("\"{}\"", text);
  }
  try {
    const toml::table made = toml::parse("v = " + text);
    Reader reader{.key = key, .in_list = in_list};
    T value{};
    return made.size() == 1 && reader.read(*made.get("v"), value) ? "; write " + text : "";
  } catch (const toml::parse_error&) {
    return "";
  }
}

template <class T>
bool read_list(const toml::node& node, Reader& reader, const std::string& name, std::vector<T>& out,
               runs::Problems& problems) {
  const toml::array* list = node.as_array();
  if (list == nullptr) {
    T entry{};
    reader.in_list = true;
    const std::string hint = reader.read(node, entry) ? "; write [...] around it" : "";
    problems.add(place_of(node, {}),
                 fmt::format("{}: expected a list, got {}{}", name, describe_node(node), hint));
    return false;
  }
  reader.in_list = true;
  std::vector<T> values(list->size());
  bool good = true;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const toml::node& entry = *list->get(i);
    T value{};
    if (!reader.read(entry, value)) {
      problems.add(place_of(entry, {}),
                   fmt::format("{}[{}]: expected {}, got {}{}", name, i, reader.expected,
                               describe_node(entry), meant<T>(entry, reader.key, true)));
      good = false;
    }
    values[i] = std::move(value);
  }
  if (good) {
    out = std::move(values);
  }
  return good;
}

}  // namespace

runs::SourceLine place_of(const toml::source_region& source, const std::string& file) {
  // Overrides are parsed with their argument as the path: their line is not shown.
  const std::string path = source.path ? *source.path : file;
  return path.starts_with("command line")
             ? runs::SourceLine{path, 0}
             : runs::SourceLine{path, static_cast<int>(source.begin.line)};
}

runs::SourceLine place_of(const toml::node& node, const std::string& file) {
  const toml::node* at = &node;
  while (!at->source().begin) {
    const toml::table* table = at->as_table();
    const toml::array* list = at->as_array();
    if (table != nullptr && !table->empty()) {
      at = &table->begin()->second;
    } else if (list != nullptr && !list->empty()) {
      at = &list->front();
    } else {
      break;
    }
  }
  return place_of(at->source(), file);
}

bool read_value(const toml::node& node, const runs::Key& key, const std::string& name,
                const runs::Slot& slot, runs::Problems& problems) {
  Reader reader{.key = key};
  const auto read_one = [&](auto& out, const std::string& advice) {
    const bool good = reader.read(node, out);
    if (!good) {
      problems.add(place_of(node, {}), fmt::format("{}: expected {}, got {}{}", name,
                                                   reader.expected, describe_node(node), advice));
    }
    return good;
  };
  return std::visit(
      [&]<class T>(const T& field) {
        if constexpr (std::is_same_v<T, WordField>) {
          WordField words = field;
          return read_one(words, meant<std::string>(node, key, false));
        } else if constexpr (requires { field->push_back({}); } &&
                             !std::is_same_v<T, std::string*>) {
          return read_list(node, reader, name, *field, problems);
        } else {
          return read_one(*field, meant<std::remove_pointer_t<T>>(node, key, false));
        }
      },
      slot);
}

std::string slot_text(const runs::Slot& slot) {
  return toml_text(parse_ordered_json(runs::json_of(slot)));
}

}  // namespace tessera::app
