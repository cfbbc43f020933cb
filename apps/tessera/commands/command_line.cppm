export module tessera.app.commands:command_line;

import tessera.app.base;

// The command line.

export namespace tessera::app {

/// Runs the program and returns its exit code: 0 success, 1 the run failed, 2 the input is wrong,
/// 130 interrupted. Errors are printed once, on stderr.
int run_program(int argc, char** argv);

}  // namespace tessera::app
