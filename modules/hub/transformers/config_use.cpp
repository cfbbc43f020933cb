module;
#include <algorithm>
#include <filesystem>
#include <string>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.hub;

import tessera.base;
import tessera.models;
import :quantized_folder;

namespace tessera::hub {

/// In folder_files.cpp.
ParsedJson read_config_json(const std::string& file, const JsonLimits& limits);

namespace {

using Json = nlohmann::json;

/// The keys of all families are read too: they are as much a part of the file.
ConfigUse use_of(const std::string& family_name, const std::string& text, const std::string& file) {
  const models::ModelFamily& family = models::model_family(family_name);
  models::HubConfigFile config(text, file);
  config.check_common(family.architecture(), readable_forms(family));
  family.read(config);
  config.dtype();
  return {.family = family_name, .keys = config.use(), .problems = config.problems()};
}

/// How much of the file the family does not understand.
std::size_t strangeness(const ConfigUse& use) {
  return use.keys.unknown.size() + use.problems.size();
}

}  // namespace

ConfigReport describe_config(const std::filesystem::path& folder) {
  const std::string file = (folder / "config.json").string();
  ParsedJson parsed =
      read_config_json(file, {.bytes = 16'000'000, .values = 1'000'000, .depth = 64});
  if (!parsed.problem.empty()) {
    fail_input({.thing = file, .wrong = parsed.problem});
  }
  ConfigReport report;
  report.text = json_text(parsed.value);
  const auto type = parsed.value.find("model_type");
  if (type != parsed.value.end() && type->is_string()) {
    report.model_type = type->get<std::string>();
  }
  const std::vector<std::string> known = models::model_families();
  report.is_known = std::ranges::find(known, report.model_type) != known.end();
  if (report.is_known) {
    report.uses.push_back(use_of(report.model_type, report.text, file));
    return report;
  }
  // The class of another family is no difference that a family file could not name.
  parsed.value.erase("architectures");
  const std::string text = json_text(parsed.value);
  for (const std::string& family : models::built_in_families()) {
    report.uses.push_back(use_of(family, text, file));
  }
  std::ranges::stable_sort(report.uses, {}, strangeness);
  return report;
}

}  // namespace tessera::hub
