module;
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <string>
module tessera.app.commands;

import tessera.base;
import tessera.app.generation;
import tessera.app.server;
import :subcommands;
import :text_commands;

namespace tessera::app {
namespace {

std::string token_of(const std::string& path) {
  std::ifstream file(path);
  std::string token;
  std::getline(file, token);
  if (!file || token.empty()) {
    fail_input({.thing = path, .wrong = "the file of the token cannot be read, or is empty"});
  }
  return token;
}

}  // namespace

int run_serve(const ServeArguments& arguments) {
  ServeOptions options = arguments.options;
  if (!arguments.token_file.empty()) {
    options.token = token_of(arguments.token_file);
  }
  return use_model(arguments, [&](const TextModel& model) {
    serve(model, options, [&](int port) {
      fmt::print("listening at http://{}:{}/v1\n", options.host, port);
      std::fflush(stdout);
    });
    return 0;
  });
}

}  // namespace tessera::app
