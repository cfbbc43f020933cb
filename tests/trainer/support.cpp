#include "support.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>

#include "catch.hpp"

import tessera.base;

namespace trainer_test {

Folder::Folder() {
  static std::atomic<int> count{0};
  path_ = std::filesystem::temp_directory_path() /
          ("tessera_trainer_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
  std::filesystem::create_directories(path_);
}

Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string Folder::write(const std::string& name, std::string_view bytes) const {
  const std::filesystem::path file = path_ / name;
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << bytes;
  return file.string();
}

void has(const std::string& text, const std::string& part) {
  INFO("'" << text << "' should contain '" << part << "'");
  CHECK(text.find(part) != std::string::npos);
}

std::string input_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const tessera::Error& error) {
    if (error.kind() != tessera::ErrorKind::input) {
      throw;
    }
    return error.what();
  }
  return "";
}

std::string read_file(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

Result run_program(const std::string& arguments, const std::string& settings) {
  const Folder folder;
  const std::string out = (folder.path() / "out").string();
  const std::string error = (folder.path() / "error").string();
  const std::string line = settings + TESSERA_PROGRAM " " + arguments + " >" + out + " 2>" + error;
  const int status = std::system(line.c_str());  // NOLINT(bugprone-command-processor)
  Result result{WEXITSTATUS(status), read_file(out), read_file(error)};
  static const std::regex said_twice("([A-Za-z_.']+): \\1: ");
  INFO(result.error);
  constexpr std::size_t enough = 4000;  // std::regex needs stack for each character
  CHECK(!std::regex_search(result.error.substr(0, enough), said_twice));
  return result;
}

}  // namespace trainer_test
