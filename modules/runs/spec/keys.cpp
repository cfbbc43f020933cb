module;
#include <algorithm>
#include <iterator>
#include <string>
#include <variant>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.options;
import :section_keys;

namespace tessera::runs {

std::string word_of(const RunSpec& spec, const std::string& key) {
  RunSpec copy = spec;  // a slot is where a key is written too
  for (const Key& one : config_keys(spec.model.family)) {
    if (const Slot slot = one.path == key ? one.slot(copy, 0) : Slot();
        const auto* words = std::get_if<WordField>(&slot)) {
      return words->word();
    }
  }
  require(false, key);
  return {};
}

bool Key::in_list() const { return section() == "parallel"; }

std::vector<Key> config_keys(const std::string& family) {
  std::vector<Key> all = model_keys();
  std::ranges::move(family_keys(family), std::back_inserter(all));
  for (const auto part :
       {source_keys, row_keys, train_keys, gradient_keys, healing_keys, reproducible_keys, dpo_keys,
        expert_keys, optimizer_keys, mesh_keys, log_keys, graph_keys, checkpoint_keys}) {
    std::ranges::move(part(), std::back_inserter(all));
  }
  RunSpec any;
  any.parallel.resize(1);
  for (Key& key : all) {
    if (const Slot slot = key.slot(any, 0); const auto* words = std::get_if<WordField>(&slot)) {
      key.choices = words->words();
    }
  }
  return all;
}

}  // namespace tessera::runs
