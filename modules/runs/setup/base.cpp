module;
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
module tessera.runs;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import tessera.checkpoint;
import tessera.hub;

namespace tessera::runs {
namespace {

namespace fs = std::filesystem;

/// Whether a checkpoint can name it: its weights are stored there, bit for bit. Sums with low-rank
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
  return fs::absolute(path)
      .lexically_normal()
      .lexically_relative(fs::absolute(checkpoint_folder(folder, 0)).lexically_normal())
      .string();
}

}  // namespace

std::shared_ptr<const CheckpointBase> checkpoint_base(const Run& run, nn::Module& model) {
  const std::string& from = run.config.model.from;
  const CheckpointConfig& checkpoint = run.config.checkpoint;
  if (from.empty()) {
    return nullptr;
  }
  auto base = std::make_shared<CheckpointBase>();
  base->path = from;
  base->hash = run.base_hash;
  const bool trains_all = std::ranges::all_of(
      nn::whole_parameters(model),
      [](const nn::ParameterPointer& parameter) { return parameter->value.requires_grad(); });
  if (checkpoint.weights == SavedWeights::all || checkpoint.folder.empty() || trains_all ||
      !has_all_weights(from)) {
    return base;
  }
  base->relative = seen_from_checkpoint(from, checkpoint.folder);
  // Rows of new tokens are not the model's.
  base->tensors = hub::untrained_weights(model, hub::FolderWeights(from, run.shape).source());
  return base;
}

}  // namespace tessera::runs
