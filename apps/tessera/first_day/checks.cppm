module tessera.app.first_day:checks;

import tessera.base;
import tessera.app.base;
import :pack;
import :pack_runs;

// The parts of a first day, what is most valuable first.

namespace tessera::app::first_day {

/// What an item has found.
struct Outcome {
  std::string status = "passed";  // see Result
  std::string problem = {};
  std::string facts = "{}";
};
/// Of a program that must end well.
Outcome outcome_of(const ProgramOutcome& ran);

struct Item {
  std::string name;
  double seconds = 0;  // its limit, before MachineSetup::scale
  /// Runs it, for at most so many seconds. Null: a call of the operator of this name, which the
  /// runner makes in a process that it shares with others.
  std::function<Outcome(double seconds)> run = {};
};

struct Part {
  std::string name;
  std::string about;
  double seconds = 0;  // its limit, before MachineSetup::scale
  int together = 1;    // so many of its items run at a time
  std::vector<Item> items;
};

/// All parts, in their order.
std::vector<Part> parts_of(const MachineSetup& here);

/// Items of the part "faults": what goes wrong, and NCCL.
std::vector<Item> fault_items(const MachineSetup& here);

}  // namespace tessera::app::first_day
