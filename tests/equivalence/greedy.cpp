#include "greedy.hpp"

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace equivalence {

/// A tokenizer with the words t0, t1... for a model of token ids.
std::string words_tokenizer(const Folder& folder, int vocab) {
  nlohmann::json words;
  for (int id = 0; id < vocab; ++id) {
    words["t" + std::to_string(id)] = id;
  }
  const nlohmann::json tokenizer = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", nlohmann::json::array()},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
      {"post_processor", nullptr},
      {"decoder", nullptr},
      {"model", {{"type", "WordLevel"}, {"vocab", words}, {"unk_token", "t0"}}}};
  return folder.write("tokenizer.json", tokenizer.dump());
}

std::string prompt_of(const std::vector<int>& ids) {
  std::string prompt;
  for (const int id : ids) {
    prompt += "t" + std::to_string(id) + " ";
  }
  return prompt;
}

std::vector<std::vector<int>> continued(const std::string& command) {
  std::istringstream lines(succeed(command));
  std::vector<std::vector<int>> all;
  for (std::string line; std::getline(lines, line);) {
    all.push_back(nlohmann::json::parse(line)["tokens"].get<std::vector<int>>());
  }
  return all;
}

}  // namespace equivalence
