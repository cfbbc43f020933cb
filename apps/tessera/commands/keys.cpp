module;
#include <cstdio>
#include <string>
module tessera.app.commands;

import tessera.app.config;

namespace tessera::app {

int run_keys() {
  const std::string text = config_reference();
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace tessera::app
