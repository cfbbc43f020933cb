module;
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
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
import tessera.nn;
import :gguf_form;
import :decoder_family;

namespace tessera::models {
namespace {

[[maybe_unused]] const bool declared = plugin::declare_kind<ModelFamily>();

}  // namespace

ModelFamily::~ModelFamily() = default;

std::int64_t ModelFamily::longest_sequence(const ModelSizes& /*sizes*/) const { return 0; }
SpecialTokens ModelFamily::special_tokens() const { return {}; }
std::string ModelFamily::classifier() const { return ""; }
std::shared_ptr<nn::DecoderClassifier> ModelFamily::build_classifier(
    const ModelSizes& /*sizes*/, std::int64_t /*classes*/, std::int64_t /*padding*/) const {
  fail(architecture() + ": transformers has no such model that tells classes");
}
std::vector<HubTensor> ModelFamily::tensors(const ModelSizes& /*sizes*/) const { return {}; }
TensorSplit ModelFamily::tensor_split(const ModelSizes&) const { return {}; }
std::string ModelFamily::base_prefix() const { return ""; }
std::vector<std::string> ModelFamily::further_tensors(const ModelSizes& /*sizes*/) const {
  return {};
}
std::vector<std::string> ModelFamily::ignored_tensors() const { return {}; }
std::vector<std::string> ModelFamily::unused_tensors(const ModelSizes& /*sizes*/) const {
  return {};
}
std::vector<std::string> ModelFamily::packed_forms() const { return {}; }
GgufForm ModelFamily::gguf() const { return {}; }
ModelSizes ModelFamily::gguf_sizes(const ModelSizes& sizes) const { return sizes; }
std::vector<HubTensor> ModelFamily::gguf_tensors(const ModelSizes& /*sizes*/) const { return {}; }

std::vector<std::string> model_families() {
  std::vector<std::string> names = plugin::host().names(ModelFamily::plugin_kind.name);
  std::ranges::copy(built_in_families(), std::back_inserter(names));
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
  const std::vector<std::string> built_in = built_in_families();
  if (std::ranges::find(built_in, name) != built_in.end()) {  // without plugins there is no host
    family = std::make_unique<DecoderFamily>(decoder_traits(name));
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
