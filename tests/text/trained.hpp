// The small model that tests of generation use. It has learned a few conversations and facts by
// heart, so that what it must say is known.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "support.hpp"

namespace generation_test {

/// The folder with stored results.
extern const std::string reference;

nlohmann::json conversation(const std::vector<std::string>& texts);

/// The folder with the exported model. It is trained once for all tests.
class Trained {
 public:
  Trained();

  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    folder_.write(name, text);
    return path(name);
  }
  static std::string succeed(const std::string& command);

  std::string checkpoint;
  std::string model;
  std::string long_model;  // the same, which may be used for texts of a million tokens

 private:
  trainer_test::Folder folder_;
  const std::vector<std::pair<std::string, std::string>> facts_ = {
      {"colour of grass", "green"}, {"colour of blood", "red"}, {"colour of night", "black"}};
};

const Trained& trained();

}  // namespace generation_test
