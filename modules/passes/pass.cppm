export module tessera.passes:pass;

import tessera.base;
import tessera.plugin;
import tessera.program;

export namespace tessera::graph {

/// One way to improve a program, and the plugin kind "pass". It leaves the bits of inputs and
/// outputs, and the communication. In a plugin's register_plugin:
///     registrar.add<graph::Pass>("fold", [] {
///       return graph::Pass{.name = "fold", .about = "...", .run = fold}; });
struct Pass {
  static constexpr plugin::Kind plugin_kind{"pass"};
  using Factory = std::function<Pass()>;

  std::string name = {};
  std::string about = {};               // one sentence
  std::vector<std::string> after = {};  // passes that must have run before
  /// Of a built-in pass: it runs where nothing else is said. Those of plugins run where they are
  /// named.
  bool is_default = false;
  /// Changes the program; `known` describes it before. All ranks run the same passes on their own
  /// programs, so what changes the order of communication must follow from what all of them have in
  /// common.
  std::function<void(Program& program, const Analysis& known)> run = {};
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
/// The same, of names that were checked.
std::vector<PassReport> run_checked(Program& program, std::span<const std::string> names,
                                    const std::string& dump);

}  // namespace tessera::graph
