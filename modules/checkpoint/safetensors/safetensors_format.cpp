module;
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
module tessera.checkpoint;

import tessera.base;
import :format;
import :safetensors;
import :weights;

namespace tessera::checkpoint_detail {
namespace {

namespace fs = std::filesystem;

bool is_file(const std::string& path) {
  std::error_code ignored;
  return path.ends_with(".safetensors") && fs::is_regular_file(path, ignored);
}

class SafetensorsFormat final : public CheckpointFormat {
 public:
  std::string described() const override {
    return "a folder with model.safetensors or model.safetensors.index.json, or a .safetensors "
           "file";
  }
  bool recognises(const std::string& path) const override {
    std::error_code ignored;
    return is_file(path) || fs::exists(fs::path(path) / "model.safetensors", ignored) ||
           fs::exists(fs::path(path) / "model.safetensors.index.json", ignored) || has_parts(path);
  }
  std::unique_ptr<TensorSource> open(const std::string& path) const override {
    if (is_file(path)) {
      return std::make_unique<SafetensorsFile>(path);
    }
    return std::make_unique<SafetensorsFolder>(path);
  }
  std::optional<std::string> weights_prefix() const override { return ""; }
  bool can_write() const override { return true; }
  WrittenCounts write(const TensorSource& from, const std::string& folder,
                      const WriteOptions& options) const override {
    return {export_weights(from, folder, {.max_file_bytes = options.max_file_bytes}).size(), 0};
  }
};

}  // namespace

std::unique_ptr<CheckpointFormat> safetensors_format() {
  return std::make_unique<SafetensorsFormat>();
}

}  // namespace tessera::checkpoint_detail
