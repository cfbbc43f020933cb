// Does what the environment variable MISBEHAVE says; without it, it is a good plugin.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

import tessera.plugin;

#include "../greeter.hpp"

namespace {

bool told_to(std::string_view what) {
  const char* value = std::getenv("MISBEHAVE");
  return value != nullptr && what == value;
}

struct AtLoad {
  AtLoad() {
    if (told_to("throw in constructor")) {
      throw std::runtime_error("no luck");
    }
    if (told_to("crash in constructor")) {
      std::raise(SIGSEGV);
    }
    if (told_to("loop in constructor")) {
      for (;;) {
        pause();
      }
    }
    if (told_to("exit in constructor")) {
      _exit(0);
    }
  }
};
const AtLoad at_load;

class Plain : public Greeter {
 public:
  std::string greet() const override { return "as one should"; }
};

}  // namespace

void register_plugin(tessera::plugin::Registrar& registrar) {
  const auto factory = [](const std::string&) { return std::make_unique<Plain>(); };
  if (told_to("register nothing")) {
    return;
  }
  registrar.add<Greeter>("Misbehaving", factory);
  if (told_to("throw in register")) {
    throw std::runtime_error("no licence");
  }
  if (told_to("throw an int")) {
    throw 7;
  }
  if (told_to("register more")) {
    registrar.add<Greeter>("Unpromised", factory);
  }
  if (told_to("register twice")) {
    registrar.add<Greeter>("Misbehaving", factory);
  }
  if (told_to("register an empty factory")) {
    registrar.add<Greeter>("Empty", nullptr);
  }
}
