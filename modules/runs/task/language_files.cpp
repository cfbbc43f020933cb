module;
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
module tessera.runs;

import tessera.base;
import tessera.stores;
import tessera.tensor;
import tessera.nn;
import tessera.checkpoint;
import tessera.hub;

namespace tessera::runs {
namespace {

namespace fs = std::filesystem;

/// Whether a checkpoint can name it: its weights are stored there, bit for bit. Sums with
/// updates are computed when they are read, by rows that depend on the layout.
bool has_all_weights(const std::string& path) {
  if (!hub::is_checkpoint(path)) {
    return true;
  }
  const CheckpointReader reader(path, OpenFiles::when_read);
  return !reader.base() && hub::stored_updates(reader.meta(), path).empty();
}

/// The path, seen from a checkpoint in the folder.
std::string seen_from_checkpoint(const std::string& path, const std::string& folder) {
  if (stores::is_address(path) || stores::is_address(folder)) {
    return "";
  }
  return fs::absolute(path)
      .lexically_normal()
      .lexically_relative(fs::absolute(checkpoint_folder(folder, 0)).lexically_normal())
      .string();
}

}  // namespace

std::shared_ptr<const CheckpointBase> LanguageTask::checkpoint_base(const RunSpec& spec,
                                                                    const std::string& base_hash,
                                                                    nn::Module& model) const {
  const std::string& from = spec.model.from;
  const CheckpointConfig& checkpoint = spec.checkpoint;
  if (from.empty()) {
    return nullptr;
  }
  auto base = std::make_shared<CheckpointBase>();
  base->path = from;
  base->hash = base_hash;
  const bool trains_all = std::ranges::all_of(
      nn::whole_parameters(model),
      [](const nn::ParameterPointer& parameter) { return parameter->value.requires_grad(); });
  if (checkpoint.weights == SavedWeights::all || checkpoint.folder.empty() || trains_all ||
      !has_all_weights(from)) {
    return base;
  }
  base->relative = seen_from_checkpoint(from, checkpoint.folder);
  // Rows of new tokens are not the model's.
  base->tensors = hub::untrained_weights(model, hub::FolderWeights(from, shape_).source());
  return base;
}

void LanguageTask::check_files(const RunSpec& spec, nn::Module& model, bool values,
                               const std::string& base_hash) const {
  std::optional<hub::FolderWeights> weights;
  if (!spec.model.from.empty()) {
    StateDict named = hub::model_weights(model);
    at_key(spec, "model.from", [&] {
      weights.emplace(spec.model.from, shape_,
                      hub::FolderOptions{
                          .adds_tokens = spec.model.adds_tokens(),
                          .use = base_hash.empty() ? hub::BaseUse::values : hub::BaseUse::compared,
                          .base = spec.model.base});
      for (const nn::BufferPointer& buffer : nn::all_buffers(model)) {
        if (buffer->saved && weights->source().contains(buffer->name)) {
          named.tensors.emplace(buffer->name, buffer->value);
        }
      }
      check_weights(weights->source(), named, hub::weight_options(model));
      if (values) {
        check_weight_values(weights->source(), named);
      }
    });
  }
  if (!spec.model.adapter.empty()) {
    hub::check_takes_adapters(hub::family_of(shape_), hub::sizes_of(shape_),
                              hub::names_of(hub::updates_of(model)), spec.place("model.adapter"));
    at_key(spec, "model.adapter", [&] {
      hub::check_peft(spec.model.adapter, model, weights ? &weights->source() : nullptr, values);
    });
  }
}

}  // namespace tessera::runs
