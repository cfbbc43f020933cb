module;
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
module tessera.checkpoint;

import tessera.base;
import :format;
import :torch;

namespace tessera::checkpoint_detail {
namespace {

class TorchFormat final : public CheckpointFormat {
 public:
  std::string described() const override { return "a folder with .metadata"; }
  bool recognises(const std::string& path) const override {
    std::error_code ignored;
    return std::filesystem::exists(std::filesystem::path(path) / ".metadata", ignored);
  }
  std::unique_ptr<TensorSource> open(const std::string& path) const override {
    return std::make_unique<TorchCheckpoint>(path);
  }
  bool can_write() const override { return true; }
  WrittenCounts write(const TensorSource& from, const std::string& folder,
                      const WriteOptions& /*options*/) const override {
    write_torch_checkpoint(from, folder);
    return {from.tensors().size(), from.scalars().size()};
  }
};

}  // namespace

std::unique_ptr<CheckpointFormat> torch_format() { return std::make_unique<TorchFormat>(); }

}  // namespace tessera::checkpoint_detail
