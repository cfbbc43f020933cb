// What the trainer's tests share: a folder of their own, files, and the text of errors.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trainer_test {

/// A fresh folder that goes away with the object.
class Folder {
 public:
  Folder();
  Folder(Folder&&) = delete;
  ~Folder();
  const std::filesystem::path& path() const { return path_; }
  /// Writes a file (with its folders) and returns its path.
  std::string write(const std::string& name, std::string_view bytes) const;

 private:
  std::filesystem::path path_;
};

using Ids = std::vector<std::int64_t>;  // of tokens

/// Checks that the text contains the part, and shows both where it does not.
void has(const std::string& text, const std::string& part);

/// The text of the Error (input) that `call` throws; "" if it throws none. Other errors pass.
std::string input_error(const std::function<void()>& call);

std::string read_file(const std::filesystem::path& path);

struct Result {
  int code = -1;
  std::string out;
  std::string error;
};

/// Runs `tessera arguments` through a shell; `settings` are assignments in front of it.
Result run_program(const std::string& arguments, const std::string& settings = "");

}  // namespace trainer_test
