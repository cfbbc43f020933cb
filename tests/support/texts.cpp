#include "texts.hpp"

#include <sstream>

#include "catch.hpp"

namespace tessera::testing {

void has(const std::string& text, const std::string& part) {
  INFO("'" << text << "' should contain '" << part << "'");
  CHECK(contains(text, part));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

int count(std::string_view text, std::string_view part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

}  // namespace tessera::testing
