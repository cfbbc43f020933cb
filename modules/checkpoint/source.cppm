export module tessera.checkpoint:source;

import tessera.base;
import tessera.placement;
import tessera.tensor;

export namespace tessera {

/// The description of a stored tensor.
struct TensorInfo {
  DType dtype = DType::f32;
  Dims shape;
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

/// Named tensors (and scalars) in files; any box of a tensor can be read on its own.
class TensorSource {
 public:
  virtual ~TensorSource();

  /// The file or folder.
  inline const std::string& path() const { return path_; }
  inline const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  inline const std::map<std::string, StateDict::Scalar>& scalars() const { return scalars_; }
  inline bool contains(const std::string& name) const { return tensors_.contains(name); }
  /// Error (input): no such tensor.
  const TensorInfo& info(const std::string& name) const;

  /// Copies the box (global indices) of a tensor into `into`, a plain tensor of the box's shape
  /// with any strides; only the box's bytes are touched. Floating values are cast to into's type.
  /// Error (input): no such tensor, a box outside of it, another shape, types that cannot be cast.
  void read(const std::string& name, const LocalPart& box, const Tensor& into) const;
  /// A whole tensor in fresh memory.
  Tensor read(const std::string& name) const;

  /// Bytes of tensors that `read` has copied from the files.
  virtual std::uint64_t bytes_read() const = 0;

 protected:
  explicit TensorSource(std::string path);
  TensorSource(const TensorSource&) = default;
  TensorSource& operator=(const TensorSource&) = default;
  TensorSource(TensorSource&&) = default;
  TensorSource& operator=(TensorSource&&) = default;

  /// `read` after its checks; the box is not empty.
  virtual void copy_box(const std::string& name, const LocalPart& box,
                        const Tensor& into) const = 0;

  std::string path_;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, StateDict::Scalar> scalars_;
};

/// Whether values of one type may be read as another: the same type, or both floating.
inline constexpr bool can_cast(DType from, DType to) {
  return from == to || (is_floating(from) && is_floating(to));
}

}  // namespace tessera
