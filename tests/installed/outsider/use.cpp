// outside FOLDER: checks every plugin in a folder with the installed library and uses the one of
// this project. Exit code 0 when nothing is refused.
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

import tessera.base;
import tessera.plugin;

#include "greeter.hpp"

int main(int argc, char** argv) {
  using namespace tessera;
  if (argc != 2) {
    return 2;
  }
  plugin::declare_kind<Greeter>();
  plugin::Host host({{argv[1]}, false, false});
  int refused = 0;
  for (const plugin::PluginFile& found : host.list()) {
    const plugin::CheckReport report = plugin::check_library(found.file);
    std::printf("%s: %s\n", found.file.c_str(), report.usable() ? "usable" : "refused");
    for (const std::string& why : report.found.refusals) {
      std::printf("  %s\n", why.c_str());
      ++refused;
    }
  }
  const std::string words = host.find<Greeter>("Outsider")("you")->greet();
  std::printf("%s\n", words.c_str());
  return refused == 0 && words == "from outside, you" ? 0 : 1;
}
