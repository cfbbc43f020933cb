export module tessera.checkpoint:saver;

import tessera.base;
import tessera.tensor;
import :save;

namespace tessera::checkpoint_detail {
struct SaverContent;
}

export namespace tessera {

/// Bytes of the copy that CheckpointSaver keeps of a state: the parts that this rank writes. The
/// tensors may be on the meta device. Error: a tensor is Partial.
std::size_t snapshot_bytes(const StateDict& state);

/// Saves in the background: `start` copies what this rank writes, and a thread of the rank checks,
/// hashes and writes the copy while training continues. Its thread has a communicator of its own.
/// All ranks of the world call every method together, except `finished` and `saving`.
class CheckpointSaver {
 public:
  CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;
  /// Waits for the save that is running; an error of it that nobody has taken is a line of the log.
  ~CheckpointSaver();

  /// As save_checkpoint, but returns when the state was copied: it may be changed then. The memory
  /// of the copy is kept for the next save (MemoryCategory::snapshot); it is pinned for tensors of
  /// a device. Where there is none for it, one warning says so, and the function returns when the
  /// state was saved. Waits for the save before, whose result must have been taken by `finished` or
  /// `wait` if it is of interest. Errors of this save are thrown by those; by this function
  /// errors of the save before, and of a state that cannot be saved.
  void start(const std::string& folder, const StateDict& state, const std::string& meta_data = "{}",
             const SaveOptions& options = {});

  /// Whether a save of this rank is running. Ranks may differ.
  bool saving() const;
  /// Whether a save of any rank is running: the same answer on all ranks.
  bool saving_anywhere() const;
  /// The folder of a save that has ended since the last call of it or of `wait`; nothing while it
  /// is running. Never blocks. Error: what save_checkpoint would have thrown; other ranks throw it
  /// when they call this.
  std::optional<std::string> finished();
  /// Waits for the save, and returns what finished() does.
  std::optional<std::string> wait();

 private:
  std::unique_ptr<checkpoint_detail::SaverContent> content_;
};

}  // namespace tessera
