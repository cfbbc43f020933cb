module;
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.models;

import tessera.base;
import tessera.plugin;
import :llama;

namespace tessera::models {
namespace {

[[maybe_unused]] const bool declared = plugin::declare_kind<ModelFamily>();

constexpr std::string_view llama = "llama";

}  // namespace

ModelFamily::~ModelFamily() = default;

std::int64_t ModelFamily::longest_sequence(const ModelSizes& /*sizes*/) const { return 0; }
SpecialTokens ModelFamily::special_tokens() const { return {}; }
std::vector<HubTensor> ModelFamily::tensors(const ModelSizes& /*sizes*/) const { return {}; }
std::string ModelFamily::base_prefix() const { return ""; }
std::vector<std::string> ModelFamily::ignored_tensors() const { return {}; }

std::vector<std::string> built_in_families() { return {std::string(llama)}; }

std::vector<std::string> model_families() {
  std::vector<std::string> names = plugin::host().names(ModelFamily::plugin_kind.name);
  names.emplace_back(llama);
  std::ranges::sort(names);
  return names;
}

const ModelFamily& model_family(std::string_view name, const std::string& where) {
  static std::recursive_mutex mutex;  // a family may be made of another one
  static std::map<std::string, std::unique_ptr<ModelFamily>, std::less<>> families;
  const std::scoped_lock lock(mutex);
  if (const auto found = families.find(name); found != families.end()) {
    return *found->second;
  }
  std::unique_ptr<ModelFamily> family;
  if (name == llama) {
    family = llama_family();  // a program without plugins has no host
  } else {
    const std::vector<std::string> known = model_families();
    if (std::ranges::find(known, name) == known.end()) {
      fail_input({.thing = where,
                  .wrong = fmt::format("there is no family of models '{}' (there are {}){}",
                                       shown(name), join_words(known), did_you_mean(name, known)),
                  .advice = "'tessera plugin list' shows the plugins"});
    }
    family = plugin::host().find<ModelFamily>(name)();
    if (!family) {
      fail_input(
          {.thing = fmt::format("model '{}'", name), .wrong = "its plugin returned no object"});
    }
  }
  return *families.emplace(std::string(name), std::move(family)).first->second;
}

}  // namespace tessera::models
