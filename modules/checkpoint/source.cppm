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

/// The files of another model in which some tensors of a state have their values: a checkpoint
/// names them in place of storing these tensors.
struct CheckpointBase {
  std::string path;           // as the program that saved knew it
  std::string relative = {};  // the same, seen from the checkpoint's folder; empty: not known
  std::string hash;           // of its content, as the program that saved takes it
  /// The state's tensors that are not stored, with their types and shapes in the state.
  std::map<std::string, TensorInfo> tensors = {};

  /// Where it is: `path`, or else what `relative` names for this checkpoint, if that is there.
  std::string found_from(const std::string& checkpoint) const;
};

/// Named tensors (and scalars) in files; any box of a tensor can be read on its own.
class TensorSource {
 public:
  virtual ~TensorSource();

  /// The file or folder.
  inline const std::string& path() const { return path_; }
  inline const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  inline const std::map<std::string, StateDict::Scalar>& scalars() const { return scalars_; }
  /// A JSON object of what the files say besides: what save_checkpoint was given. Other programs'
  /// formats put what they have under the format's name ({"gguf": {...}}).
  inline const std::string& meta() const { return meta_; }
  /// The names of the files in which its tensors are.
  inline const std::vector<std::string>& files() const { return files_; }
  /// The names of what is neither a tensor nor a scalar.
  inline const std::vector<std::string>& left_out() const { return left_out_; }
  inline bool contains(const std::string& name) const { return tensors_.contains(name); }
  /// What a checkpoint names in place of tensors that it does not store; null: it has them all.
  inline const std::shared_ptr<const CheckpointBase>& base() const { return base_; }
  /// Error (input): no such tensor.
  const TensorInfo& info(const std::string& name) const;

  /// The type as it is stored, such as "Q4_K" where reading decodes it; default: info's.
  virtual std::string stored_type(const std::string& name) const;
  /// Rows of a matrix whose elements are stored in blocks of codes (stored_type) as these are:
  /// bytes u8 [rows, bytes of a row]. Those of a stack's matrices follow each other; codes run
  /// along the inputs of a matrix, so a stack [matrices, in, out] has rows of [out, in]. Undefined:
  /// they are stored otherwise, which a call for no rows tells. Error (input): no such tensor.
  virtual Tensor stored_rows(const std::string& name, std::int64_t row, std::int64_t rows) const;
  /// The layout that the tensor had when it was saved, such as "[Shard(0)] on mesh(shard=2)" or
  /// "plain"; "": the format does not say.
  virtual std::string saved_layout(const std::string& name) const;

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
  std::string meta_ = "{}";
  std::vector<std::string> files_;
  std::vector<std::string> left_out_;
  std::shared_ptr<const CheckpointBase> base_;
};

/// Whether values of one type may be read as another: the same type, or both floating.
inline constexpr bool can_cast(DType from, DType to) {
  return from == to || (is_floating(from) && is_floating(to));
}

}  // namespace tessera
