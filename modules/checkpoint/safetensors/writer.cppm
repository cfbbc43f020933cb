export module tessera.checkpoint:writer;

import tessera.base;
import tessera.tensor;
import :source;

namespace tessera::checkpoint_detail {
struct WriterContent;
}

export namespace tessera {

/// Writes a safetensors file tensor by tensor, in any order; no more than one is in memory. What
/// remains without `finish` is an incomplete file: the caller removes it.
class SafetensorsWriter {
 public:
  /// Writes the header. Tensors with larger elements come first, so that all are aligned.
  /// Error: the file exists or cannot be written; a name or text that is not UTF-8.
  SafetensorsWriter(const std::string& path, const std::map<std::string, TensorInfo>& tensors,
                    const std::map<std::string, std::string>& metadata = {});
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter();

  /// Error: the name was not announced or was written before, another shape or type, a distributed
  /// tensor, the disk is full.
  void write(const std::string& name, const Tensor& values);
  /// Returns when all is on the disk. Error: a tensor is missing, the disk is full.
  void finish();
  /// Bytes of the whole file.
  std::uint64_t file_bytes() const;

 private:
  std::unique_ptr<checkpoint_detail::WriterContent> content_;
};

}  // namespace tessera
