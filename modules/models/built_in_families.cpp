// The files of the families that need no plugin, in this library: modules/models/families.
module;
#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>
module tessera.models;

import tessera.base;
import :family_file;

namespace tessera::models {
namespace {

constexpr BuiltInFamily files[] = {
#include TESSERA_FAMILIES
};

}  // namespace

std::span<const BuiltInFamily> built_in_family_files() { return files; }

FamilyFile built_in_family(std::string_view family) {
  const std::string name = std::string(family) + ".family.toml";
  const auto found = std::ranges::find(files, name, &BuiltInFamily::file);
  if (found == std::end(files)) {
    fail_input({.thing = "family",
                .wrong = "there is no built-in family '" + std::string(family) + "'",
                .advice = "'tessera model list' shows them"});
  }
  return read_family_file(name, found->text);
}

DecoderTraits decoder_traits(std::string_view family) { return built_in_family(family).traits; }

std::vector<std::string> built_in_families() {
  std::vector<std::string> names;
  for (const BuiltInFamily& one : files) {
    names.emplace_back(one.file.substr(0, one.file.find('.')));
  }
  return names;
}

}  // namespace tessera::models
