export module tessera.checkpoint:torch;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :source;

namespace tessera::checkpoint_detail {
struct TorchContent;
}

export namespace tessera {

/// A folder of torch.distributed.checkpoint: `.metadata` and the files that it names. Values that
/// are numbers or texts are scalars; other objects that are not tensors are left out. Nothing in
/// the files is executed: the pickles in them may only build what PyTorch writes there.
class TorchCheckpoint : public TensorSource {
 public:
  /// Error (input) that names the file: it is missing, cut or damaged, a pickle has anything else,
  /// a type is unknown, the parts of a tensor overlap or leave gaps.
  explicit TorchCheckpoint(const std::string& folder);
  std::uint64_t bytes_read() const override;

 private:
  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override;

  std::shared_ptr<checkpoint_detail::TorchContent> content_;
};

/// Writes all tensors and scalars of a source as a folder that torch.distributed.checkpoint loads,
/// with one tensor in memory at a time. Error: the folder exists and is not empty, the disk is
/// full.
void write_torch_checkpoint(const TensorSource& from, const std::string& folder);

}  // namespace tessera
