module;
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
module tessera.checkpoint;

import tessera.base;
import :format;
import :checkpoint_index;
import :reader;
import :save;

namespace tessera::checkpoint_detail {
namespace {

class TesseraFormat final : public CheckpointFormat {
 public:
  std::string described() const override { return "a folder with checkpoint.json"; }
  bool recognises(const std::string& path) const override {
    std::error_code ignored;
    return std::filesystem::exists(std::filesystem::path(path) / index_name, ignored);
  }
  std::unique_ptr<TensorSource> open(const std::string& path) const override {
    return std::make_unique<CheckpointReader>(path);
  }
  /// A run's weights are beside its optimizer's state.
  std::optional<std::string> weights_prefix() const override { return "model."; }
  bool can_write() const override { return true; }
  WrittenCounts write(const TensorSource& from, const std::string& folder,
                      const WriteOptions& /*options*/) const override {
    write_checkpoint(from, folder, from.meta());
    return {from.tensors().size(), from.scalars().size()};
  }
};

}  // namespace

std::unique_ptr<CheckpointFormat> tessera_format() { return std::make_unique<TesseraFormat>(); }

}  // namespace tessera::checkpoint_detail
