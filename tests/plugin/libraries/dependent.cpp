// A plugin that needs a library (libfirst), which needs another one (libsecond).
#include <functional>
#include <memory>
#include <string>

import tessera.plugin;

#include "../greeter.hpp"

extern "C" const char* first_words();

namespace {

class Dependent : public Greeter {
 public:
  std::string greet() const override { return first_words(); }
};

}  // namespace

void register_plugin(tessera::plugin::Registrar& registrar) {
  registrar.add<Greeter>("Dependent",
                         [](const std::string&) { return std::make_unique<Dependent>(); });
}
