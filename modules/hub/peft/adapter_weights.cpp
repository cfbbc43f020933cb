module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.hub;

import :peft_files;
import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.models;
import tessera.checkpoint;

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view weight_end = ".weight";

/// Tensors of two sources: those of the second one replace or follow those of the first.
class JoinedTensors : public TensorSource {
 public:
  /// `names`: name here -> name in the second one. Both must outlive this.
  JoinedTensors(const TensorSource& first, const TensorSource& second,
                std::map<std::string, std::string> names)
      : TensorSource(first.path()), first_(first), second_(second), names_(std::move(names)) {
    tensors_ = first.tensors();
    for (const auto& [name, there] : names_) {
      tensors_.insert_or_assign(name, second.info(there));
    }
  }
  std::uint64_t bytes_read() const override { return first_.bytes_read() + second_.bytes_read(); }
  std::string stored_type(const std::string& name) const override {
    const auto found = names_.find(name);
    return found == names_.end() ? first_.stored_type(name) : second_.stored_type(found->second);
  }

  Tensor stored_rows(const std::string& name, std::int64_t row, std::int64_t rows) const override {
    const auto found = names_.find(name);
    return found == names_.end() ? first_.stored_rows(name, row, rows)
                                 : second_.stored_rows(found->second, row, rows);
  }

 private:
  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override {
    const auto found = names_.find(name);
    if (found == names_.end()) {
      first_.read(name, box, into);
    } else {
      second_.read(found->second, box, into);
    }
  }

  const TensorSource& first_;
  const TensorSource& second_;
  std::map<std::string, std::string> names_;
};

/// What an adapter has for the tensors of a folder.
struct AdapterTensors {
  std::map<std::string, std::string> names;  // a tensor beside the folder's, or in its place
  Updates updates = {};                      // by the folder's name of the module
  std::set<std::string> transposed = {};     // modules whose weight is stored as [in, out]
};

/// Compares an adapter with a folder.
class AdapterFit {
 public:
  AdapterFit(const TensorSource& folder, const HubNames& names, const SafetensorsFile& file,
             const PeftConfig& config)
      : folder_(folder), stored_(stored_names(folder, names)), file_(file), config_(config) {
    for (const models::HubTensor& entry : names.tensors) {
      if (entry.transposed) {
        transposed_.insert(entry.tensor);
      }
    }
    for (const std::string& problem : config.problems) {
      differences_.add("adapter_config.json: " + problem);
    }
  }

  AdapterTensors tensors() {
    std::set<std::string> modules;
    for (const auto& [name, info] : file_.tensors()) {
      const PeftTensor tensor = peft_tensor(name);
      if (tensor.module.empty()) {
        add_weight(name, tensor.weight);
      } else if (modules.insert(tensor.module).second) {
        add_update(tensor.module);
      }
    }
    const std::string made_for =
        config_.base.empty() ? "" : fmt::format(" (it was made for '{}')", config_.base);
    differences_.throw_if_any(
        file_.path(), fmt::format("the model of {}{}; name another one", folder_.path(), made_for));
    return std::move(found_);
  }

 private:
  /// A weight of the model that PEFT has stored beside the updates.
  void add_weight(const std::string& name, const std::string& weight) {
    const auto found = stored_.find(weight);
    if (found == stored_.end()) {
      differences_.add("tensors that the model does not have", name);
    } else if (!(folder_.info(found->second).shape == file_.info(name).shape)) {
      differences_.add("weights with another shape than those of the model", name);
    } else {
      found_.names.emplace(found->second, name);
    }
  }

