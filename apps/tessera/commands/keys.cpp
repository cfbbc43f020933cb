#include "config/keys.hpp"

#include <cstdio>
#include <string>

#include "commands/commands.hpp"

namespace tessera::app {

int run_keys() {
  const std::string text = config_reference();
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace tessera::app
