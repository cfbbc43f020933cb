export module tessera.runs:run_lock;

import tessera.base;
import :spec;

// One run at a time writes a folder of checkpoints or a metrics file.

export namespace tessera::runs {

/// Holds lock files for a run: FOLDER/.lock, and .NAME.lock beside the metrics file NAME. The
/// system releases the lock when the process that took it ends, however it ends; a lock file that a
/// killed run has left is taken over.
class RunLock {
 public:
  /// Takes the lock of everything that the config's run writes, and makes folders that are missing.
  /// Error (input): another run holds one of them (the text says which process on which machine).
  /// Where the file system has no locks there is a warning.
  explicit RunLock(const RunSpec& config);
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  /// Removes the lock files, and folders that were made for them and are still empty.
  ~RunLock();

  /// For a process that was forked from the one that took the lock: it keeps nothing of it, so that
  /// the lock is one process's alone. Does nothing in the process that took it.
  void leave_to_owner();

 private:
  void take(const char* key, const std::filesystem::path& file);
  void release();

  std::vector<FileLock> held_;
  std::vector<std::filesystem::path> made_;  // folders, inner ones last
  int owner_ = 0;                            // a process
};

}  // namespace tessera::runs