  void add_update(const std::string& module) {
    const std::string weight = module + std::string(weight_end);
    const auto found = stored_.find(weight);
    if (found == stored_.end() || folder_.info(found->second).shape.size() != 2) {
      differences_.add("layers that the model does not have", module);
      return;
    }
    if (!config_.targets.contains(module)) {
      differences_.add(
          "layers whose tensors PEFT ignores, as target_modules, exclude_modules or "
          "layers_to_transform of adapter_config.json leaves them out",
          module);
      return;
    }
    const bool transposed = transposed_.contains(weight);
    const Dims& shape = folder_.info(found->second).shape;
    const std::int64_t out = shape[transposed ? 1 : 0];
    const std::int64_t in = shape[transposed ? 0 : 1];
    const nn::LowRankUpdate update = config_.of(module);
    const std::string own = found->second.substr(0, found->second.size() - weight_end.size());
    for (const PeftParameter& part : peft_parameters(update)) {
      const std::string there = peft_name(module, part);
      const Dims expected = part.own == std::string_view("lora_A")   ? Dims{update.rank, in}
                            : part.own == std::string_view("lora_B") ? Dims{out, update.rank}
                                                                     : Dims{out};
      if (!file_.contains(there)) {
        differences_.add("tensors that the folder lacks", there);
      } else if (!(file_.info(there).shape == expected)) {
        differences_.add(fmt::format("{} has shape {} and the model needs {}", part.own,
                                     to_string(file_.info(there).shape), to_string(expected)),
                         module);
      } else {
        found_.names.emplace(own + "." + part.own, there);
      }
    }
    found_.updates.emplace(own, update);
    if (transposed) {
      found_.transposed.insert(own);
    }
  }

  const TensorSource& folder_;
  std::map<std::string, std::string> stored_;  // by the names that transformers gives them
  const SafetensorsFile& file_;
  const PeftConfig& config_;
  std::set<std::string> transposed_;  // tensors that are stored as [in, out]
  PeftDifferences differences_;
  AdapterTensors found_;
};

std::string weights_file_in(const std::string& adapter) {
  check_peft_weights_file(adapter);
  return (fs::path(adapter) / peft_weights_file).string();
}

/// The matrices B [out, rank] of updates in the places of the weights that they belong to, so that
/// a family's names make parts of them as of the weights' rows.
class OutputMatrix : public TensorSource {
 public:
  /// Both must outlive this.
  OutputMatrix(const std::string& path, const TensorSource& file, const AdapterTensors& found)
      : TensorSource(path), file_(file), found_(found) {
    for (const auto& [module, update] : found.updates) {
      Dims shape = file.info(there(module)).shape;
      if (found.transposed.contains(module)) {
        std::swap(shape[0], shape[1]);
      }
      tensors_.emplace(module + std::string(weight_end), TensorInfo{DType::f32, shape});
    }
  }
  std::uint64_t bytes_read() const override { return file_.bytes_read(); }

 private:
  const std::string& there(const std::string& module) const {
    return found_.names.at(module + ".lora_B");
  }
  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override {
    const std::string module = name.substr(0, name.size() - weight_end.size());
    if (found_.transposed.contains(module)) {
      const auto turned = [](const Dims& dims) { return Dims{dims[1], dims[0]}; };
      file_.read(there(module), {turned(box.offset), turned(box.shape)},
                 ops::transpose(into, 0, 1));
    } else {
      file_.read(there(module), box, into);
    }
  }

  const TensorSource& file_;
  const AdapterTensors& found_;
};

/// What of an adapter is no update of a layer's rows.
void check_only_updates(const AdapterTensors& found, const std::string& adapter,
                        std::int64_t most_rank) {
  PeftDifferences differences;
  std::size_t of_updates = 0;
  for (const auto& [module, update] : found.updates) {
    of_updates += peft_parameters(update).size();
    if (update.dora) {
      differences.add("DoRA, whose update depends on the weight", module);
    }
    if (update.rank > most_rank) {
      differences.add(
          fmt::format("a rank of {}, and at most {} is computed", update.rank, most_rank), module);
    }
  }
  if (found.names.size() > of_updates) {
    differences.add("weights beside the updates (modules_to_save)");
  }
  differences.throw_if_any(adapter,
                           "a model that has several adapters, which adds low-rank updates only; "
                           "merge it with --adapter");
}

