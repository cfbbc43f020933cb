module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.hub;

import :peft_files;
import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.checkpoint;

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;

constexpr const char* config_advice =
    "the config; change the options of the style, or name another folder";

void compare(const nn::LowRankUpdate& stored, const nn::LowRankUpdate& own,
             const std::string& module, PeftDifferences& differences) {
  const auto differ = [&](const char* what, const auto& in_folder, const auto& in_config) {
    if (in_folder != in_config) {
      differences.add(
          fmt::format("{} is {} in the folder and {} in the config", what, in_folder, in_config),
          module);
    }
  };
  differ("rank", stored.rank, own.rank);
  differ("alpha", stored.alpha, own.alpha);
  differ("dora", stored.dora, own.dora);
  differ("rslora", stored.rank_stabilized, own.rank_stabilized);
}

/// The names of the whole model's weights, those of absent modules too, with the first name of
/// each: tied ones have several. Parameters of updates and of packed weights are none of them.
std::map<std::string, std::string> weight_names(nn::Module& model) {
  std::map<std::string, std::string> names;
  for (const auto& [module, absent] : nn::whole_modules(model)) {
    const bool updated = nn::low_rank_update_of(*module).has_value();
    for (const auto& [key, parameter] : module->parameters()) {
      const bool of_update =
          updated &&
          std::ranges::any_of(peft_parameters({.dora = true}),
                              [&own = key](const PeftParameter& part) { return own == part.own; });
      if (of_update || parameter->initialization.kind == nn::Initialization::Kind::packed) {
        continue;
      }
      names.emplace(parameter->name, parameter->name);
      for (const std::string& other : parameter->other_names) {
        names.emplace(other, parameter->name);
      }
    }
    for (const nn::PackedWeight& packed : nn::packed_weights_of(*module)) {
      const std::string name = module->name() + "." + packed.name;
      names.emplace(name, name);
    }
  }
  return names;
}

struct AdapterContent {
  std::set<std::string> modules;              // that have an update
  std::map<std::string, std::string> copies;  // tensor -> the weight of the model
};

/// Content of the file. Names that are not part of an update and no weight of the model are
/// differences.
AdapterContent find(const SafetensorsFile& file, nn::Module& model, PeftDifferences& differences) {
  AdapterContent found;
  const std::map<std::string, std::string> first_names = weight_names(model);
  for (const auto& [name, info] : file.tensors()) {
    const PeftTensor tensor = peft_tensor(name);
    if (!tensor.module.empty()) {
      found.modules.insert(tensor.module);
      continue;
    }
    const auto weight = first_names.find(tensor.weight);
    if (weight == first_names.end()) {
      differences.add("tensors of the folder that no update has", name);
    } else {
      found.copies.emplace(name, weight->second);
    }
  }
  return found;
}

StateDict state_of(nn::Module& model) {
  return {.tensors = nn::values_by_name(nn::update_parameters(model)), .scalars = {}};
}

}  // namespace

std::vector<PeftParameter> peft_parameters(const nn::LowRankUpdate& update) {
  std::vector<PeftParameter> parts = {{"lora_A", "lora_A.weight"}, {"lora_B", "lora_B.weight"}};
  if (update.dora) {
    parts.push_back({"magnitude", "lora_magnitude_vector"});
  }
  return parts;
}

std::string peft_name(const std::string& module, const PeftParameter& part) {
  return fmt::format("{}{}.{}", peft_root, module, part.peft);
}

PeftTensor peft_tensor(const std::string& name) {
  constexpr std::string_view wrapped = ".base_layer.";  // what a layer with an update has inside
  if (!name.starts_with(peft_root)) {
    return {};
  }
  std::string below = name.substr(peft_root.size());
  for (const PeftParameter& part : peft_parameters({.dora = true})) {
    const std::string end = std::string(".") + part.peft;
    if (below.ends_with(end)) {
      return {.module = below.substr(0, below.size() - end.size()), .weight = {}};
    }
  }
  if (const std::size_t at = below.rfind(wrapped); at != std::string::npos) {
    below.replace(at, wrapped.size(), ".");
  }
  return {.module = {}, .weight = below};
}

void check_peft_weights_file(const std::string& folder) {
  const fs::path path = folder;
  std::error_code ignored;
  if (!fs::exists(path / peft_weights_file, ignored) &&
      fs::exists(path / "adapter_model.bin", ignored)) {
    fail_input({.thing = (path / "adapter_model.bin").string(),
                .wrong = "pickled weights are not read",
                .expected = peft_weights_file,
                .advice = "load the adapter with PEFT and save it again: "
                          "model.save_pretrained(FOLDER) writes safetensors"});
  }
}

void PeftDifferences::throw_if_any(const std::string& folder, const std::string& thing) const {
  if (all_.empty()) {
    return;
  }
  std::string lines;
  for (const auto& [text, modules] : all_) {
    lines += "\n  " + text;
    if (!modules.empty()) {
      constexpr std::size_t most = 3;
      const std::size_t shown = std::min(most, modules.size());
      lines += fmt::format(": {}", fmt::join(modules.begin(), modules.begin() + shown, ", "));
      lines += modules.size() > most ? fmt::format(" and {} more", modules.size() - most) : "";
    }
  }
  fail_input(fmt::format("{}: the adapter does not fit {}:{}", folder, thing, lines));
}

RenamedTensors::RenamedTensors(const TensorSource& from, std::map<std::string, std::string> names)
    : TensorSource(from.path()), from_(from), names_(std::move(names)) {
  for (const auto& [name, there] : names_) {
    tensors_.emplace(name, from_.info(there));
  }
}

