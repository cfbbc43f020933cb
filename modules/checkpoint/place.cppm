// Where a save writes before its folder gets its name.
module tessera.checkpoint:place;

import tessera.base;
import :file;

namespace tessera::checkpoint_detail {

/// A new folder beside the one that is saved, locked, and removed with the object unless it was
/// renamed.
class TemporaryFolder {
 public:
  TemporaryFolder() = default;
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();

  /// Makes it beside `folder`, and removes what crashed saves have left there. Error (input):
  /// `folder` exists and is not a checkpoint.
  void make(const std::string& folder);
  /// "" before make and after put_in_place.
  const std::string& path() const { return path_; }
  /// Gives it the name `folder`, as one step. All in it must be on the disk.
  void put_in_place(const std::string& folder);

 private:
  std::string path_;
  std::unique_ptr<FileLock> lock_;
};

}  // namespace tessera::checkpoint_detail
