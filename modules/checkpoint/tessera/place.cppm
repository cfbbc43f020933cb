// Where a save writes before its folder gets its name.
module tessera.checkpoint:place;

import tessera.base;
import :mapped_file;

namespace tessera::checkpoint_detail {

/// Whether a save writes files of this name; it makes no folders.
bool is_of_save(const std::string& name);

/// Removes a checkpoint: the files that its index names, and the folder. As its first act the
/// folder loses its name, so that no part of a checkpoint is seen as one. Returns "", or the folder
/// that is still there, with the reason: the checkpoint, whole, or a rest of it.
std::string remove_checkpoint(const std::string& folder);

/// Completes removals in `folder` that were interrupted. Returns the folders that still exist, each
/// with the reason.
std::vector<std::string> complete_removals(const std::string& folder);

/// A new folder beside the one that is saved, locked, and removed with the object unless it was
/// renamed.
class TemporaryFolder {
 public:
  TemporaryFolder() = default;
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();

  /// Makes it beside `folder`, and removes what crashed saves have left there. `within`: see
  /// SaveOptions. Error (input): `folder` exists and is not a checkpoint.
  void make(const std::string& folder, std::shared_ptr<const HeldFolder> within = {});
  /// "" before make and after put_in_place.
  const std::string& path() const { return path_; }
  /// Gives it the name `folder`, as one step. All in it must be on the disk.
  void put_in_place(const std::string& folder);

 private:
  std::string path_;
  std::vector<std::string> made_;  // folders above it
  std::shared_ptr<const HeldFolder> within_;
  std::unique_ptr<FileLock> lock_;
};

}  // namespace tessera::checkpoint_detail
