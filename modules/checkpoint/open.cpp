module;
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
module tessera.checkpoint;

import tessera.base;
import :index;
import :open;
import :safetensors;

namespace tessera {

OpenedTensors open_tensors(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored) && path.ends_with(".safetensors")) {
    return {TensorFormat::safetensors, std::make_unique<SafetensorsFile>(path)};
  }
  const auto has = [&](const char* name) { return fs::exists(fs::path(path) / name, ignored); };
  if (has(checkpoint_detail::index_name)) {
    return {TensorFormat::checkpoint, std::make_unique<CheckpointReader>(path)};
  }
  if (has(".metadata")) {
    return {TensorFormat::torch, std::make_unique<TorchCheckpoint>(path)};
  }
  if (has("model.safetensors") || has("model.safetensors.index.json")) {
    return {TensorFormat::safetensors, std::make_unique<SafetensorsFolder>(path)};
  }
  checkpoint_detail::check_no_parts(path);
  fail_input({.thing = path,
              .wrong = "it is not a checkpoint, and not a model (expected a folder with "
                       "checkpoint.json, .metadata, model.safetensors or "
                       "model.safetensors.index.json, or a .safetensors file)",
              .advice = "name the folder of one checkpoint or model"});
}

}  // namespace tessera
