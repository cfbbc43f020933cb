export module tessera.app.commands:command_line;

import tessera.app.base;
import :tools;

// The command line.

export namespace tessera::app {

/// Runs the program and returns its exit code: 0 success, 1 the run failed, 2 the input is wrong,
/// 130 interrupted. Errors are printed once, on stderr. `tools`: commands that this program has;
/// without them it becomes the one that does.
int run_program(int argc, char** argv, const Tools* tools = nullptr);

}  // namespace tessera::app
