// A temporary folder of a test, and whole files.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::testing {

/// A new folder among the system's temporary ones. It is removed with the object.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  /// The path of a name in it; "" gives the folder's own path with a slash.
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  /// Writes a file, with the folders above it, and returns its path.
  std::string write(const std::string& name, std::string_view bytes) const;
  /// The names in it, sorted.
  std::vector<std::string> names() const;
  /// The paths of everything below it or below `inner`, relative to that folder, sorted.
  std::vector<std::string> names_below(const std::string& inner = "") const;

 private:
  std::filesystem::path path_;
};

/// The bytes of a file. Error (std::runtime_error): it cannot be read.
std::string read_file(const std::filesystem::path& path);
/// The same; "" where it cannot be read, as a file of /proc whose process has ended.
std::string read_if_there(const std::filesystem::path& path);

}  // namespace tessera::testing
