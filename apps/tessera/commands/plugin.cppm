// `tessera plugin list | info NAME | check FILE... | new NAME`.
#pragma once
#include <functional>

namespace CLI {
class App;
}

namespace tessera::app {

/// Adds the command to the program; each of its sub-commands sets `chosen` to what it does.
void add_plugin_command(CLI::App& program, std::function<int()>& chosen);

}  // namespace tessera::app
