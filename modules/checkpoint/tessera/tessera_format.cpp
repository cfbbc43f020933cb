module;
#include <memory>
#include <optional>
#include <string>
module tessera.checkpoint;

import tessera.base;
import :checkpoint_files;
import :format;
import :reader;
import :save;

namespace tessera::checkpoint_detail {
namespace {

class TesseraFormat final : public CheckpointFormat {
 public:
  std::string described() const override { return "a folder with checkpoint.json"; }
  bool recognises(const std::string& path) const override {
    try {
      return CheckpointFiles::at(path)->has_index();
    } catch (const Error&) {
      return false;
    }
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
