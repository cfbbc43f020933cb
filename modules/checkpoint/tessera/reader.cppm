export module tessera.checkpoint:reader;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :source;

namespace tessera::checkpoint_detail {
struct CheckpointContent;
}

export namespace tessera {

/// When a CheckpointReader opens the files of a checkpoint.
enum class OpenFiles : std::uint8_t {
  all,        ///< at once, and compares their headers: to know that the checkpoint can be read
  when_read,  ///< each when something of it is read: what a rank does, which needs only its own
};

/// A folder that save_checkpoint wrote: whole tensors, whatever mesh and layout they were saved
/// from. Any box can be read; no communication. Every byte that is read is compared with the hash
/// that was saved: a chunk of 1 MiB when it is first touched, and not again.
class CheckpointReader : public TensorSource {
 public:
  /// Error (input): no checkpoint, a wrong index; a file that is missing or not what the index
  /// says, or a tensor whose parts overlap or leave gaps, now or when they are read. `read`, too:
  /// bytes that do not have their hash.
  explicit CheckpointReader(const std::string& folder, OpenFiles open = OpenFiles::all);

  std::string saved_layout(const std::string& name) const override;
  /// Bytes of all files.
  std::uint64_t stored_bytes() const;
  /// How many of its files were opened so far.
  std::size_t files_opened() const;
  std::uint64_t bytes_read() const override;
  /// Opens the files that have something of a box and finds its parts, as `read` does, which then
  /// reads their values; how many parts. Error (input): as `read`, but for the values.
  std::size_t locate(const std::string& name, const LocalPart& box) const;
  /// Reads and compares all bytes. What is damaged, a line for each part of a tensor; empty when
  /// the checkpoint is whole.
  std::vector<std::string> verify() const;

 private:
  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override;

  std::shared_ptr<checkpoint_detail::CheckpointContent> content_;
};

}  // namespace tessera
