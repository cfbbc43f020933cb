module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <type_traits>
#include <variant>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.stores;
import tessera.options;

namespace tessera::runs {
namespace {

template <class T>
bool read_as(const nlohmann::ordered_json& json, T& into) {
  if constexpr (std::is_same_v<T, bool>) {
    into = json.is_boolean() && json.get<bool>();
    return json.is_boolean();
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    into = json.is_number_integer() ? json.get<std::int64_t>() : 0;
    return json.is_number_integer();
  } else if constexpr (std::is_same_v<T, double>) {
    into = json.is_number() ? json.get<double>() : 0;
    return json.is_number();
  } else if constexpr (std::is_same_v<T, std::string>) {
    into = json.is_string() ? json.get<std::string>() : "";
    return json.is_string();
  } else {
    into.clear();
    return json.is_array() && std::ranges::all_of(json, [&](const nlohmann::ordered_json& one) {
             typename T::value_type value{};
             const bool fits = read_as(one, value);
             into.push_back(value);
             return fits;
           });
  }
}

/// Reads a value into a key's field. False: it does not fit.
bool read_slot(const nlohmann::ordered_json& json, const Slot& slot) {
  return std::visit(
      [&]<class T>(const T& field) {
        if constexpr (std::is_same_v<T, WordField>) {
          return json.is_string() && field.set(json.get<std::string>());
        } else if constexpr (std::is_same_v<T, JsonText*> || std::is_same_v<T, JsonList*>) {
          field->text = json_text(json);
          return std::is_same_v<T, JsonText*> ? json.is_object() : json.is_array();
        } else if constexpr (std::is_same_v<T, Names*>) {
          std::string one;
          if (read_as(json, one)) {
            field->all = {one};
            return true;
          }
          return read_as(json, field->all);
        } else {
          return read_as(json, *field);
        }
      },
      slot);
}

}  // namespace

RunSpec spec_of_json(const std::string& text, const std::string& where,
                     const std::filesystem::path& folder) {
  const ParsedJson parsed = parse_json_object(text);
  if (!parsed.problem.empty()) {
    fail_input({.thing = where, .wrong = "it has no config of a run", .got = parsed.problem});
  }
  const nlohmann::ordered_json json = parse_ordered_json(text);
  const auto refuse = [&](const std::string& name, const std::string& wrong,
                          const std::string& expected = {}) {
    fail_input({.thing = where,
                .wrong = fmt::format("its config has '{}', {}", shown(name), wrong),
                .expected = expected,
                .advice = "use the version of tessera that wrote it (tessera checkpoint info)"});
  };
  RunSpec spec;
  if (json.contains("model") && json["model"].is_object() && json["model"].contains("family") &&
      json["model"]["family"].is_string()) {
    spec.model.family = json["model"]["family"].get<std::string>();
  }
  const std::vector<Key> keys = config_keys(spec.model.family);
  const auto read = [&](const nlohmann::ordered_json& table, const std::string& section,
                        const std::string& name, std::size_t entry) {
    if (!table.is_object()) {
      refuse(name, "which is not a table");
    }
    for (const auto& [leaf, value] : table.items()) {
      const auto key = std::ranges::find(keys, section + "." + leaf, &Key::path);
      if (key == keys.end()) {
        refuse(name + "." + leaf, "which this version does not know");
      }
      const Slot slot = key->slot(spec, entry);
      if (!read_slot(value, slot)) {
        refuse(name + "." + leaf, "a value that does not fit", type_name(slot));
      }
      if (key->is_path) {
        place_paths(*key, slot, folder);
      }
    }
  };
  for (const auto& [section, table] : json.items()) {
    const ListSection* const list = list_section(section);
    if (list == nullptr) {
      read(table, section, section, 0);
      continue;
    }
    constexpr std::size_t most = 10'000;
    if (!table.is_null() && (!table.is_array() || table.size() > most)) {
      refuse(section, "which is not a list of tables");
    }
    list->resize(spec, table.size());
    for (std::size_t i = 0; i < table.size(); ++i) {
      read(table[i], section, fmt::format("{}[{}]", section, i), i);
      list->where(spec, i) = fmt::format("{}[{}]", section, i);
    }
  }
  return spec;
}

}  // namespace tessera::runs
