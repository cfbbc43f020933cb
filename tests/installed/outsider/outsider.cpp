// A plugin that knows Tessera only by its installed package. Its kind is the one of tests/plugin.
#include <functional>
#include <memory>
#include <string>

import tessera.base;
import tessera.plugin;

#include "greeter.hpp"

namespace {

class Outsider : public Greeter {
 public:
  explicit Outsider(std::string name) : name_(std::move(name)) {
    if (name_.empty()) {
      tessera::fail_input("Outsider: needs a name");
    }
  }
  std::string greet() const override { return "from outside, " + name_; }

 private:
  std::string name_;
};

}  // namespace

void register_plugin(tessera::plugin::Registrar& registrar) {
  registrar.add<Greeter>("Outsider",
                         [](const std::string& name) { return std::make_unique<Outsider>(name); });
}
