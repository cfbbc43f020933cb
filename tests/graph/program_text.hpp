// Programs that are written by hand: the text between the head and the end.
// Included after the import of tessera.program.
#pragma once
#include <string>

#include "texts.hpp"

namespace graph_test {

using tessera::testing::count;

inline const std::string program_head = "tessera program 2\nrank 0\n";

inline tessera::Program program(const std::string& body) {
  return tessera::Program::parse(program_head + body + "end\n");
}

inline std::string body_of(const tessera::Program& program) {
  const std::string text = program.to_text();
  return text.substr(program_head.size(), text.size() - program_head.size() - 4);
}

}  // namespace graph_test
