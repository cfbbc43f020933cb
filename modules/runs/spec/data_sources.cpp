module;
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.options;

namespace tessera::runs {
namespace {

using Kind = SourceConfig::Kind;

constexpr std::array<std::pair<const char*, Kind>, 3> kinds = {
    {{"text", Kind::text}, {"jsonl", Kind::jsonl}, {"tokens", Kind::tokens}}};

/// The source of one table of data.sources.
SourceConfig source_of(PluginOptions& table, const std::filesystem::path& folder) {
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
  for (std::string& path : source.paths) {
    path = (folder / path).lexically_normal().string();
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
  std::vector<SourceConfig> sources;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (!lists[i].second->empty()) {
      sources.push_back(
          {.kind = kinds[i].second, .paths = *lists[i].second, .key = lists[i].first});
    }
  }
  const std::string place = config.place("data.sources");
  PluginOptions section(fmt::format(R"({{"sources": {}}})", data.sources.text),
                        place.substr(0, place.rfind(": ")));
  for (PluginOptions& table : section.tables("sources")) {
    sources.push_back(source_of(table, config.file.parent_path()));
  }
  section.finish();
  return sources;
}

std::vector<SourceConfig> validation_sources(const RunSpec& config) {
  std::vector<SourceConfig> sources;
  for (const auto& [name, kind] : kinds) {
    SourceConfig source{.kind = kind, .key = "data.validation_files"};
    for (const std::string& path : config.data.validation_files) {
      const Kind own = path.ends_with(".npy")     ? Kind::tokens
                       : path.ends_with(".jsonl") ? Kind::jsonl
                                                  : Kind::text;
      if (own == kind) {
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
