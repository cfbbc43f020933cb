export module tessera.app.base:process;

import :standard;

// Settings of the program's own process, made before it does anything.

export namespace tessera::app {

/// Raises a low stack limit (`ulimit -s`) as far as it may; Error (input) below 1 MiB. Opens
/// /dev/null in place of a closed stdin, stdout or stderr: the next file that is opened would
/// receive what is printed. A write beyond `ulimit -f` becomes an error of that write instead of a
/// signal that ends the process.
void prepare_process();

}  // namespace tessera::app
