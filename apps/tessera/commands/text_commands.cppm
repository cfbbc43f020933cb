module tessera.app.commands:text_commands;

import tessera.app.base;

// The command lines of what is done with a trained model: `tessera generate`, `tessera chat`.

extern "C++" {  // not of this module
namespace CLI {
class App;
}
}

namespace tessera::app {

/// Adds the commands to the program; each sets `chosen` to what it does.
void add_text_commands(CLI::App& program, std::function<int()>& chosen);

/// Says on stderr why texts are made slowly (Decoding::slow_because); nothing where they are not.
void note_slow(const std::string& because);

}  // namespace tessera::app
