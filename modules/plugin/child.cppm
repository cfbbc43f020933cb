export module tessera.plugin:child;

import tessera.base;

export namespace tessera::plugin {

/// What a child process reported, and how it ended.
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
/// started. What `body` throws ends the process like any exception that nobody catches. Error
/// (run): no child can be started; `who` begins the text.
ChildResult run_in_child(const std::string& who, std::chrono::milliseconds limit,
                         const std::function<void(const SendReport& send)>& body);

}  // namespace tessera::plugin
