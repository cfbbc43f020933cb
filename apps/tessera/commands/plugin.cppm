module tessera.app.commands:plugin;

import tessera.app.base;
import :tools;

// `tessera plugin list | info NAME | check FILE... | new NAME`.

extern "C++" {  // not of this module
namespace CLI {
class App;
}
}

namespace tessera::app {

/// Adds the command to the program; each of its sub-commands sets `chosen` to what it does. `tools`
/// is called before a command that needs them.
void add_plugin_command(CLI::App& program, std::function<int()>& chosen,
                        std::function<const Tools&()> tools);

}  // namespace tessera::app
