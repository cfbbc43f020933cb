export module tessera.checkpoint:select;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :source;

export namespace tessera {

/// Tensors of a source that are wanted, and their names and types.
struct TensorSelection {
  /// Only tensors whose names begin with it; it is removed from the names. The weights in a
  /// training state have "model.".
  std::string prefix = {};
  /// Patterns of names (without the prefix) that are left out.
  std::vector<std::string> exclude = {};
  /// Floating tensors are cast to it; default: as stored.
  std::optional<DType> dtype = std::nullopt;
};

/// Some tensors of another source, without its scalars: what is written in another format.
class SelectedTensors : public TensorSource {
 public:
  /// The source must outlive this. Error (input): it has no such tensor.
  explicit SelectedTensors(const TensorSource& from, const TensorSelection& selection = {});
  std::uint64_t bytes_read() const override;

 private:
  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override;

  const TensorSource& from_;
  std::string prefix_;
};

}  // namespace tessera
