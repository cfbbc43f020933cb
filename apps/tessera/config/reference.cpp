module;
#include <fmt/format.h>

#include <string>
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

}  // namespace

std::string config_reference() {
  runs::RunSpec defaults;
  defaults.parallel.emplace_back();
  std::string text;
  const auto row = [&](const runs::Key& key) {
    const runs::Slot slot = key.slot(defaults, 0);
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
      std::vector<runs::Key> keys;
      try {
        keys = runs::config_keys(family);
      } catch (const Error&) {
        continue;  // its file is refused; `tessera plugin list` says why
      }
      heading(fmt::format("[model] with family = \"{}\"", family));
      defaults.model.sizes.clear();
      for (const runs::Key& key : keys) {
        if (key.of_family) {
          row(key);
        }
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
      heading(key.in_list() ? "[[parallel]]" : fmt::format("[{}]", section));
    }
    row(key);
  }
  return text;
}

}  // namespace tessera::app
