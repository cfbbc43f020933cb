// Parts of texts.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace tessera::testing {

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Checks that the text contains the part, and shows both where it does not. For one thread, as
/// all of Catch's assertions.
void has(const std::string& text, const std::string& part);

/// The lines of a text without their ends.
std::vector<std::string> lines_of(const std::string& text);

/// How often a part occurs.
int count(std::string_view text, std::string_view part);

}  // namespace tessera::testing
