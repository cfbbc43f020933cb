export module tessera.graph:execution;

import tessera.base;
import tessera.record;

export namespace tessera::graph {

/// How programs are executed.
struct ExecutionOptions {
  std::string executor = "planned";
};

/// "interpreter" (Replay), "planned" (Planned).
std::vector<std::string> executor_names();
/// Error (input): there is no executor of this name.
void check(const ExecutionOptions& options);
/// Error (input): see check(). Error: the program is another rank's.
std::unique_ptr<Executor> make_executor(Program program, const ExecutionOptions& options = {});

}  // namespace tessera::graph
