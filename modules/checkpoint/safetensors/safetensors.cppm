export module tessera.checkpoint:safetensors;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :source;

namespace tessera::checkpoint_detail {
struct SafetensorsContent;

/// Whether the folder has files of the name that PyTorch's writer gives a rank's parts.
bool has_parts(const std::string& folder);
/// Error (input): it has.
void check_no_parts(const std::string& folder);
}  // namespace tessera::checkpoint_detail

export namespace tessera {

/// A safetensors file (a u64 length, a JSON header, the bytes), mapped into memory. Types:
/// DTypeFacts::safetensors. The file must stay as it is while the object lives;
/// reading a part that another program has truncated meanwhile is an Error (input).
class SafetensorsFile : public TensorSource {
 public:
  /// Error (input) that names the file and the tensor: the file cannot be read or is truncated; the
  /// length or the JSON of the header is wrong; a name occurs twice; a type is unknown; a byte
  /// count does not match its shape; ranges overlap, leave gaps or do not end where the file ends;
  /// its tensors are parts of others, as PyTorch's writer of sharded safetensors says in the
  /// metadata.
  explicit SafetensorsFile(const std::string& path);

  /// The header's __metadata__.
  const std::map<std::string, std::string>& metadata() const;
  std::uint64_t file_bytes() const;
  /// A tensor's bytes as they are in the file; call check_intact() after reading them. Error
  /// (input): no such tensor.
  std::span<const std::byte> bytes(const std::string& name) const;
  /// Error (input): a part of the file that was read has been truncated.
  void check_intact() const;
  std::uint64_t bytes_read() const override;

 private:
  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override;

  std::shared_ptr<checkpoint_detail::SafetensorsContent> content_;
};

/// A model folder in the format of transformers: model.safetensors, or several files that
/// model.safetensors.index.json names for each tensor.
class SafetensorsFolder : public TensorSource {
 public:
  /// Error (input): there is neither of them, the index is wrong, a file is missing or wrong, a
  /// tensor is not in the file that the index names, or is also in another one; the folder has
  /// parts of tensors, which transformers prefers.
  explicit SafetensorsFolder(const std::string& folder);
  std::uint64_t bytes_read() const override;

 private:
  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override;

  std::map<std::string, std::shared_ptr<const SafetensorsFile>> opened_;  // by name
  std::map<std::string, const SafetensorsFile*> file_of_;                 // by tensor
};

/// "BF16" for bf16...
std::string_view safetensors_name(DType dtype);
std::optional<DType> dtype_from_safetensors(std::string_view name);

}  // namespace tessera
