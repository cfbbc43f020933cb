// Another plugin that takes the name of libraries/hello.cpp's greeter.
#include <functional>
#include <memory>
#include <string>

import tessera.plugin;

#include "../greeter.hpp"

namespace {

class Impostor : public Greeter {
 public:
  std::string greet() const override { return "hello from the twin"; }
};

}  // namespace

void register_plugin(tessera::plugin::Registrar& registrar) {
  registrar.add<Greeter>("Hello", [](const std::string&) { return std::make_unique<Impostor>(); });
}