/// A tensor of an adapter in fresh memory, f32. Error (input): a value is not finite.
Tensor read_finite(const TensorSource& from, const std::string& name) {
  StateDict one;
  one.tensors.emplace(name, empty(from.info(name).shape, DType::f32));
  load_weights(from, one, {.strict = false, .cast = true});
  return one.tensors.at(name);
}

}  // namespace

std::vector<LayerUpdate> read_layer_updates(const TensorSource& folder, const HubNames& names,
                                            const std::string& adapter, std::int64_t most_rank) {
  const PeftConfig config = read_peft_config((fs::path(adapter) / "adapter_config.json").string());
  const SafetensorsFile file(weights_file_in(adapter));
  const AdapterTensors found = AdapterFit(folder, names, file, config).tensors();
  check_only_updates(found, adapter, most_rank);
  const OutputMatrix outputs(file.path(), file, found);
  const std::map<std::string, std::string> stored = stored_names(outputs, names);
  std::map<std::string, const models::HubTensor*> entries;  // by the parameter
  PeftDifferences differences;
  for (const models::HubTensor& entry : names.tensors) {
    const auto has_entry = [&](const auto& tensor) {
      return entry.stacked ? matches_pattern(tensor.first, entry.tensor)
                           : tensor.first == entry.tensor;
    };
    const auto of_adapter = std::ranges::find_if(stored, has_entry);
    if (of_adapter == stored.end() || entry.copy) {
      continue;
    }
    const bool by_columns = entry.parts > 1 && entry.dim != 0 && !entry.transposed;
    if (entry.stacked || entry.row || by_columns) {
      differences.add("layers that the model computes in another form", of_adapter->first);
    }
    entries.emplace(entry.parameter, &entry);
  }
  differences.throw_if_any(adapter, "layers of the model; merge it with --adapter");
  const HubWeights by_layer(outputs, names);
  std::vector<LayerUpdate> updates;
  for (const auto& [parameter, info] : by_layer.tensors()) {
    const auto entry = entries.find(parameter);
    const std::string& weight =
        stored.at(entry == entries.end() ? parameter : entry->second->tensor);
    const std::string module = weight.substr(0, weight.size() - weight_end.size());
    updates.push_back({.layer = parameter.substr(0, parameter.size() - weight_end.size()),
                       .scale = found.updates.at(module).scale(),
                       .a = read_finite(file, found.names.at(module + ".lora_A")),
                       .b = read_finite(by_layer, parameter)});
  }
  return updates;
}

struct AdapterWeights::Parts {
  Parts(const TensorSource& folder, const HubNames& names, const std::string& adapter)
      : config(read_peft_config((fs::path(adapter) / "adapter_config.json").string())),
        file(weights_file_in(adapter)),
        found(AdapterFit(folder, names, file, config).tensors()),
        joined(folder, file, found.names),
        merged(joined, found.updates, "", found.transposed) {}

  PeftConfig config;
  SafetensorsFile file;
  AdapterTensors found;
  JoinedTensors joined;
  MergedWeights merged;
};

AdapterWeights::AdapterWeights(const TensorSource& folder, const HubNames& names,
                               const std::string& adapter)
    : TensorSource(folder.path()), parts_(std::make_unique<const Parts>(folder, names, adapter)) {
  tensors_ = parts_->merged.tensors();
  meta_ = folder.meta();
  files_ = folder.files();
}

AdapterWeights::~AdapterWeights() = default;

std::uint64_t AdapterWeights::bytes_read() const { return parts_->merged.bytes_read(); }

std::string AdapterWeights::stored_type(const std::string& name) const {
  return parts_->merged.stored_type(name);
}

Tensor AdapterWeights::stored_rows(const std::string& name, std::int64_t row,
                                   std::int64_t rows) const {
  return parts_->merged.stored_rows(name, row, rows);
}

void AdapterWeights::copy_box(const std::string& name, const LocalPart& box,
                              const Tensor& into) const {
  parts_->merged.read(name, box, into);
}

}  // namespace tessera::hub
