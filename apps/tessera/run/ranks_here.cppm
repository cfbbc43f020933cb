export module tessera.app.run:ranks_here;

import tessera.collective;
import tessera.app.base;

// Ranks that do something for a command, and what comes back of it.

export namespace tessera::app {

/// The bytes that rank 0 of some ranks returns; all of them run `run` at the same time, in
/// processes of this machine. Before any thread exists (see collective::launch). Error: a rank has
/// failed; its error was printed.
std::string text_of_ranks(const collective::LaunchOptions& options,
                          const std::function<std::string(collective::World&)>& run);

}  // namespace tessera::app
