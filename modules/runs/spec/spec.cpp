module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <tessera/json.hpp>
#include <type_traits>
#include <variant>
module tessera.runs;

import tessera.base;
import tessera.options;
import tessera.optim;

namespace tessera::runs {

bool ModelConfig::adds_tokens() const { return new_tokens == NewTokens::mean; }
bool OptimizerConfig::schedule_ends() const { return optim::Schedule{.kind = schedule}.has_end(); }
bool DataConfig::packs() const { return packing == RowContent::documents; }
bool TrainConfig::is_layout_free() const { return reproducible == Reproducible::layout; }

std::int64_t TrainConfig::micro_rows() const {
  return is_layout_free() ? batch / virtual_shards : micro_batch;
}

std::int64_t RunSpec::schedule_end() const {
  if (optimizer.schedule_end > 0 || optimizer.schedule_unit == optim::ScheduleUnit::steps) {
    return optimizer.schedule_end > 0 ? optimizer.schedule_end : train.steps;
  }
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  return train.steps > most / step_tokens() ? most : train.steps * step_tokens();
}

std::int64_t RunSpec::ranks() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : mesh.shape) {
    product *= extent;
  }
  return product;
}

SourceLine RunSpec::place_of_key(const std::string& key) const {
  for (const std::string& name :
       {key, key.substr(0, key.rfind('.')), key.substr(0, key.find_first_of(".["))}) {
    if (const auto found = given.find(name); found != given.end()) {
      return found->second;
    }
  }
  // Dotted keys have no line for the section: another key of it has its place.
  const std::string section = key.substr(0, key.find_first_of(".["));
  if (const auto next = given.lower_bound(section + ".");
      next != given.end() && next->first.starts_with(section + ".")) {
    return next->second;
  }
  return {file.string(), 0};
}

std::string RunSpec::place(const std::string& key) const {
  const std::string at = place_of_key(key).text();
  return at.empty() ? key : fmt::format("{}: {}", at, key);
}

namespace {

nlohmann::ordered_json slot_json(const Slot& slot) {
  return std::visit(
      []<class T>(const T& field) -> nlohmann::ordered_json {
        if constexpr (std::is_same_v<T, WordField>) {
          return field.word();
        } else if constexpr (std::is_same_v<T, JsonText*> || std::is_same_v<T, JsonList*>) {
          return parse_ordered_json(field->text);
        } else if constexpr (std::is_same_v<T, Names*>) {
          return field->all.size() == 1 ? nlohmann::ordered_json(field->all[0])
                                        : nlohmann::ordered_json(field->all);
        } else {
          return *field;
        }
      },
      slot);
}

nlohmann::ordered_json json_value(const Key& key, const RunSpec& config, std::size_t entry = 0) {
  // A slot is where a key is written too; nothing is written here.
  return slot_json(key.slot(const_cast<RunSpec&>(config), entry));
}

}  // namespace

std::string json_of(const Slot& slot) { return json_text(slot_json(slot)); }

std::string json_of(const Key& key, const RunSpec& config) {
  return json_text(json_value(key, config));
}

std::string to_json(const RunSpec& spec) {
  const RunSpec config = with_addresses(spec);
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  for (const Key& key : config_keys(config.model.family)) {
    if (!key.in_list()) {
      all[key.section()][key.leaf()] = json_value(key, config);
      continue;
    }
    auto& list = all[key.section()];
    for (std::size_t i = 0; i < list_section(key.section())->size(config); ++i) {
      list[i][key.leaf()] = json_value(key, config, i);
    }
  }
  return json_text(all);
}

}  // namespace tessera::runs
