export module tessera.checkpoint:weights;

import tessera.base;
import :source;

export namespace tessera {

struct ExportOptions {
  /// Only tensors whose names begin with it are written; it is removed from the names. The weights
  /// in a training state have "model.".
  std::string prefix = {};
  /// Patterns of names (without the prefix) that are not written.
  std::vector<std::string> exclude = {};
  /// Floating tensors are cast to it; default: as stored.
  std::optional<DType> dtype = std::nullopt;
};

/// Writes FOLDER/model.safetensors in the format of transformers, with one tensor in memory at a
/// time; the caller writes config.json. An older file of that name stays whole until the new one is
/// complete. Returns the names that were written.
/// Error: there is no tensor to write, a value is NaN or infinite in the written type, the disk is
/// full. No file is left then.
std::vector<std::string> export_weights(const TensorSource& from, const std::string& folder,
                                        const ExportOptions& options = {});

}  // namespace tessera
