module;
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>
module tessera.app.config;

import tessera.base;
import tessera.options;
import tessera.models;
import tessera.runs;
import tessera.app.base;
import :toml_values;

// The lists of docs/config.md.
namespace tessera::app {
namespace {

std::string allowed(const runs::Key& key, const runs::Slot& slot) {
  std::string text = runs::type_name(slot);
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

/// A line of the lists.
std::string row_of(const runs::Key& key, runs::RunSpec& defaults) {
  const runs::Slot slot = key.slot(defaults, 0);
  const std::string given =
      key.required ? "must be given" : fmt::format("default `{}`", slot_text(slot));
  return wrap_text(fmt::format("`{}` ({}; {}): {}", key.path, allowed(key, slot), given, key.doc),
                   "- ", "  ") +
         "\n";
}

/// The lines of a family's keys, in their order.
using FamilyRows = std::vector<std::pair<std::string, std::string>>;  // path, line
FamilyRows rows_of(const std::string& family, runs::RunSpec& defaults) {
  FamilyRows rows;
  defaults.model.sizes.clear();
  for (const runs::Key& key : runs::config_keys(family)) {
    if (key.of_family) {
      rows.emplace_back(key.path, row_of(key, defaults));
    }
  }
  return rows;
}

/// What a family has otherwise than a Llama: its own lines, and the keys that it has not.
std::string differences(const FamilyRows& rows, const FamilyRows& llama) {
  std::string own;
  for (const auto& one : rows) {
    own += std::ranges::find(llama, one) == llama.end() ? one.second : "";
  }
  std::string without;
  for (const auto& one : llama) {
    const bool has =
        std::ranges::find(rows, one.first, &FamilyRows::value_type::first) != rows.end();
    without += has ? "" : fmt::format("{}`{}`", without.empty() ? "" : ", ", one.first);
  }
  return "The keys of `llama`" +
         std::string(own.empty() ? "" : ", with these in their place or besides") + ".\n" +
         (own.empty() ? "" : "\n" + own) +
         (without.empty() ? "" : "\n" + wrap_text("Not: " + without + ".", "", "") + "\n");
}

}  // namespace

std::string config_reference() {
  runs::RunSpec defaults = runs::with_entries();
  std::string text;
  const auto heading = [&](const std::string& title) {
    text += fmt::format("{}## {}\n\n", text.empty() ? "" : "\n", title);
  };
  const auto families = [&] {
    const FamilyRows llama = rows_of("llama", defaults);
    heading("[model] with family = \"llama\"");
    for (const auto& [path, row] : llama) {
      text += row;
    }
    for (const std::string& family : models::model_families()) {
      FamilyRows rows;
      try {
        rows = rows_of(family, defaults);
      } catch (const Error&) {
        continue;  // its file is refused; `tessera plugin list` says why
      }
      if (family != "llama") {
        heading(fmt::format("[model] with family = \"{}\"", family));
        text += differences(rows, llama);
      }
    }
  };
  std::string section;
  for (const runs::Key& key : runs::config_keys()) {
    if (key.of_family) {
      continue;
    }
    if (key.section() != section) {
      if (section == "model") {
        families();
      }
      section = key.section();
      heading(key.in_list() ? fmt::format("[[{}]]", section) : fmt::format("[{}]", section));
    }
    text += row_of(key, defaults);
  }
  return text;
}

}  // namespace tessera::app
