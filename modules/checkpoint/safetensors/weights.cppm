export module tessera.checkpoint:weights;

import tessera.base;
import :source;

export namespace tessera {

/// Options of writing safetensors.
struct ExportOptions {
  /// Only tensors whose names begin with it are written; it is removed from the names. The weights
  /// in a training state have "model.".
  std::string prefix = {};
  /// Patterns of names (without the prefix) that are not written.
  std::vector<std::string> exclude = {};
  /// Floating tensors are cast to it; default: as stored.
  std::optional<DType> dtype = std::nullopt;
  /// A file has at most so many bytes of tensors, unless a single tensor has more. 0: one file.
  std::uint64_t max_file_bytes = 0;
};

/// Writes FOLDER/model.safetensors in the format of transformers, or
/// model-00001-of-00003.safetensors and so on with model.safetensors.index.json, with one tensor in
/// memory at a time; the caller writes config.json. Older files of these names stay whole until all
/// new ones are complete. Returns the names that were written. Error: there is no tensor to write,
/// a value is NaN or infinite in the written type, the disk is full. No file is left then.
std::vector<std::string> export_weights(const TensorSource& from, const std::string& folder,
                                        const ExportOptions& options = {});

}  // namespace tessera
