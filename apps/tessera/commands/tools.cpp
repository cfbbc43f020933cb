module;
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
module tessera.app.commands;

import tessera.base;
import :tools;

namespace tessera::app {

void become_tools(char** words) {
  const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe");
  const std::string tools = (here.parent_path() / "tessera-tools").string();
  ::execv(tools.c_str(), words);
  const int code = errno;
  fail_input({.thing = words[1],
              .wrong = "this command is in another program, which cannot be started",
              .expected = tools,
              .got = std::generic_category().message(code),
              .advice = "build it: ./dev build tools"});
}

}  // namespace tessera::app
