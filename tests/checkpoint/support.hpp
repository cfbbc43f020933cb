// What the checkpoint's tests share. No module types here: headers come before imports.
#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace checkpoint_test {

/// A fresh folder that goes away with the object.
class Folder {
 public:
  Folder();
  Folder(const Folder&) = delete;
  ~Folder();
  /// The path of a name in it.
  std::string at(const std::string& name) const { return (path_ / name).string(); }
  /// Writes a file (with its folders) and returns its path.
  std::string write(const std::string& name, std::string_view bytes) const;
  /// The names in it, sorted.
  std::vector<std::string> names() const;

 private:
  std::filesystem::path path_;
};

std::string read_file(const std::string& path);

/// A safetensors file's bytes: the length, the header, `data` bytes of zeros.
std::string file_of(const std::string& header, std::size_t data);

/// The text of the Error (input) that `call` throws; "" if it throws none. Others pass.
std::string input_error(const std::function<void()>& call);
/// The text of the Error of kind run.
std::string run_error(const std::function<void()>& call);

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

/// Runs the ranks as threads that know their rank.
void on_ranks(int ranks, const std::function<void(int rank)>& run);

}  // namespace checkpoint_test
