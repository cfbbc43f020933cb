module;
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/input_file.hpp>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
module tessera.app.config;

import tessera.base;
import tessera.models;
import tessera.runs;
import tessera.stores;
import :overrides;
import :toml_values;

// From TOML text to a runs::RunSpec: the file, then the overrides, then every key of the table.
namespace tessera::app {
namespace {

class Loader {
 public:
  Loader(toml::table& root, runs::RunSpec& config, runs::Problems& problems,
         const PluginSetup& plugins)
      : root_(root), config_(config), problems_(problems), plugins_(plugins) {}

  void load() {
    choose_family();
    report_unknown();
    for (const runs::ListSection& list : runs::list_sections()) {
      if (const toml::node* node = root_.get(list.name)) {
        load_list(list, *node);
      }
    }
    for (const runs::Key& key : keys_) {
      if (!key.in_list() && key.path != plugin_paths) {
        load_key(key, root_[key.section()].as_table(), key.path, 0);
      }
    }
  }

  /// Keys whose value could not be read: a check that needs them would only repeat it.
  std::set<std::string> unread;

 private:
  static constexpr std::string_view plugin_paths = "plugins.paths";

  /// The keys follow from the family of models, which may be in a plugin that the config names.
  void choose_family() {
    keys_ = runs::config_keys();
    const auto paths = std::ranges::find(keys_, plugin_paths, &runs::Key::path);
    load_key(*paths, root_[paths->section()].as_table(), paths->path, 0);
    if (plugins_) {
      plugins_(config_);
    }
    const auto given = root_["model"]["family"].value<std::string>();
    if (!given) {
      return;
    }
    try {
      keys_ = runs::config_keys(*given);
    } catch (const Error& error) {
      toml::table& section = *root_["model"].as_table();
      problems_.add(place_of(*section.get("family"), config_.file.string()), error.what());
      section.erase("family");  // the rest is compared with the keys of the default
      family_is_known_ = false;
    }
  }

  void load_key(const runs::Key& key, const toml::table* section, const std::string& name,
                std::size_t entry) {
    const runs::Slot slot = key.slot(config_, entry);
    if (const toml::node* node = section == nullptr ? nullptr : section->get(key.leaf())) {
      config_.given[name] = place_of(*node, config_.file.string());
      if (!read_value(*node, key, name, slot, problems_)) {
        unread.insert(name);
      }
    } else if (key.required) {
      problems_.add(place_of(*section, config_.file.string()),
                    fmt::format("{}: must be given ({})", name, key.doc));
      unread.insert(name);
    }
    if (key.is_path) {
      runs::place_paths(key, slot, config_.file.parent_path());
    }
  }

  void load_list(const runs::ListSection& list, const toml::node& node) {
    std::vector<std::string> leaves;
    for (const runs::Key& key : keys_) {
      if (key.section() == list.name) {
        leaves.push_back(key.leaf());
      }
    }
    const toml::array* entries = node.as_array();
    if (entries == nullptr) {
      problems_.add(
          place_of(node, config_.file.string()),
          fmt::format(
              "{0}: expected a list of tables; write [[{0}]] in the file, or on the command "
              "line {0}=[{1}] (all entries), {0}[0].{2}=VALUE (one value) or {0}=[] (none)",
              list.name, list.example, leaves.front()));
      return;
    }
    list.resize(config_, entries->size());
    for (std::size_t i = 0; i < entries->size(); ++i) {
      const toml::table* entry = entries->get(i)->as_table();
      const std::string name = fmt::format("{}[{}]", list.name, i);
      const runs::SourceLine place = place_of(*entries->get(i), config_.file.string());
      if (entry == nullptr) {
        problems_.add(
            place,
            fmt::format("{0}: expected a table such as {1}; one value of it is set by {0}.{2} "
                        "or {0}.options.NAME",
                        name, list.example,
                        fmt::join(leaves.begin(), leaves.end() - 1, fmt::format(", {}.", name))));
        continue;
      }
      list.where(config_, i) = place.text();
      config_.given[name] = place;
      report_unknown(*entry, list.name, name);
      for (const runs::Key& key : keys_) {
        if (key.section() == list.name) {
          load_key(key, entry, fmt::format("{}.{}", name, key.leaf()), i);
        }
      }
    }
  }

  void report_unknown() {
    const std::vector<std::string> sections = runs::config_sections();
    for (const auto& [key, node] : root_) {
      const std::string name(key.str());
      if (const runs::SourceLine place = place_of_key(key, node); place.line > 0) {
        config_.given[name] = place;
      }
      if (std::ranges::find(sections, name) == sections.end()) {
        const std::string nearest = did_you_mean(name, sections);
        problems_.add(
            place_of_key(key, node),
            fmt::format("{}: unknown {}{} (keys are SECTION.KEY; the sections are {})", shown(name),
                        node.is_table() ? "section" : "key",
                        nearest.empty() ? elsewhere(name) : nearest, join_words(sections)));
      } else if (const toml::table* section = node.as_table()) {
        if (runs::list_section(name) != nullptr || (name == "model" && !family_is_known_)) {
          continue;
        }
        report_unknown(*section, name, name);
      } else if (runs::list_section(name) == nullptr) {
        problems_.add(place_of_key(key, node),
                      fmt::format("{0}: expected a section; write [{0}]", name));
      }
    }
  }

