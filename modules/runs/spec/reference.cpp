module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.options;

// Descriptions of the keys' table for people: names of types, ranges, sections.
namespace tessera::runs {
namespace {

struct TypeName {
  std::string operator()(const bool*) const { return "boolean"; }
  std::string operator()(const std::int64_t*) const { return "integer"; }
  std::string operator()(const double*) const { return "number"; }
  std::string operator()(const std::string*) const { return "text"; }
  std::string operator()(const std::vector<std::string>*) const { return "list of texts"; }
  std::string operator()(const Names*) const { return "text or list of texts"; }
  std::string operator()(const std::vector<std::int64_t>*) const { return "list of integers"; }
  std::string operator()(const std::vector<double>*) const { return "list of numbers"; }
  std::string operator()(const JsonText*) const { return "table"; }
  std::string operator()(const JsonList*) const { return "list of tables"; }
  std::string operator()(const WordField&) const { return "text"; }
};

}  // namespace

std::string type_name(const Slot& slot) { return std::visit(TypeName{}, slot); }

namespace {

bool has_words(const Key& key) { return !key.choices.empty() && !key.is_path; }

}  // namespace

std::string expected_text(const Key& key) {
  return has_words(key) ? expected_words(key.choices) : "a text";
}

std::string problem_of_text(const Key& key, const std::string& text, bool in_list) {
  constexpr std::size_t longest = std::size_t{1} << 16;  // of any path or pattern
  if (text.size() > longest) {
    return fmt::format("a text of at most {} bytes", longest);
  }
  if (text.find('\0') != std::string::npos) {
    return "a text without zero bytes";
  }
  if (text.empty() && (key.required || in_list)) {
    return "a text that is not empty";
  }
  return has_words(key) && std::ranges::find(key.choices, text) == key.choices.end()
             ? expected_text(key)
             : std::string();
}

std::vector<std::string> config_sections() {
  std::vector<std::string> names;
  for (const Key& key : config_keys()) {
    if (names.empty() || names.back() != key.section()) {
      names.push_back(key.section());
    }
  }
  return names;
}

}  // namespace tessera::runs
