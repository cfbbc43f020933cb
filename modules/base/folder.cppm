export module tessera.base:folder;

import :standard;

export namespace tessera {

/// Makes a folder and those above it that are missing. Returns the ones that were made, outer ones
/// first. Error (input) that begins with `thing`: one of them cannot be made.
std::vector<std::string> make_folders(const std::string& folder, const std::string& thing);

/// A folder that is kept open, so that it is told from another one that gets its name.
class HeldFolder {
 public:
  /// Error (input): there is no such folder.
  explicit HeldFolder(const std::string& folder);
  HeldFolder(const HeldFolder&) = delete;
  HeldFolder& operator=(const HeldFolder&) = delete;
  ~HeldFolder();
  const std::string& path() const { return path_; }
  /// For openat and its like: the folder, wherever it has been moved to.
  int descriptor() const { return descriptor_; }
  /// Whether its name is no longer this folder's: it was removed, moved or replaced. False where
  /// the system cannot say.
  bool is_lost() const;

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// A folder that appears complete, or not at all. Files are written in `path()`.
class NewFolder {
 public:
  /// `folder`: its name; a link leads to where it is made. Error (input) that begins with it:
  /// something is there other than an empty folder, or it cannot be made.
  explicit NewFolder(const std::string& folder);
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  /// Removes what was written, unless it is complete.
  ~NewFolder();
  const std::string& path() const { return path_; }
  /// Brings its files to the disk and gives it its name. Error (run): the system refuses.
  void complete();

 private:
  void move_up();
  void remove_made();

  std::string folder_;             // as it was named
  std::string place_;              // where it will be
  std::string path_;               // where it is written; empty: complete
  bool within_ = false;            // an empty folder that is there keeps its mode and owner
  std::vector<std::string> made_;  // above it
};

/// Whether a file or folder may be removed; by its path relative to the folder.
using RemovableFile = std::function<bool(const std::string& path)>;

/// Why the files of a folder for which `removable` is true cannot be removed: one is immutable or
/// not a regular file, another file system is mounted below the folder, the folder is a link or
/// cannot be written. "" if nothing speaks against it.
std::string why_not_removable(const std::string& folder, const RemovableFile& removable);

/// Removes these files, these folders if they are empty then, and `folder`. Never follows a
/// link or enters another file system; nothing is removed when why_not_removable has an answer.
/// Returns "" when the folder is gone, or why it is not: also because there is something else in
/// it, which stays.
std::string remove_folder(const std::string& folder, const RemovableFile& removable);

}  // namespace tessera
