module;
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <variant>
module tessera.app.config;

import tessera.base;
import tessera.models;
import tessera.app.base;
import :values;

// Descriptions of the keys' table for people: names of types, ranges, and the lists of
// docs/config.md.
namespace tessera::app {
namespace {

struct TypeName {
  std::string operator()(const bool*) const { return "boolean"; }
  std::string operator()(const std::int64_t*) const { return "integer"; }
  std::string operator()(const double*) const { return "number"; }
  std::string operator()(const std::string*) const { return "text"; }
  std::string operator()(const std::vector<std::string>*) const { return "list of texts"; }
  std::string operator()(const Names*) const { return "text or list of texts"; }
  std::string operator()(const std::vector<std::int64_t>*) const { return "list of integers"; }
  std::string operator()(const std::vector<double>*) const { return "list of numbers"; }
  std::string operator()(const JsonText*) const { return "table"; }
  std::string operator()(const JsonList*) const { return "list of tables"; }
};

std::string number(double value) {
  return std::abs(value) < 1e15 && value == std::floor(value)
             ? fmt::format("{}", static_cast<std::int64_t>(value))
             : fmt::format("{}", value);
}

std::string allowed(const Key& key, const Slot& slot) {
  std::string text = type_name(slot);
  if (!key.choices.empty()) {
    text.clear();
    for (const std::string& choice : key.choices) {
      text += fmt::format("{}`\"{}\"`", text.empty() ? "" : ", ", choice);
    }
    return key.is_path ? text + " or a path" : text;
  }
  if (key.is_path) {
    text = std::holds_alternative<std::string*>(slot) ? "path" : "list of paths";
  }
  const std::string range = describe(key.range);
  return range.empty() ? text : text + ", " + range;
}

}  // namespace

std::string type_name(const Slot& slot) { return std::visit(TypeName{}, slot); }

std::string describe(const Range& range) {
  const bool low = std::isfinite(range.low);
  const bool high = std::isfinite(range.high) && range.high < 1e15;
  const std::string above =
      fmt::format("{} {}", range.low_open ? "more than" : "at least", number(range.low));
  const std::string below =
      fmt::format("{} {}", range.high_open ? "less than" : "at most", number(range.high));
  if (low && high) {
    return above + " and " + below;
  }
  return low ? above : high ? below : "";
}

std::vector<std::string> config_sections() {
  std::vector<std::string> names;
  for (const Key& key : config_keys()) {
    if (names.empty() || names.back() != key.section()) {
      names.push_back(key.section());
    }
  }
  return names;
}

std::string config_reference() {
  Config defaults;
  defaults.parallel.emplace_back();
  std::string text;
  const auto row = [&](const Key& key) {
    const Slot slot = key.slot(defaults, 0);
    const std::string given =
        key.required ? "must be given" : fmt::format("default `{}`", slot_text(slot));
    text +=
        wrap_text(fmt::format("`{}` ({}; {}): {}", key.path, allowed(key, slot), given, key.doc),
                  "- ", "  ") +
        "\n";
  };
  const auto heading = [&](const std::string& title) {
    text += fmt::format("{}## {}\n\n", text.empty() ? "" : "\n", title);
  };
  const auto families = [&] {
    for (const std::string& family : models::model_families()) {
      std::vector<Key> keys;
      try {
        keys = config_keys(family);
      } catch (const Error&) {
        continue;  // its file is refused; `tessera plugin list` says why
      }
      heading(fmt::format("[model] with family = \"{}\"", family));
      defaults.model.sizes.clear();
      for (const Key& key : keys) {
        if (key.of_family) {
          row(key);
        }
      }
    }
  };
  std::string section;
  for (const Key& key : config_keys()) {
    if (key.of_family) {
      continue;
    }
    if (key.section() != section) {
      if (section == "model") {
        families();
      }
      section = key.section();
      heading(key.in_list() ? "[[parallel]]" : fmt::format("[{}]", section));
    }
    row(key);
  }
  return text;
}

}  // namespace tessera::app
