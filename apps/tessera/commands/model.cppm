module tessera.app.commands:model;

import tessera.app.base;

// `tessera model list | describe FOLDER`.

extern "C++" {  // not of this module
namespace CLI {
class App;
}
}

namespace tessera::app {

/// Adds the command to the program; each of its sub-commands sets `chosen` to what it does.
void add_model_command(CLI::App& program, std::function<int()>& chosen);

}  // namespace tessera::app
