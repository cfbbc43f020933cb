export module tessera.checkpoint:memory;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :source;

export namespace tessera {

/// Tensors in memory as a source, for whoever takes one: to write, to rename, to compare.
class TensorsInMemory : public TensorSource {
 public:
  /// By their names; plain tensors, which are not copied. `path`: what errors call the source.
  explicit TensorsInMemory(std::map<std::string, Tensor> tensors, std::string path = "memory");
  std::uint64_t bytes_read() const override;

 private:
  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override;

  std::map<std::string, Tensor> values_;
};

}  // namespace tessera
