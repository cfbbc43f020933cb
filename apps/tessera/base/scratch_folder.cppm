export module tessera.app.base:scratch_folder;

import tessera.base;

export namespace tessera::app {

/// A new folder among the system's temporary ones, which goes away with the object.
class ScratchFolder {
 public:
  /// `name`: a part of its name. Error: it cannot be made.
  explicit ScratchFolder(const std::string& name);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace tessera::app
