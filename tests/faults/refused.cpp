#include <string>
#include <vector>

#include "catch.hpp"
#include "program.hpp"

namespace faults {

void is_refused(const RunFolder& folder, const std::vector<std::string>& arguments,
                const std::vector<std::string>& words) {
  const auto before = folder.listing();
  const Result result = run(folder, arguments);
  std::string command;
  for (const std::string& argument : arguments) {
    command += " " + argument;
  }
  INFO("tessera" << command << "\n" << result.error);
  CHECK(result.code == 2);
  CHECK(result.error.starts_with("error: "));
  CHECK(count(result.error, "error: ") == 1);
  CHECK(result.left_running == 0);
  for (const std::string& word : words) {
    INFO("expected: " << word);
    CHECK(result.error.find(word) != std::string::npos);
  }
  CHECK(folder.listing() == before);
}

void are_refused(const RunFolder& folder, const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    std::vector<std::string> arguments = {"train", "run.toml"};
    arguments.insert(arguments.end(), one.arguments.begin(), one.arguments.end());
    is_refused(folder, arguments, one.words);
  }
}

}  // namespace faults
