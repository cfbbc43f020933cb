module;
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/json.hpp>
#include <tessera/limits.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.app.first_day;

import tessera.base;
import tessera.plugin;
import tessera.app.base;
import :command;
import :gpu_facts;
import :pack;
import :pack_runs;
import :page;
import :results;
import :runner;

namespace tessera::app::first_day {
namespace {

namespace fs = std::filesystem;

constexpr double whole_day = 420;  // seconds

int print_error(const std::string& text, ErrorKind kind) {
  std::fprintf(stderr, "error: %s\n", text.c_str());
  return exit_code_of(kind);
}

/// Becomes the program words[0], which ends with the process that has started this one.
int become_bound(char** words) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (const char* const file = std::getenv("TESSERA_FIRST_DAY_PROCESS"); file != nullptr) {
    write_output("first day", file, std::to_string(getpid()));
  }
  ::execvp(words[0], words);
  std::fprintf(stderr, "error: %s: it cannot be started: %s\n", words[0],
               std::generic_category().message(errno).c_str());
  return 127;
}

struct Arguments {
  RunOptions options = {.seconds = whole_day};
  std::string results;
  std::vector<std::string> files;
  std::string to;
  std::string folder;
  bool small = false;
  PackFacts facts;
};

/// The folder of the pack that this program is in.
std::string pack_folder() {
  return fs::read_symlink("/proc/self/exe").parent_path().parent_path().string();
}

/// Error (input): machine code of this compiler ("nvcc 13.0") needs a driver of a later major
/// version than the one here (NVIDIA's "Minor Version Compatibility": CUDA 13.x needs 580).
void check_driver(const GpuFacts& gpus, const std::string& compiler) {
  const std::size_t digits = compiler.find_first_of("0123456789");
  const int built_by = digits == std::string::npos ? 0 : std::atoi(compiler.c_str() + digits);
  if (gpus.driver / 1000 < built_by) {
    fail_input({.thing = "GPU",
                .wrong = "NVIDIA's driver is too old for the pack's machine code",
                .expected = fmt::format("CUDA {} or later, as {} has made it", built_by, compiler),
                .got = cuda_version(gpus.driver),
                .advice = "install a newer driver (580 or later has CUDA 13), or make the pack "
                          "with an nvcc of the driver's major version, 12.8 or later"});
  }
}

int run(const Arguments& arguments) {
  const Pack pack = open_pack(pack_folder());
  const nlohmann::ordered_json facts = parse_ordered_json(pack.facts);
  const ScratchFolder scratch("first-day");
  const MachineSetup here{.pack = pack,
                          .scratch = scratch.path(),
                          .gpus = look_at_gpus(),
                          .small = facts.value("small", false),
                          .scale = std::max(1.0, arguments.options.seconds / whole_day)};
  check_driver(here.gpus, facts.value("compiler", ""));
  check_architectures(here.gpus, pack.architectures);
  nlohmann::ordered_json first = facts;
  first["gpu"] = here.gpus.gpus.front().name;
  ResultFile file(
      arguments.results.empty() ? pack.path("results/results.jsonl") : arguments.results,
      json_text(first));
  const bool passed = run_parts(here, file, arguments.options);
  print_progress(fmt::format("results: {} ({} KiB); ./run.sh report makes the page\n", file.path(),
                             (fs::file_size(file.path()) + 1023) / 1024));
  return passed ? 0 : 1;
}

int report(const Arguments& arguments) {
  std::string page;
  for (const std::string& file : arguments.files) {
    page += (page.empty() ? "" : "\n") + page_of(read_results(file));
  }
  if (arguments.to.empty()) {
    print_progress(page);
  } else {
    write_output("report", arguments.to, page);
    print_progress(fmt::format("page: {}\n", arguments.to));
  }
  return 0;
}

/// The commands, of which one sets `chosen`.
void add_commands(CLI::App& app, Arguments& arguments, std::function<int()>& chosen) {
  const auto add = [&](const char* name, const char* about, std::function<int()> body) {
    CLI::App* command = app.add_subcommand(name, about);
    command->callback([&chosen, body = std::move(body)] { chosen = body; });
    return command;
  };
  CLI::App* all =
      add("run", "Run all parts that have not passed yet", [&] { return run(arguments); });
  CLI::App* part = add("part", "Run one part again, or some of its items", [&] {
    arguments.options.again = true;
    return run(arguments);
  });
  part->add_option("PART", arguments.options.part, "Its name")->required();
  part->add_option("--only", arguments.options.only,
                   "Only items with this in their name, with all that they have found");
  for (CLI::App* command : {all, part}) {
    command
        ->add_option("SECONDS", arguments.options.seconds,
                     "Time for everything; more than 420 stretch all limits")
        ->check(CLI::Range(1.0, 1e6));
    command->add_option("--results", arguments.results, "The file of results");
  }
  CLI::App* page = add("report", "Make the page (Markdown) of files of results",
                       [&] { return report(arguments); });
  page->add_option("FILES", arguments.files)->required();
  page->add_option("--to", arguments.to, "A file for the page");
  CLI::App* record =
      add("record", "Make what GPUs are compared with, in the folder of a pack", [&] {
        record_references(arguments.folder, arguments.small);
        return 0;
      });
  CLI::App* seal = add("seal", "Write the list of a pack's files", [&] {
    arguments.facts.small = arguments.small;
    seal_pack(arguments.folder, arguments.facts);
    return 0;
  });
  for (CLI::App* command : {record, seal}) {
    command->add_option("FOLDER", arguments.folder)->required();
    command->add_flag("--small", arguments.small, "Sizes for the emulator");
  }
  seal->add_option("--commit", arguments.facts.commit)->required();
  seal->add_option("--architecture", arguments.facts.architectures, "Of the machine code");
  seal->add_option("--compiler", arguments.facts.compiler)->required();
  seal->add_option("--glibc", arguments.facts.glibc)->required();
}

}  // namespace

int run_command(int argc, char** argv) {
  if (argc > 2 && std::string_view(argv[1]) == "bound") {
    return become_bound(argv + 2);
  }
  try {
    prepare_process();
    set_log_level(LogLevel::error);  // a part that waits for its processes is no news
    Arguments arguments;
    std::function<int()> chosen;
    CLI::App app("What a pack does on a machine with a GPU (docs/first-gpu-day.md)",
                 "tessera-first-day");
    app.set_version_flag("--version", "tessera-first-day " + plugin::host_version());
    app.require_subcommand(1);
    add_commands(app, arguments, chosen);
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() == 0) {
        return app.exit(error);
      }
      return print_error(shown(error.what(), 800), ErrorKind::input);
    }
    return chosen();
  } catch (const Error& error) {
    return print_error(error.what(), error.kind());
  } catch (const std::exception& error) {
    return print_error(shown(reason_of(error), 800), ErrorKind::run);
  }
}

}  // namespace tessera::app::first_day
