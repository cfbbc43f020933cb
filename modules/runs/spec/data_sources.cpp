module;
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.options;
import tessera.sources;
import tessera.stores;
import tessera.data;
import :stored_inputs;

namespace tessera::runs {
namespace {

using Kind = SourceConfig::Kind;

constexpr std::array<std::pair<const char*, Kind>, 3> kinds = {
    {{"text", Kind::text}, {"jsonl", Kind::jsonl}, {"tokens", Kind::tokens}}};

data::RecordForms forms_of(PluginOptions table) {
  data::RecordColumns columns;
  for (const std::string& name : data::RecordForms::names()) {
    if (std::string column = table.text(name, ""); !column.empty()) {
      columns[name] = std::move(column);
    }
  }
  return data::RecordForms(std::move(columns));
}

/// What a file of data.validation_files has, by its name.
Kind kind_of(std::string_view path) {
  if (path.ends_with(".npy")) {
    return Kind::tokens;
  }
  if (!sources::source_of(path).empty() || !sources::missing_source(path).empty()) {
    return Kind::jsonl;
  }
  for (const std::string_view packed : {".gz", ".zst"}) {
    path.remove_suffix(path.ends_with(packed) ? packed.size() : 0);
  }
  return path.ends_with(".jsonl") ? Kind::jsonl : Kind::text;
}

/// The options of a key that is a table or a list of them, as an option of that name.
PluginOptions section_of(const RunSpec& config, const std::string& name, const std::string& json) {
  const std::string place = config.place("data." + name);
  return PluginOptions(fmt::format(R"({{"{}": {}}})", name, json),
                       place.substr(0, place.rfind(": ")));
}

/// Those of data.columns.
data::RecordForms common_forms(const RunSpec& config) {
  PluginOptions section = section_of(config, "columns", config.data.columns.text);
  data::RecordForms forms = forms_of(section.table("columns"));
  section.finish();
  return forms;
}

/// The source of one table of data.sources.
SourceConfig source_of(PluginOptions& table, const RunSpec& config,
                       const data::RecordForms& common) {
  SourceConfig source;
  source.key = "data.sources";
  for (const auto& [name, kind] : kinds) {
    std::vector<std::string> paths = table.texts(name);
    if (!paths.empty() && !source.paths.empty()) {
      table.refuse("a source must have one of text, jsonl and tokens; write a table for each");
    }
    if (!paths.empty()) {
      source.kind = kind;
      source.paths = std::move(paths);
    }
  }
  if (source.paths.empty()) {
    table.refuse("a source must have one of text, jsonl and tokens, a list of paths");
  }
  source.forms = forms_of(table.table("columns"));
  if (source.forms.columns().empty()) {
    source.forms = common;
  } else if (source.kind != Kind::jsonl) {
    table.refuse("columns name the members of records, so they need jsonl");
  }
  for (std::string& path : source.paths) {
    path = path_from(config.file.parent_path(), path);
    if (stores::is_address(path)) {
      const auto copy = config.copies.find(stores::Address(path).text());
      path = copy != config.copies.end() ? copy->second.path() : path;
    }
  }
  source.weight =
      table.number("weight", 1, "a number more than 0", [](double weight) { return weight > 0; });
  return source;
}

}  // namespace

std::vector<SourceConfig> data_sources(const RunSpec& config) {
  const DataConfig& data = config.data;
  const std::pair<const char*, const std::vector<std::string>*> lists[] = {
      {"data.text", &data.text}, {"data.jsonl", &data.jsonl}, {"data.tokens", &data.tokens}};
  const data::RecordForms forms = common_forms(config);
  std::vector<SourceConfig> sources;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (!lists[i].second->empty()) {
      sources.push_back({.kind = kinds[i].second,
                         .paths = *lists[i].second,
                         .key = lists[i].first,
                         .forms = forms});
    }
  }
  PluginOptions section = section_of(config, "sources", data.sources.text);
  for (PluginOptions& table : section.tables("sources")) {
    sources.push_back(source_of(table, config, forms));
  }
  section.finish();
  return sources;
}

std::vector<SourceConfig> validation_sources(const RunSpec& config) {
  std::vector<SourceConfig> sources;
  for (const auto& [name, kind] : kinds) {
    SourceConfig source{
        .kind = kind, .key = "data.validation_files", .forms = common_forms(config)};
    for (const std::string& path : config.data.validation_files) {
      if (kind_of(path) == kind) {
        source.paths.push_back(path);
      }
    }
    if (!source.paths.empty()) {
      sources.push_back(std::move(source));
    }
  }
  return sources;
}

}  // namespace tessera::runs