std::uint64_t RenamedTensors::bytes_read() const { return from_.bytes_read(); }

void RenamedTensors::copy_box(const std::string& name, const LocalPart& box,
                              const Tensor& into) const {
  from_.read(names_.at(name), box, into);
}

PeftFolder::PeftFolder(const std::string& folder, nn::Module& model) : folder_(folder) {
  const fs::path path = folder;
  const PeftConfig config = read_peft_config((path / "adapter_config.json").string());
  check_peft_weights_file(folder);
  file_ = std::make_unique<SafetensorsFile>((path / peft_weights_file).string());
  PeftDifferences differences;
  for (const std::string& problem : config.problems) {
    differences.add("adapter_config.json: " + problem);
  }
  if (config.transposed_weights) {
    differences.add("adapter_config.json: fan_in_fan_out true is not supported");
  }
  if (!config.saved_modules.empty()) {
    differences.add(fmt::format("adapter_config.json: modules_to_save {} is not supported",
                                json_text(nlohmann::json(config.saved_modules))));
  }
  auto [stored, copies] = find(*file_, model, differences);
  copies_ = std::move(copies);
  std::map<std::string, std::string> names;
  for (const auto& [module, absent] : nn::whole_modules(model)) {
    const std::optional<nn::LowRankUpdate>& update = nn::low_rank_update_of(*module);
    if (!update) {
      continue;
    }
    const std::string& name = module->name();
    if (stored.erase(name) == 0) {
      differences.add("layers with an adapter in the config only", name);
      continue;
    }
    if (!config.targets.contains(name)) {
      differences.add(
          "layers whose tensors PEFT ignores, as target_modules, exclude_modules or "
          "layers_to_transform of adapter_config.json leaves them out",
          name);
    }
    const nn::LowRankUpdate described = config.of(name);
    compare(described, *update, name, differences);
    for (const PeftParameter& part : peft_parameters(*update)) {
      const std::string there = peft_name(name, part);
      const auto found = file_->tensors().find(there);
      if (found == file_->tensors().end()) {
        differences.add("tensors that the folder lacks", there);
        continue;
      }
      const Dims& shape = module->parameter(part.own)->value.shape();
      if (described.rank == update->rank && !(found->second.shape == shape)) {
        differences.add(fmt::format("{} has shape {} in the folder and {} in the model", part.own,
                                    to_string(found->second.shape), to_string(shape)),
                        name);
      }
      if (!absent) {
        names.emplace(name + "." + part.own, there);
      }
    }
  }
  for (const std::string& name : stored) {
    differences.add("layers with an adapter in the folder only", name);
  }
  differences.throw_if_any(folder, config_advice);
  renamed_ = std::make_unique<RenamedTensors>(*file_, std::move(names));
}

void PeftFolder::check_copies(const TensorSource* base) const {
  PeftDifferences differences;
  for (const auto& [tensor, weight] : copies_) {
    if (base == nullptr) {
      differences.add(
          "weights of the model that the folder has too, while model.from names no folder to "
          "compare them with",
          tensor);
      continue;
    }
    if (!base->contains(weight)) {
      continue;  // a later comparison finds that the folder of the model lacks it
    }
    const RenamedTensors ours(*base, {{weight, weight}});
    const RenamedTensors theirs(*file_, {{weight, tensor}});
    const std::vector<TensorDifference> found = compare_tensors(ours, theirs);
    if (!found.empty() && (!found[0].problem.empty() || found[0].elements > 0)) {
      differences.add(
          "weights of the model that PEFT would replace: they are others in the folder than in "
          "model.from",
          tensor);
    }
  }
  differences.throw_if_any(folder_, config_advice);
}

void load_peft(const std::string& folder, nn::Module& model) {
  const PeftFolder stored(folder, model);
  StateDict state = state_of(model);
  load_weights(stored.tensors(), state);
}

void check_peft(const std::string& folder, nn::Module& model, const TensorSource* base,
                bool values) {
  const PeftFolder stored(folder, model);
  const StateDict state = state_of(model);
  check_weights(stored.tensors(), state);
  stored.check_copies(base);
  if (values) {
    check_weight_values(stored.tensors(), state);
  }
}

std::size_t write_peft(const TensorSource& from, const Updates& updates, const std::string& prefix,
                       const std::string& base, DType dtype, const std::string& folder) {
  constexpr std::string_view weight = ".weight";
  std::set<std::string> modules;
  const auto add = [&](const std::map<std::string, TensorInfo>& tensors) {
    for (const auto& [name, info] : tensors) {
      if (name.starts_with(prefix) && name.ends_with(weight)) {
        modules.insert(name.substr(prefix.size(), name.size() - prefix.size() - weight.size()));
      }
    }
  };
  add(from.tensors());
  if (from.base()) {
    add(from.base()->tensors);
  }
  const std::string config = peft_config(updates, modules, base);
  std::map<std::string, std::string> names;
  for (const auto& [module, update] : updates) {
    for (const PeftParameter& part : peft_parameters(update)) {
      names.emplace(peft_name(module, part), fmt::format("{}{}.{}", prefix, module, part.own));
    }
  }
  const RenamedTensors tensors(from, std::move(names));
  const std::size_t written = export_weights(tensors, folder, {.dtype = dtype}).size();
  fs::rename(fs::path(folder) / "model.safetensors", fs::path(folder) / peft_weights_file);
  write_text((fs::path(folder) / "adapter_config.json").string(), config);
  return written;
}

}  // namespace tessera::hub
