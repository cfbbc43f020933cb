module;
#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
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

namespace {

template <auto Member>
ListSection list_of(const char* name, const char* example) {
  return {.name = name,
          .example = example,
          .size = [](const RunSpec& spec) { return (spec.*Member).size(); },
          .resize = [](RunSpec& spec, std::size_t entries) { (spec.*Member).resize(entries); },
          .where = [](RunSpec& spec, std::size_t entry) -> std::string& {
            return (spec.*Member).at(entry).where;
          }};
}

}  // namespace

std::span<const ListSection> list_sections() {
  static const std::array all = {
      list_of<&RunSpec::parallel>("parallel", R"({style=FSDP,axis=shard,on=["."]})"),
      list_of<&RunSpec::sinks>("sinks", "{sink=prometheus,options={port=9464}}")};
  return all;
}

const ListSection* list_section(std::string_view name) {
  const auto found = std::ranges::find(list_sections(), name, &ListSection::name);
  return found == list_sections().end() ? nullptr : &*found;
}

RunSpec with_entries() {
  RunSpec spec;
  for (const ListSection& list : list_sections()) {
    list.resize(spec, 1);
  }
  return spec;
}

bool Key::in_list() const { return list_section(section()) != nullptr; }

std::vector<Key> config_keys(const std::string& family) {
  std::vector<Key> all = model_keys();
  std::ranges::move(family_keys(family), std::back_inserter(all));
  for (const auto part :
       {source_keys, row_keys, train_keys, gradient_keys, healing_keys, reproducible_keys, dpo_keys,
        expert_keys, optimizer_keys, mesh_keys, log_keys, sink_keys, graph_keys, checkpoint_keys}) {
    std::ranges::move(part(), std::back_inserter(all));
  }
  RunSpec any = with_entries();
  for (Key& key : all) {
    if (const Slot slot = key.slot(any, 0); const auto* words = std::get_if<WordField>(&slot)) {
      key.choices = words->words();
    }
  }
  return all;
}

}  // namespace tessera::runs
