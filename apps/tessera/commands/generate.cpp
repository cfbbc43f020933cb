#include "generation/generate.hpp"

#include <cstdio>
#include <string>

#include "commands/commands.hpp"

import tessera.base;
import tessera.ops;

namespace tessera::app {

int run_generate(const GenerateArguments& arguments) {
  ops::set_threads(available_cores());
  const auto write = [](const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  const auto first = [&, begun = false](const std::string& text) mutable {
    if (!begun) {
      write(arguments.prompt);  // only once the checkpoint has proved readable
      begun = true;
    }
    write(text);
  };
  generate_text(arguments.checkpoint, arguments.prompt, arguments.options, first);
  write("\n");
  return 0;
}

}  // namespace tessera::app
