module;
#include <cstdio>
#include <string>
module tessera.app.commands;

import tessera.app.generation;

namespace tessera::app {

int run_generate(const GenerateArguments& arguments) {
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
  if (generate_text(arguments.checkpoint, arguments.prompt, arguments.options, first).empty()) {
    write(arguments.prompt);  // the first token was an eos
  }
  write("\n");
  return 0;
}

}  // namespace tessera::app
