export module tessera.app.commands:program_file;

import tessera.program;
import tessera.app.base;

// Programs that were written by tessera graph capture, or with graph.program.

export namespace tessera::app {

/// The calling thread is the program's rank then: operators refuse groups without it.
/// Errors (input): the file cannot be read, is not a program, or is damaged.
tessera::Program read_program(const std::string& file);

}  // namespace tessera::app
