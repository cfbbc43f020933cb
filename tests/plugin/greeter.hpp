// A tiny kind for these tests; a real one is declared in a module. Include <functional>, <memory>
// and <string> first, then import tessera.plugin, then include this.
#pragma once

class Greeter {
 public:
  static constexpr tessera::plugin::Kind plugin_kind{"greeter", 2};
  using Factory = std::function<std::unique_ptr<Greeter>(const std::string&)>;
  virtual ~Greeter() = default;
  virtual std::string greet() const = 0;
};
