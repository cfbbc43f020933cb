#include "support.hpp"

#include <sys/wait.h>

#include <cstdlib>
#include <regex>

#include "catch.hpp"

namespace trainer_test {

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
