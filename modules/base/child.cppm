export module tessera.base:child;

import :standard;
import :waiting;

export namespace tessera {

/// Report of a child process, and how it ended.
struct ChildResult {
  std::string report;  // all that it sent before it ended
  /// How it ended before its body had returned: "did not end within 500 ms", "killed its process
  /// (signal 11, Segmentation fault)", "ended its process (exit code 3)". Empty: the body returned.
  std::string problem;
  bool late = false;  // it did not return in time
};

/// Appends to the report at once, so that what was sent survives the end of the process.
using SendReport = std::function<void(std::string_view text)>;

/// Runs `body` in a child process that reads and prints nothing and leaves no core file. After
/// `limit`, and when the body has returned, it is killed together with all processes that it has
/// started. What `body` throws ends the process like any exception that nobody catches. A log line
/// says after two seconds that `who` runs. Error (run): no child can be started; `who` begins the
/// text.
ChildResult run_in_child(const std::string& who, std::chrono::milliseconds limit,
                         const std::function<void(const SendReport& send)>& body);

/// How a program ended, and what it printed.
struct ProgramResult {
  int code = -1;       // its exit code; 128 + the signal that killed it; -1: it cannot be started
  std::string output;  // stdout and stderr; where it cannot be started: why
  bool late = false;   // it was killed after the limit
};

/// Runs a program (a path, or a name in PATH) with these arguments, which reads nothing. After
/// `patience` it is killed together with all processes that it has started. `what` and `then` are
/// for the report of a long wait (Patience::look). Safe where other threads run.
ProgramResult run_program(const std::vector<std::string>& arguments, Patience patience,
                          std::string_view what, std::string_view then);

}  // namespace tessera
