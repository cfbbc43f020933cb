export module tessera.passes:run_changes;

import tessera.base;
import tessera.program;
import :change;
import :editor;

export namespace tessera::graph {

/// Changes that a pass has made. Bytes: the most that are needed at once, inputs excepted.
struct PassReport {
  std::string name = {};
  int instructions_before = 0;
  int instructions_after = 0;
  std::int64_t peak_before = 0;
  std::int64_t peak_after = 0;
};

/// Runs the passes in this order. Before the first and after each one, the program is verified (see
/// verify), and each must leave the same values (see verify_same). Errors (input): see
/// check_passes. Errors: the program is wrong; a pass is wrong.
/// `dump`: a folder that gets the program before (00-recorded.txt) and after each pass
/// (01-dead.txt), and what differs, line by line (01-dead.diff). "": none.
/// `agree`: null: passes that need it change nothing.
std::vector<PassReport> run_passes(Program& program, std::span<const std::string> names,
                                   const std::string& dump = {}, const Agree& agree = {});
/// Runs passes whose names were checked.
std::vector<PassReport> run_checked(Program& program, std::span<const std::string> names,
                                    const std::string& dump = {}, const Agree& agree = {});

/// Runs one change, whatever it keeps; one that only replaces modules does nothing here. Errors,
/// with its name: those that it throws; the program is not right afterwards (see verify), has lost
/// an output, or has an input that neither the step nor `state` has; a fact of it does not hold. An
/// input that the program has lost is kept as it is by the training.
void run_change(const Change& change, Program& program, AddedState& state, const Agree& agree = {});

/// Throws the error again, as one of this change.
[[noreturn]] void fail_in_change(const std::string& name, const Error& error);

}  // namespace tessera::graph
