#include <functional>
#include <memory>
#include <string>

#include "catch.hpp"

import tessera.base;
import tessera.plugin;

#include "greeter.hpp"

using namespace tessera;

TEST_CASE("a plugin is found by kind and name, and loaded when it is asked for") {
  plugin::Host host({{LIBRARIES}, false, false});
  CHECK(host.loaded().empty());
  CHECK(host.find<Greeter>("Hello")("you")->greet() == "hello, you");
  REQUIRE(host.loaded().size() == 1);
  CHECK(host.loaded().front().name == "Hello");
}
