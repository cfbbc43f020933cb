export module tessera.checkpoint:weights;

import tessera.base;
import :source;

export namespace tessera {

struct ExportOptions {
  /// Only tensors whose names begin so are written, without it ("model." of a training state).
  std::string prefix = {};
  /// Patterns of names (without the prefix) that are left out.
  std::vector<std::string> exclude = {};
  /// Floating tensors are cast to it; default: as stored.
  std::optional<DType> dtype = std::nullopt;
};

/// Writes FOLDER/model.safetensors as transformers reads it, one tensor in memory at a time; the
/// caller writes config.json. An older file of that name stays whole until the new one is complete.
/// Returns the names that were written.
/// Error: no tensor is left to write, the disk is full (nothing is left behind then).
std::vector<std::string> export_weights(const TensorSource& from, const std::string& folder,
                                        const ExportOptions& options = {});

}  // namespace tessera
