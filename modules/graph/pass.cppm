export module tessera.graph:pass;

import tessera.base;
import tessera.record;

export namespace tessera::graph {

/// One way to improve a program. It leaves the bits of inputs and outputs, and the communication.
struct Pass {
  std::string name = {};
  std::string about = {};               // one sentence
  std::vector<std::string> after = {};  // passes that must have run before
  void (*run)(Program& program) = nullptr;
};

/// All passes, in the order in which they are useful.
const std::vector<Pass>& all_passes();
/// Error (input): unknown; the nearest name is offered.
const Pass& find_pass(const std::string& name);
std::vector<std::string> pass_names();

/// Errors (input): an unknown name; a pass that another one must precede.
void check_passes(std::span<const std::string> names);

/// What a pass has changed. Bytes: the most that are needed at once, inputs excepted.
struct PassReport {
  std::string name = {};
  int instructions_before = 0;
  int instructions_after = 0;
  std::int64_t peak_before = 0;
  std::int64_t peak_after = 0;
};

/// Runs the passes in this order. Before the first and after each one, the program is verified (see
/// verify), and each must leave the same values (see verify_same). Errors (input): an unknown name;
/// a pass that another one must precede. Errors: the program is wrong; a pass is wrong.
/// `dump`: a folder that gets the program before (00-recorded.txt) and after each pass
/// (01-dead.txt), and what differs, line by line (01-dead.diff). "": none.
std::vector<PassReport> run_passes(Program& program, std::span<const std::string> names,
                                   const std::string& dump = {});

}  // namespace tessera::graph
