// A plugin as an author writes it.
#include <functional>
#include <memory>
#include <string>

import tessera.plugin;

#include "../greeter.hpp"

namespace {

class Hello : public Greeter {
 public:
  explicit Hello(std::string name) : name_(std::move(name)) {}
  std::string greet() const override { return "hello, " + name_; }

 private:
  std::string name_;
};

}  // namespace

void register_plugin(tessera::plugin::Registrar& registrar) {
  registrar.add<Greeter>("Hello",
                         [](const std::string& name) { return std::make_unique<Hello>(name); });
}
