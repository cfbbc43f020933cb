module tessera.sinks:command;

import tessera.base;
import tessera.options;
import :sink;

namespace tessera::sinks {

/// The sink `command`: a program that reads the events as lines of JSON.
std::unique_ptr<Sink> make_command_sink(PluginOptions& options);

}  // namespace tessera::sinks
