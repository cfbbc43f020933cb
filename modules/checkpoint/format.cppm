export module tessera.checkpoint:format;

import tessera.base;
import tessera.plugin;
import :source;

export namespace tessera {

/// Options of writing tensors in a format.
struct WriteOptions {
  /// A file has at most so many bytes of tensors, unless a single tensor has more, where the format
  /// can divide them. 0: one file.
  std::uint64_t max_file_bytes = 0;
};

/// How many of a source's tensors and scalars a format has stored.
struct WrittenCounts {
  std::size_t tensors = 0;
  std::size_t scalars = 0;
};

/// The plugin kind "format": how tensors are stored in files. Whatever reads or writes tensors of
/// any format (`checkpoint info`, `diff`, `convert` and `export`, model.from) uses this interface.
/// A built-in format is a folder of modules/checkpoint and a line in format.cpp; a plugin registers
///     registrar.add<CheckpointFormat>("numpy", [] { return std::make_unique<Numpy>(); });
/// A format of checkpoints. An opened source describes all tensors at once (TensorSource::tensors)
/// and reads any box of one when asked, so that a rank touches its own bytes only; stored types
/// that have no DType (quantised ones) are decoded while reading. Its methods are called from
/// several threads.
class CheckpointFormat {
 public:
  static constexpr plugin::Kind plugin_kind{"format"};
  using Factory = std::function<std::unique_ptr<CheckpointFormat>()>;

  virtual ~CheckpointFormat();
  /// The files by which it is recognised, for errors: "a folder with checkpoint.json".
  virtual std::string described() const = 0;
  /// Whether a file or folder has this format, by names and first bytes. Never throws.
  virtual bool recognises(const std::string& path) const = 0;
  /// Error (input) that names the file and the tensor: it is missing, cut or damaged.
  virtual std::unique_ptr<TensorSource> open(const std::string& path) const = 0;
  /// Prefix of the names of a model's weights; nothing: other programs choose the names.
  virtual std::optional<std::string> weights_prefix() const;
  /// Whether `write` works; false: the format can only be read (the default).
  virtual bool can_write() const;
  /// Writes all that the format can store of `from` into a new or empty folder, with one tensor in
  /// memory at a time. Errors (input): the folder is not empty, the format can only be read; (run):
  /// the disk is full. Nothing is left then.
  virtual WrittenCounts write(const TensorSource& from, const std::string& folder,
                              const WriteOptions& options) const;
};

/// The format of this name: a built-in one, or what a plugin provides. Safe to call from several
/// threads; the object is kept for the life of the process. Error (input): there is none (with the
/// nearest name).
const CheckpointFormat& checkpoint_format(std::string_view name);

/// The names of all formats: the built-in ones, in the order in which they are tried, then those of
/// plugins.
std::vector<std::string> checkpoint_formats();

/// Tensors of a file or folder, and the format that reads them.
struct OpenedTensors {
  std::string format;  // its name
  std::unique_ptr<TensorSource> source;
};

/// Opens what is at `path`, whatever its format. Error (input): it has none of these formats, or is
/// damaged.
OpenedTensors open_tensors(const std::string& path);

}  // namespace tessera

namespace tessera::checkpoint_detail {

// The built-in formats, each in the folder of its name.
std::unique_ptr<CheckpointFormat> tessera_format();
std::unique_ptr<CheckpointFormat> torch_format();
std::unique_ptr<CheckpointFormat> safetensors_format();

}  // namespace tessera::checkpoint_detail
