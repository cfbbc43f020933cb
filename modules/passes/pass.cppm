export module tessera.passes:pass;

import tessera.base;
import tessera.plugin;
import tessera.tensor;
import tessera.program;

export namespace tessera::graph {

/// A change of communication that a rank would make.
struct Proposal {
  CallGroup group = {};      // whose calls it changes
  std::uint64_t change = 0;  // equal on ranks that propose the same
};
/// Which of this rank's proposals all other ranks of their groups propose too. All ranks of a run
/// call it together, each with its own proposals.
using Agree = std::function<std::vector<bool>(std::span<const Proposal> proposals)>;
/// For programs that are only looked at: supposes that the other ranks are like this one.
std::vector<bool> suppose_agreement(std::span<const Proposal> proposals);

/// A pass that keeps memory to spare communication, where there is not memory for all of it.
struct PartialPass {
  /// Spares at most so many calls; all of them where `most` is negative. Returns how many.
  std::function<int(Program& program, int most)> spare = {};
  /// Spares as many as leave the program within the budget of memory (see planned_bytes).
  std::function<void(Program& program, std::int64_t budget)> within = {};
};

/// One way to improve a program, and the plugin kind "pass". It leaves the bits of inputs and
/// outputs, and the communication. What others must know of it, it declares: nobody asks for its
/// name. In a plugin's register_plugin:
///     registrar.add<graph::Pass>("fold", [] {
///       return graph::Pass{.name = "fold", .about = "...", .run = fold}; });
struct Pass {
  static constexpr plugin::Kind plugin_kind{"pass"};
  using Factory = std::function<Pass()>;

  std::string name = {};
  std::string about = {};               // one sentence
  std::vector<std::string> after = {};  // passes that must have run before
  /// For a built-in pass: it runs where nothing else is said. Those of plugins run where they are
  /// named.
  bool is_default = false;
  /// After it memories end as early as they can. A program is fitted into a budget of memory after
  /// the last such pass, and before those that follow it.
  bool ends_lifetimes = false;
  /// It only moves communication to other places, so it also runs on the programs that a step was
  /// split into.
  bool moves_communication = false;
  /// For a pass that keeps memory to spare communication, which it can do in part.
  std::optional<PartialPass> keeps = {};
  /// Changes the program; `known` describes it before. All ranks run the same passes on their own
  /// programs, so what changes the order of communication must follow from what all of them have in
  /// common.
  std::function<void(Program& program, const Analysis& known)> run = {};
  /// Instead of `run`, of a pass that changes communication where the program of this rank permits
  /// it: it makes only those changes that all ranks agree on.
  std::function<void(Program& program, const Analysis& known, const Agree& agree)> run_agreed = {};
};

/// The built-in passes, in the order in which they are useful.
const std::vector<Pass>& built_in_passes();
/// The built-in passes that run where nothing else is said.
std::vector<std::string> default_passes();
/// A built-in pass, or that of the plugin that offers it, which is found and loaded. Safe to call
/// from several threads. Errors (input): there is none (with all names), its plugin is refused;
/// (run): the plugin's pass has another name, or does nothing.
const Pass& find_pass(const std::string& name);
/// Those of plugins too, which are not loaded.
std::vector<std::string> pass_names();

/// The passes of these names without those that keep memory to spare communication.
std::vector<std::string> without_keeping(std::span<const std::string> names);

/// Errors (input): an unknown name; a pass that another one must precede.
void check_passes(std::span<const std::string> names);

/// Changes that a pass has made. Bytes: the most that are needed at once, inputs excepted.
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
/// `agree`: null: passes that need it change nothing.
std::vector<PassReport> run_passes(Program& program, std::span<const std::string> names,
                                   const std::string& dump = {}, const Agree& agree = {});
/// Runs passes whose names were checked.
std::vector<PassReport> run_checked(Program& program, std::span<const std::string> names,
                                    const std::string& dump = {}, const Agree& agree = {});

}  // namespace tessera::graph
