module tessera.app.commands:embed;

import tessera.app.base;

// `tessera embed MODEL`.

extern "C++" {  // not of this module
namespace CLI {
class App;
}
}

namespace tessera::app {

/// Adds the command to the program; it sets `chosen` to what it does.
void add_embed_command(CLI::App& program, std::function<int()>& chosen);

}  // namespace tessera::app
