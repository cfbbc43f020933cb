export module tessera.app.first_day:command;

import tessera.app.base;

export namespace tessera::app::first_day {

/// Runs the program: 0 everything has passed, 1 something has not, 2 the input is wrong.
int run_command(int argc, char** argv);

}  // namespace tessera::app::first_day
