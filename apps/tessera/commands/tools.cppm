export module tessera.app.commands:tools;

import tessera.plugin;
import tessera.app.base;
import :subcommands;

// Commands that most users of the program never need: another program has them, so that nobody who
// builds this one waits for them.

export namespace tessera::app {

struct Tools {
  int (*plan)(const TrainArguments& arguments, const PlanArguments& planned);
  int (*bench)(const BenchArguments& arguments);
  int (*bench_compare)(const TrainArguments& arguments, const BenchCompareArguments& compared);
  int (*roofline)(const std::string& file, const RooflineOptions& options);
  /// Prints what the checks of a usable plugin found, with their notes where they are wanted.
  /// Returns whether all passed.
  bool (*check_plugin)(const plugin::CheckReport& report, bool with_notes);
};

/// Replaces this process by the program tessera-tools in the same folder, with the same arguments.
/// Error (input): it does not exist.
[[noreturn]] void become_tools(char** words);

}  // namespace tessera::app
