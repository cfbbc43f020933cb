module;
#include <fmt/format.h>

#include <cstdio>
#include <string>
module tessera.app.commands;

import tessera.base;
import tessera.text;
import tessera.app.server;
import :subcommands;
import :text_commands;

namespace tessera::app {

int run_serve(const ServeArguments& arguments) {
  ServeOptions options = arguments.options;
  if (!arguments.token_file.empty()) {
    options.token = read_token(arguments.token_file);
  }
  const int code = use_model(arguments, [&](const text::TextModel& model) {
    serve(model, options, [&](int port) {
      const bool bare =
          options.host.find(':') != std::string::npos && !options.host.starts_with('[');
      fmt::print("listening at http://{}{}{}:{}/v1\n", bare ? "[" : "", options.host,
                 bare ? "]" : "", port);
      std::fflush(stdout);
    });
    return 0;
  });
  // An interrupt is how a server ends, also one that had to end its ranks within a pass.
  return code == exit_code_of(ErrorKind::interrupted) ? 0 : code;
}

}  // namespace tessera::app
