export module tessera.checkpoint:safetensors;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :source;

namespace tessera::checkpoint_detail {
struct SafetensorsContent;
}

export namespace tessera {

/// A safetensors file (a u64 length, a JSON header, the bytes), mapped into memory. Types: F32 F64
/// BF16 F16 I64 I32 U8 BOOL. The file must stay as it is while the object lives.
class SafetensorsFile : public TensorSource {
 public:
  /// Error (input) that names the file and the tensor: it cannot be read, is cut, its header's
  /// length or JSON is wrong, a name stands twice, an unknown type, byte counts that do not fit,
  /// ranges that overlap, leave gaps or end elsewhere than the file.
  explicit SafetensorsFile(const std::string& path);

  /// The header's __metadata__.
  const std::map<std::string, std::string>& metadata() const;
  std::uint64_t file_bytes() const;
  /// A tensor's bytes as they are in the file. Error (input): no such tensor.
  std::span<const std::byte> bytes(const std::string& name) const;
  std::uint64_t bytes_read() const override;

 private:
  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override;

  std::shared_ptr<checkpoint_detail::SafetensorsContent> content_;
};

/// A folder in Hugging Face's form: model.safetensors, or several files that
/// model.safetensors.index.json lists by tensor.
class SafetensorsFolder : public TensorSource {
 public:
  /// Error (input): neither is there, a wrong index, a file that is missing or wrong, a tensor that
  /// is not in the file that the index names.
  explicit SafetensorsFolder(const std::string& folder);
  std::uint64_t bytes_read() const override;

 private:
  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override;

  std::map<std::string, std::shared_ptr<const SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*> file_of_;  // by tensor
};

/// "BF16" for bf16...
std::string_view safetensors_name(DType dtype);
std::optional<DType> dtype_from_safetensors(std::string_view name);

}  // namespace tessera