  void report_unknown(const toml::table& table, const std::string& section,
                      const std::string& table_name) {
    std::vector<std::string> leaves;
    for (const runs::Key& key : keys_) {
      if (key.section() == section) {
        leaves.push_back(key.leaf());
      }
    }
    for (const auto& [key, node] : table) {
      const std::string leaf(key.str());
      if (std::ranges::find(leaves, leaf) != leaves.end()) {
        continue;
      }
      const std::string nearest = nearest_name(leaf, leaves);
      problems_.add(
          place_of_key(key, node),
          fmt::format(
              "{}.{}: unknown key{}", table_name, shown(leaf),
              !nearest.empty() ? fmt::format("; did you mean '{}.{}'?", table_name, nearest)
              : std::ranges::find(leaves, "options") != leaves.end()
                  ? fmt::format("; what the plugin itself reads is in {}.options", table_name)
                  : elsewhere(leaf)));
    }
  }

  /// A key that an override made has no source of its own, but its value has.
  runs::SourceLine place_of_key(const toml::key& key, const toml::node& node) const {
    return key.source().begin ? place_of(key.source(), config_.file.string())
                              : place_of(node, config_.file.string());
  }

  /// Advice where the key, or a near name, is in another section.
  std::string elsewhere(const std::string& leaf) const {
    std::vector<std::string> leaves;
    for (const runs::Key& key : keys_) {
      leaves.push_back(key.leaf());
    }
    const std::string nearest = nearest_name(leaf, leaves);
    const auto key = std::ranges::find(keys_, nearest, &runs::Key::leaf);
    return key == keys_.end() ? "" : fmt::format("; did you mean '{}'?", key->path);
  }

  toml::table& root_;
  runs::RunSpec& config_;
  runs::Problems& problems_;
  const PluginSetup& plugins_;
  std::vector<runs::Key> keys_;
  bool family_is_known_ = true;
};

}  // namespace

runs::RunSpec parse_config(std::string_view text, const std::filesystem::path& file,
                           std::span<const std::string> overrides, const PluginSetup& plugins) {
  toml::table root;
  try {
    root = toml::parse(text, file.string());
  } catch (const toml::parse_error& error) {
    fail_input(fmt::format("{}:{}:{}: {}", shown(file.string()), error.source().begin.line,
                           error.source().begin.column, shown(error.description(), 300)));
  }
  runs::RunSpec config;
  config.file = file;
  runs::Problems problems(file.string());
  for (const std::string& argument : overrides) {
    apply_override(root, argument, problems);
  }
  Loader loader(root, config, problems, plugins);
  loader.load();
  if (config.train.epochs > 0 && !config.given.contains("train.steps")) {
    config.train.steps = 0;  // follows from the data
  }
  runs::check_config(config, loader.unread, problems);
  problems.throw_if_any();
  return config;
}

runs::RunSpec load_config(const std::filesystem::path& file, std::span<const std::string> overrides,
                          const PluginSetup& plugins) {
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) {
    fail_input(
        {.thing = file.string(), .wrong = "is a folder", .advice = "name the config file in it"});
  }
  constexpr std::size_t most = std::size_t{16} << 20;
  runs::RunSpec spec =
      parse_config(input_text(file.string(), most, "the config"), file, overrides, plugins);
  // A command that reads a config several times, as a search for each candidate, asks a store once.
  static std::map<std::string, stores::LocalCopy> copies;
  static std::mutex mutex;
  {
    const std::lock_guard lock(mutex);
    spec.copies = copies;
  }
  spec = runs::with_copies(std::move(spec));
  const std::lock_guard lock(mutex);
  copies.insert(spec.copies.begin(), spec.copies.end());
  return spec;
}

namespace {

/// The lines "key = value" of what was given of a section, or of an entry of a list.
std::vector<std::string> given_lines(runs::RunSpec& config, const std::string& section,
                                     std::size_t entry = 0) {
  std::vector<std::string> lines;
  for (const runs::Key& key : runs::config_keys(config.model.family)) {
    const std::string name =
        key.in_list() ? fmt::format("{}[{}].{}", section, entry, key.leaf()) : key.path;
    if (key.section() != section || !config.given.contains(name)) {
      continue;
    }
    const runs::Slot slot = key.slot(config, entry);
    if (key.is_path) {
      runs::place_paths(key, slot, std::filesystem::current_path());
    }
    lines.push_back(fmt::format("{} = {}", key.leaf(), slot_text(slot)));
  }
  return lines;
}

}  // namespace

std::string to_toml(const runs::RunSpec& config) {
  runs::RunSpec copy = runs::with_addresses(config);
  std::string text;
  const auto add = [&](const std::string& head, const std::vector<std::string>& lines) {
    if (!lines.empty()) {
      text += fmt::format("{}{}\n{}\n", text.empty() ? "" : "\n", head, fmt::join(lines, "\n"));
    }
  };
  for (const std::string& section : runs::config_sections()) {
    const runs::ListSection* const list = runs::list_section(section);
    if (list == nullptr) {
      add(fmt::format("[{}]", section), given_lines(copy, section));
    }
    for (std::size_t i = 0; list != nullptr && i < list->size(copy); ++i) {
      add(fmt::format("[[{}]]", section), given_lines(copy, section, i));
    }
  }
  return text;
}

std::string entry_text(const runs::RunSpec& config, std::size_t entry) {
  runs::RunSpec copy = runs::with_addresses(config);
  return fmt::format("{{{}}}", fmt::join(given_lines(copy, "parallel", entry), ", "));
}

}  // namespace tessera::app
