module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <tessera/json_reading.hpp>
#include <tessera/limits.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.collective;
import tessera.pipeline;
import tessera.runs;
import tessera.app.base;
import :command_tree;
import :embed;
import :model;
import :plugin;
import :stored_paths;
import :text_commands;
import :tools;

namespace tessera::app {
namespace {

void print_error(const std::string& text) {
  const bool colour = colour_on_stderr();
  // Not fmt::print, which throws when stderr is a terminal or a pipe that has gone.
  const std::string line =
      fmt::format("{}error:{} {}\n", colour ? "\x1b[1;31m" : "", colour ? "\x1b[0m" : "", text);
  std::fputs(line.c_str(), stderr);
}

/// The sub-commands of the program; each sets `chosen` to what it does.
class CommandLine {
 public:
  CommandLine(const Tools* tools, char** words) : tools_(tools), words_(words) {
    app_.set_version_flag("--version", "tessera " TESSERA_VERSION);
    app_.require_subcommand(1);
    app_.set_help_flag("--help,-h", "Print this help and exit");
    add_train();
    add_plan();
    add_text_commands(app_, chosen);
    add_data();
    add_replay();
    add_verify();
    add_bisect();
    add_checkpoint();
    add_bench();
    add_layout();
    add_pipeline();
    add_completion();
    add("doctor", "Show the resources and limits of this machine", [] { return run_doctor(); });
    add_plugins(
        *add("keys", "Print every key of the config with type, default and meaning (Markdown)",
             with_plugins([] { return run_keys(); })),
        plugins_);
    add_ops();
    add_trace();
    add_blackbox();
    add_runs();
    add_graph();
    add_model_command(app_, chosen);
    add_embed_command(app_, chosen);
    add_plugin_command(app_, chosen, [this]() -> const Tools& { return this->tools(); });
    check_paths(app_);
  }

  /// Throws Error (input) for a word in a command's or sub-command's place that is none.
  void check_commands(int count, const char* const* words) {
    std::string before;
    const CLI::App* at = &app_;
    for (int i = 1; i < count && words[i][0] != '-'; ++i) {
      const auto commands = at->get_subcommands([](const CLI::App*) { return true; });
      // A command with arguments of its own and sub-commands beside them finds what is wrong
      // itself.
      const auto takes_words = [](const CLI::Option* option) { return option->get_positional(); };
      if (commands.empty() || !at->get_options(takes_words).empty()) {
        return;
      }
      std::vector<std::string> names;
      names.reserve(commands.size());
      for (const CLI::App* command : commands) {
        names.push_back(command->get_name());
      }
      const auto named = std::ranges::find(names, words[i]);
      if (named == names.end()) {
        fail_input({.thing = fmt::format("{}{}", before, words[i]),
                    .wrong = fmt::format("unknown command{} (the commands are {})",
                                         did_you_mean(words[i], names), join_words(names))});
      }
      at = commands[static_cast<std::size_t>(named - names.begin())];
      before += *named + " ";
    }
  }

  CLI::App& app() { return app_; }
  std::function<int()> chosen;

 private:
  const Tools& tools() {
    if (tools_ == nullptr) {
      become_tools(words_);
    }
    return *tools_;
  }
  std::function<int()> with_tools(std::function<int()> run) {
    return [this, run = std::move(run)] {
      tools();
      return run();
    };
  }

  CLI::App* add(const char* name, const char* help, std::function<int()> run) {
    CLI::App* command = app_.add_subcommand(name, help);
    command->callback([this, run = std::move(run)] { chosen = run; });
    return command;
  }

  void add_train() {
    CLI::App* command = add("train", "Train the model that a config describes",
                            [this] { return run_train(train_, &print_error); });
    add_run(*command);
    command->add_flag("--dry-run", train_.dry_run, "Check everything, print the plan and stop");
    command->add_flag("--account", train_.account,
                      "As --dry-run, and print the work of a step by operator and collective");
    command
        ->add_option("--machines", train_.machine.machines,
                     "Start the command on so many machines, each with its number: together they "
                     "run the ranks")
        ->check(CLI::PositiveNumber);
    command->add_option("--machine", train_.machine.number, "The number of this machine, from 0")
        ->check(CLI::NonNegativeNumber);
    command
        ->add_flag("--spare", train_.spare,
                   "Wait until a machine of the run is lost, and take its place")
        ->excludes("--machine");
    command
        ->add_option("--meet", train_.machine.meet,
                     "Where the machines meet: the host of machine 0, and a free port of it")
        ->type_name("HOST:PORT");
    command
        ->add_option("--here", train_.machine.ranks,
                     "How many ranks this machine starts; without it, all start as many")
        ->check(CLI::PositiveNumber);
  }

  void add_plan() {
    CLI::App* command = add("plan", "Print a step in time, on ranks that need not be there",
                            [this] { return tools().plan(train_, plan_); });
    add_run(*command);
    command
        ->add_option(
            "--ranks", plan_.ranks,
            "Put the run on so many ranks: the first axis of its mesh grows, and the batch")
        ->check(CLI::PositiveNumber);
    command
        ->add_option("--hardware", plan_.hardware,
                     "A file with the rates of ranks and links; without it, kernels are measured "
                     "on this machine")
        ->type_name("FILE");
    command
        ->add_option("--failures-per-rank-year", plan_.failures,
                     "How often a rank fails; instead of the hardware file's [failures]")
        ->check(CLI::PositiveNumber);
    command->add_option("--page", plan_.page, "Write tables and pictures as an HTML page")
        ->type_name("FILE");
    command
        ->add_option("--compare", plan_.compare,
                     "A trace of such a run: print what was measured beside what is planned")
        ->type_name("TRACE");
    command->add_flag("--search", plan_.search,
                      "Find the mesh, the styles and the micro-batch with the shortest step");
    command->add_option("--save", plan_.save, "Of a search: write the best one as a config")
        ->type_name("FILE");
    command
        ->add_option("--try", plan_.tries,
                     "Of a search: run so many of the fastest candidates here, each for some "
                     "steps, and choose by that")
        ->check(CLI::PositiveNumber);
    command
        ->add_option("--precision", plan_.precisions,
                     "Of a search: values of train.precision that it may choose")
        ->delimiter(',')
        ->type_name("PRECISION,...");
    command
        ->add_option("--save-hardware", plan_.save_hardware,
                     "Write the rates of this machine to a file")
        ->type_name("FILE");
    command->add_option("--trace", plan_.trace, "Write the step as a trace of one rank")
        ->type_name("FILE");
    command
        ->add_option("--tokens", plan_.tokens,
                     "The tokens of a whole training, whose time and price are printed")
        ->check(CLI::PositiveNumber);
    CLI::Option* const json = command->add_flag("--json", plan_.json, "Print JSON");
    json->excludes("--page")->excludes("--compare");
  }

  /// Which run a command is about.
  void add_run(CLI::App& command) {
    command.add_option("CONFIG", train_.config, "The config of the run, a TOML file")->required();
    command.add_option(
        "OVERRIDES", train_.overrides,
        "KEY=VALUE pairs that replace keys of the config: train.steps=50 mesh.shape=[2,2]");
    add_plugins(command, train_.plugins);
  }

  static void add_plugins(CLI::App& command, std::vector<std::string>& paths) {
    command
        .add_option("--plugin", paths,
                    "Load this plugin (a file or a folder of them); may be repeated")
        ->type_name("PATH")
        ->expected(1)
        ->take_all()
        ->allow_extra_args(false);
  }

  /// A command whose model may be in a plugin.
  std::function<int()> with_plugins(std::function<int()> run) {
    return [this, run = std::move(run)] {
      runs::use_plugins(plugins_);
      return run();
    };
  }

  void add_graph() {
    CLI::App* command = app_.add_subcommand("graph", "Programs of captured steps");
    command->require_subcommand(1);
    CLI::App* capture = command->add_subcommand(
        "capture", "Write the program of a rank's step, for a mesh of any size, without training");
    add_run(*capture);
    capture->add_option("--to", capture_.to, "The file to write")->required();
    capture->add_option("--rank", capture_.rank, "The rank whose step it is")
        ->capture_default_str();
    capture
        ->add_option("--part", capture_.part,
                     "Of a step that leaves its update to the next one: the first step, one in the "
                     "middle, the last one, or the update that the last one has left")
        ->check(CLI::IsMember({"first", "middle", "last", "update"}));
    capture->callback(
        [this] { chosen = [this] { return run_graph_capture(train_, capture_, &print_error); }; });
    CLI::App* show = command->add_subcommand(
        "show", "Print the parts of a step in their order: phase, module, memory, collectives");
    show->add_option("FILE", recorded_, "The program file")->required();
    show->add_option("--module", show_.module, "Only this module and those within it");
    show->add_option("--depth", show_.depth, "How many parts of a module's name are told apart")
        ->check(CLI::Range(0, 100))
        ->capture_default_str();
    CLI::Option* all = show->add_flag("--all", show_.all, "Print the instructions themselves");
    show->add_flag("--json", show_.json, "Print JSON")->excludes(all);
    show->callback([this] { chosen = [this] { return run_graph_show(recorded_, show_); }; });
    CLI::App* diff = command->add_subcommand(
        "diff", "Print the instructions that differ; the exit status is 1 if there are any");
    diff->add_option("BEFORE", recorded_, "A program file")->required();
    diff->add_option("AFTER", other_recorded_, "Another one")->required();
    diff->callback(
        [this] { chosen = [this] { return run_graph_diff(recorded_, other_recorded_); }; });
    CLI::App* draw =
        command->add_subcommand("draw", "Draw a step as a picture: modules, collectives, memory");
    draw->add_option("FILE", recorded_, "The program file")->required();
    draw->add_option("--to", picture_, "The SVG file to write")->required();
    draw->callback([this] { chosen = [this] { return run_graph_draw(recorded_, picture_); }; });
    CLI::App* stats = command->add_subcommand(
        "stats", "Print the operators, the collectives by phase and group, and the peak of memory");
    stats->add_option("FILE", recorded_, "The program file")->required();
    stats->callback([this] { chosen = [this] { return run_graph_stats(recorded_); }; });
    add_roofline(*command);
  }

  void add_roofline(CLI::App& graph) {
    CLI::App* command = graph.add_subcommand(
        "roofline", "Print the least time of a step on a device of given rates, by operator");
    command->add_option("FILE", recorded_, "The program file")->required();
    DeviceRates& rates = roofline_.rates;
    const auto rate = [&](const char* name, double& value, const char* about) {
      command->add_option(name, value, about)
          ->check(CLI::PositiveNumber)
          ->capture_default_str()
          ->type_name("NUMBER");
    };
    rate("--word-products", rates.products_of_words,
         "FLOPs of products of operands of 32 bits in a second");
    rate("--products", rates.products, "Those of operands of 16 bits");
    rate("--byte-products", rates.products_of_bytes, "Those of operands of 8 bits");
    rate("--attention", rates.attention, "Those of attention");
    rate("--bandwidth", rates.bandwidth, "Bytes that kernels read and write in a second");
    rate("--link", roofline_.link, "Bytes that arrive from other ranks in a second");
    rate("--launch", rates.launch, "Seconds that each kernel adds to its work");
    rate("--memory", roofline_.memory, "Bytes of the device's memory");
    command
        ->add_option("--measure", roofline_.device,
                     "Also execute each kernel on this device (cpu, cuda:0) and print its time")
        ->type_name("DEVICE");
    add_plugins(*command, plugins_);
    command->add_flag("--json", roofline_.json, "Print JSON");
    command->callback([this] {
      chosen = with_tools(with_plugins([this] { return tools_->roofline(recorded_, roofline_); }));
    });
  }

  void add_data() {
    CLI::App* data = app_.add_subcommand("data", "Look at the data of a run");
    data->require_subcommand(1);
    CLI::App* show = data->add_subcommand(
        "show", "Print rows of the training as tokens with their ids, and what of them is trained");
    add_run(*show);
    show->add_option("--rows", show_data_.rows, "How many rows, from the first one on")
        ->check(CLI::Range(1, 10000))
        ->capture_default_str();
    show->add_option("--html", show_data_.html, "Write an HTML page to this file instead");
    show->callback([this] { chosen = [this] { return run_data_show(train_, show_data_); }; });
    CLI::App* check = data->add_subcommand(
        "check", "Read all data as a run does, and print what is in them or every fault");
    add_run(*check);
    check->callback([this] { chosen = [this] { return run_data_check(train_); }; });
    CLI::App* where = data->add_subcommand(
        "where", "Print the rows of a run's step: their places in files, by ranks");
    add_question(*where);
    add_step(*where);
    where->callback([this] { chosen = [this] { return run_data_where(asked_); }; });
    CLI::App* seen =
        data->add_subcommand("seen", "Print the steps of a run that have a row of its data");
    add_question(*seen);
    seen->add_option("PLACE", asked_.place, "FILE:LINE, or a place as 'data where' prints it")
        ->required();
    seen->callback([this] { chosen = [this] { return run_data_seen(asked_); }; });
  }

  void add_question(CLI::App& command) {
    command.add_option("RUN", asked_.run, "The folder of a run's checkpoints")->required();
    add_plugins(command, asked_.plugins);
    command.add_flag("--json", asked_.json, "Print JSON");
  }

  void add_step(CLI::App& command) {
    command.add_option("--step", asked_.step, "The step, from 1")->required()->type_name("NUMBER");
  }

  void add_replay() {
    CLI::App* command = add("replay", "Compute a step of a run again, and look at it",
                            [this] { return run_replay(asked_); });
    add_question(*command);
    add_step(*command);
    command->add_flag("--rows", asked_.rows, "The loss of each row, and the tokens that lost most");
    command->add_flag("--modules", asked_.modules,
                      "The norms of each module's outputs and their gradients");
    command
        ->add_option("--layout", asked_.layout,
                     "By the mesh and the [[parallel]] entries of this config, for a run with "
                     "train.reproducible=layout")
        ->type_name("CONFIG");
    command->add_option("--html", asked_.html, "Also write it as an HTML page to this file")
        ->type_name("FILE");
    add_record(*command);
  }

  /// What 'bisect' asks of the programs that it starts.
  void add_record(CLI::App& command) {
    command
        .add_option("--record", asked_.record,
                    "Record the calls of operators into this folder, for 'bisect'")
        ->type_name("FOLDER");
    command.add_option("--record-from", asked_.record_from, "From this step on")
        ->type_name("NUMBER");
    command.add_option("--record-as", asked_.record_as,
                       "'executed' (by each rank) or 'written' (with global values)");
    command
        .add_option("--record-values", asked_.record_values,
                    "Store the tensors of this call whole: the number of its rank, and its own")
        ->expected(2)
        ->type_name("NUMBER");
    command.add_flag("--from-beginning", asked_.from_beginning,
                     "From the beginning of the run instead of a checkpoint");
    command.add_flag("--captured", asked_.captured, "The recorded steps as a captured program");
    command.add_option("--device", asked_.device, "On this device instead of train.device");
  }

  void add_bisect() {
    CLI::App* command =
        add("bisect", "Name the first operator whose result differs between two runs or builds",
            [this] { return run_bisect(bisect_); });
    command->add_option("RUN", bisect_.first, "The folder of a run's checkpoints")->required();
    command->add_option("OTHER", bisect_.second, "That of another run of the same config");
    add_plugins(*command, bisect_.plugins);
    command->add_option("--step", bisect_.step, "At this step, from 1")->type_name("NUMBER");
    command
        ->add_option("--other-program", bisect_.other_program,
                     "The program of another build, which computes the second")
        ->type_name("PATH");
    command
        ->add_option("--layout", bisect_.layout,
                     "Compute the second by the mesh, the [[parallel]] entries and the plugins of "
                     "this config")
        ->type_name("CONFIG");
    command->add_option("--device", bisect_.device,
                        "Compute the second on this device, and the first on the CPU");
    command->add_option("--against", bisect_.against,
                        "'eager': the first as it is written, the second as a captured program");
    command->add_option("--tolerance", bisect_.tolerance,
                        "Results differ that are further apart than this part of their norm; 0: "
                        "whose bits differ");
    command->add_option("--keep", bisect_.keep, "Keep the recordings in this new folder")
        ->type_name("FOLDER");
    command->add_flag("--json", bisect_.json, "Print JSON");
  }

  void add_verify() {
    CLI::App* command = add("verify", "Repeat a run from its record, and compare every bit",
                            [this] { return run_verify(verified_); });
    command
        ->add_option("FOLDER", verified_.folder,
                     "The folder of a run, of its checkpoints, one checkpoint, or an export")
        ->required();
    add_plugins(*command, verified_.plugins);
    command->add_option("--steps", verified_.steps, "Only these steps, from 1")
        ->type_name("FIRST:LAST");
    command
        ->add_option("--layout", verified_.layout,
                     "By the mesh and the [[parallel]] entries of this config, for a run with "
                     "train.reproducible=layout")
        ->type_name("CONFIG");
    command
        ->add_option("--in", verified_.seen_from,
                     "Where relative paths of the record begin (default: where the run was "
                     "started, or here)")
        ->type_name("FOLDER");
    command->add_flag("--json", verified_.json, "Print JSON");
  }

  void add_ops() {
    CLI::App* command = add("ops", "List the operators: arguments, effects, layouts that propagate",
                            [this] { return run_ops(ops_); });
    command->add_option("NAME", ops_.name, "One operator, with everything about it");
    command->add_option("--arguments", ops_.values,
                        "The arguments for which layouts are listed: \"dim=1, keepdim=true\"");
  }

  void add_trace() {
    CLI::App* command =
        app_.add_subcommand("trace", "Describe the file that training with trace.file writes");
    command->require_subcommand(1);
    CLI::App* summary = command->add_subcommand(
        "summary", "Print the time by operator, module and collective, and who waited for whom");
    summary->add_option("FILE", trace_, "The trace file")->required();
    summary->callback([this] { chosen = [this] { return run_trace_summary(trace_); }; });
    CLI::App* draw = command->add_subcommand("draw", "Draw the ranks' timelines as an SVG");
    draw->add_option("FILE", trace_, "The trace file")->required();
    draw->add_option("--to", picture_, "The file to write")->required();
    draw->callback([this] { chosen = [this] { return run_trace_draw(trace_, picture_); }; });
  }

  void add_blackbox() {
    CLI::App* command =
        add("blackbox",
            "Say who failed, who waited for whom and who diverged, from the files of log.blackbox",
            [this] { return run_blackbox(boxes_); });
    command
        ->add_option("FILE", boxes_, "The files of a run, one of each machine, or folders of them")
        ->required();
  }

  void add_runs() {
    CLI::App* runs = add("runs", "Print a table of the runs in a folder",
                         [this] { return run_runs(recorded_, diff_.json); });
    runs->add_option("FOLDER", recorded_, "The folder; metrics files below it count too")
        ->required();
    runs->add_flag("--json", diff_.json, "As a JSON list");
    CLI::App* plot = add("plot", "Draw curves of runs, in the terminal and as an SVG (by gnuplot)",
                         [this] { return run_plot(plot_); });
    plot->add_option("RUN", plot_.runs, "Metrics files, or folders with one")->required();
    plot->add_option("--metric", plot_.metric, "The number that is drawn")
        ->check(CLI::IsMember({"loss", "validation_loss", "grad_norm", "lr", "tokens_per_second"}))
        ->capture_default_str();
    plot->add_option("--average", plot_.average, "Draw the mean of so many steps")
        ->check(CLI::Range(1, 1'000'000))
        ->capture_default_str();
    plot->add_option("--svg", plot_.svg, "Also write the picture to this file");
  }

  void add_bench() {
    CLI::App* command = add(
        "bench",
        "Measure this machine and this program, as ratios to a ceiling measured in the same run",
        with_tools(with_plugins([this] {
          return compared_.python.empty() ? tools_->bench(bench_)
                                          : tools_->bench_compare(train_, compared_);
        })));
    add_bench_compare(*command);
    command
        ->add_option("WHAT", bench_.what,
                     "gemm, kernels, device, dispatch, collectives, step, checkpoint, scale, "
                     "tokenizer, generate or serve; default: all but device")
        ->check(CLI::IsMember({"gemm", "kernels", "device", "dispatch", "collectives", "step",
                               "checkpoint", "scale", "tokenizer", "generate", "serve"}));
    command->add_option("--ranks", bench_.ranks, "bench scale: 64, 256, ... ranks, up to so many")
        ->check(CLI::Range(64, 1 << 16))
        ->capture_default_str();
    command
        ->add_option("--elements", bench_.elements,
                     "Elements of each operand of bench kernels and device; sorts and sampling "
                     "use a quarter")
        ->check(CLI::Range(1 << 14, 1 << 28))
        ->capture_default_str();
    command->add_option("--only", bench_.only,
                        "bench kernels, device: only those with this in their name");
    command->add_option("--device", bench_.device, "bench device: the one to measure, as cuda:0")
        ->capture_default_str();
    add_plugins(*command, plugins_);
    command->add_option("--tokenizer", bench_.tokenizer,
                        "bench tokenizer: a folder or file of one; default: bytes");
    command->add_option("--model", bench_.model,
                        "bench generate: a checkpoint or model folder; default: a Llama of 100 M");
    add_precision(*command, bench_.precision, bench_.activations, bench_.keys);
    command->add_flag("--json", bench_.json, "Print a JSON array of objects");
  }

  void add_bench_compare(CLI::App& bench) {
    CLI::App* command = bench.add_subcommand(
        "compare", "Train the same here and under PyTorch, in turn, and print the ratio");
    add_run(*command);
    command
        ->add_option("--python", compared_.python, "A Python with torch: a path, or a name in PATH")
        ->required();
    command->add_option("--steps", compared_.steps, "Steps of each round; the first 3 do not count")
        ->check(CLI::Range(5, 100000))
        ->capture_default_str();
    command->add_option("--rounds", compared_.rounds, "How often each of the two trains")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    command->add_flag("--compile", compared_.compile, "PyTorch's side by torch.compile");
    command->add_flag("--json", compared_.json, "Print JSON");
  }

  void add_layout() {
    CLI::App* command =
        add("layout", "Draw which rank holds which part of a tensor, and plan a redistribution",
            [this] { return run_layout(layout_); });
    command
        ->add_option("PLACEMENTS", layout_.placements,
                     "One placement per mesh axis: \"[Shard(0), Replicate]\"")
        ->required();
    command
        ->add_option("--mesh", layout_.mesh,
                     "The axes of the mesh: 2x2, or with names shard=2,tensor=2")
        ->required();
    command->add_option("--shape", layout_.shape, "The shape of the tensor: 8x6")->required();
    command->add_option("--to", layout_.to,
                        "Also draw this layout, and print the redistribution plan");
    command->add_option("--element-size", layout_.element_size, "Bytes per element, for the plan")
        ->check(CLI::Range(1, 16))
        ->capture_default_str();
    command->add_option("--svg", layout_.svg, "Also write the picture to this file");
  }

  void add_completion() {
    CLI::App* command = add(
        "completion", "Print a script that completes this program's commands in a shell", [this] {
          fmt::print("{}", completion_script(command_tree(app_), shell_));
          return 0;
        });
    command->add_option("SHELL", shell_, "The shell")
        ->required()
        ->check(CLI::IsMember({"bash", "zsh", "fish"}));
    add("manual", "Print the manual page, in the language of man(7)", [this] {
      fmt::print("{}", manual_page(command_tree(app_), TESSERA_VERSION));
      return 0;
    });
  }

  void add_pipeline() {
    CLI::App* command = app_.add_subcommand("pipeline", "Schedules of pipelines");
    command->require_subcommand(1);
    CLI::App* draw = command->add_subcommand(
        "draw", "Check a schedule and draw it: who computes what when, and the bubble");
    draw->add_option("SCHEDULE", pipeline_.schedule,
                     fmt::format("{}, or a file", fmt::join(pipeline::schedule_kind_names(), ", ")))
        ->required();
    const auto size = [&](const char* name, std::optional<int>& value, const char* about) {
      draw->add_option(name, value, about)->check(CLI::Range(1, 4096));
    };
    size("--ranks", pipeline_.ranks, "Ranks of the axis; default: 4");
    size("--stages-per-rank", pipeline_.stages_per_rank,
         "Parts of the model on each rank; default: the least that the schedule has");
    size("--micro-batches", pipeline_.micro_batches, "Micro-batches of a step; default: 8");
    const auto cost = [&](const char* name, double& value, const char* about) {
      draw->add_option(name, value, about)
          ->check(CLI::Range(0.0, 1e9))
          ->capture_default_str()
          ->type_name("NUMBER");
    };
    cost("--forward", pipeline_.forward, "Time of a forward through all stages of a rank");
    cost("--input-gradient", pipeline_.input_gradient, "That of the gradients of inputs");
    cost("--weight-gradient", pipeline_.weight_gradient, "That of the gradients of parameters");
    cost("--transfer", pipeline_.transfer, "That of a message between two ranks");
    draw->add_option("--times", pipeline_.times,
                     "Take the times of stages from this trace of a run, in milliseconds")
        ->excludes("--forward")
        ->excludes("--input-gradient")
        ->excludes("--weight-gradient");
    draw->add_option("--svg", pipeline_.svg, "Also write the picture to this file");
    draw->add_option("--table", pipeline_.table,
                     "Also write the schedule to this file, as a text that can be changed");
    draw->callback([this] { chosen = [this] { return run_pipeline_draw(pipeline_); }; });
  }

  void add_checkpoint() {
    CLI::App* command =
        app_.add_subcommand("checkpoint", "Inspect, verify, compare or convert checkpoints");
    command->require_subcommand(1);
    CLI::App* info = command->add_subcommand("info", "Print the contents of a checkpoint");
    info->add_option("PATH", checkpoint_, "The folder of a checkpoint or model")->required();
    info->add_flag("--json", diff_.json, "As one JSON object");
    add_plugins(*info, plugins_);
    info->callback([this] {
      chosen = with_plugins([this] { return run_checkpoint_info(checkpoint_, diff_.json); });
    });
    CLI::App* verify = command->add_subcommand(
        "verify", "Compare all bytes of a checkpoint with the hashes that were saved");
    verify
        ->add_option("PATH", checkpoint_,
                     "The folder of the checkpoint, or a folder of checkpoints")
        ->required();
    verify->callback([this] { chosen = [this] { return run_checkpoint_verify(checkpoint_); }; });
    CLI::App* out = command->add_subcommand(
        "export", "Write a model folder in the format of transformers, or as GGUF");
    out->add_option("PATH", export_.checkpoint,
                    "The folder of a checkpoint or a model folder, or a GGUF file")
        ->required();
    out->add_option("--to", export_.folder,
                    "The folder to write, or an address of a store; it must be new or empty")
        ->required();
    out->add_option("--base", export_.base,
                    "Where the base of the checkpoint is now, if it has moved");
    out->add_option("--dtype", export_.dtype,
                    "Type of the weights; default: that of the model, else float32")
        ->check(
            CLI::IsMember({"float32", "bfloat16", "float16", "float64", "q8_0", "q4_0", "q4_k_m"}));
    out->add_option("--merge", export_.merged,
                    "A folder of PEFT whose low-rank updates are merged with a model folder's "
                    "weights");
    out->add_option_function<std::string>(
           "--format", [this](const std::string& format) { export_.gguf = format == "gguf"; },
           "transformers (the default), or gguf: the file model.gguf")
        ->check(CLI::IsMember({"transformers", "gguf"}));
    add_file_size(out, export_.max_file_bytes);
    out->add_flag("--adapter", export_.adapter,
                  "Only the low-rank updates (LoRA), as a folder in the format of PEFT");
    out->add_flag("--no-tokenizer", export_.no_tokenizer,
                  "Without a tokenizer; else it is an error that there is none to write");
    add_plugins(*out, plugins_);
    out->callback(
        [this] { chosen = with_plugins([this] { return run_checkpoint_export(export_); }); });
    CLI::App* convert =
        command->add_subcommand("convert", "Write the tensors of a checkpoint in another format");
    convert
        ->add_option("PATH", convert_.from,
                     "A checkpoint, a model folder, a .safetensors file, a folder of "
                     "torch.distributed.checkpoint, or what a plugin's format reads")
        ->required();
    convert
        ->add_option("--to", convert_.to,
                     "The folder to write, or an address of a store; it must be new or empty")
        ->required();
    convert
        ->add_option("--format", convert_.format,
                     "Its format: tessera, safetensors, torch, or that of a plugin")
        ->required();
    add_file_size(convert, convert_.max_file_bytes);
    add_plugins(*convert, plugins_);
    convert->callback(
        [this] { chosen = with_plugins([this] { return run_checkpoint_convert(convert_); }); });
    CLI::App* diff = command->add_subcommand(
        "diff", "List the tensors that differ; the exit code is 1 when there are any");
    diff->add_option("FIRST", diff_.first, "A checkpoint or model, in any format")->required();
    diff->add_option("SECOND", diff_.second, "Another one")->required();
    diff->add_option("--base", diff_.base,
                     "Where the base of the checkpoints is now, if it has moved");
    diff->add_flag("--json", diff_.json, "As one JSON object");
    add_plugins(*diff, plugins_);
    diff->callback(
        [this] { chosen = with_plugins([this] { return run_checkpoint_diff(diff_); }); });
  }

  static void add_file_size(CLI::App* command, std::uint64_t& bytes) {
    command
        ->add_option("--max-file-size", bytes,
                     "Most bytes of tensors in a file of weights, such as 5GB; 0: one file")
        ->transform(CLI::AsSizeValue(true).description(""))
        ->type_name("SIZE")
        ->default_str("5GB");
  }

  const Tools* tools_;
  char** words_;
  CLI::App app_{"Tessera trains models that are distributed over a mesh of ranks.", "tessera"};
  TrainArguments train_;
  DataShowArguments show_data_;
  VerifyArguments verified_;
  QuestionArguments asked_;
  BisectArguments bisect_;
  OpsArguments ops_;
  BenchArguments bench_;
  std::vector<std::string> boxes_;
  BenchCompareArguments compared_;
  LayoutArguments layout_;
  PipelineArguments pipeline_;
  PlotArguments plot_;
  std::string checkpoint_;
  std::vector<std::string> plugins_;
  std::string trace_;
  std::string shell_;
  CaptureArguments capture_;
  std::string recorded_;
  std::string other_recorded_;
  GraphShowOptions show_;
  PlanArguments plan_;
  RooflineOptions roofline_;
  std::string picture_;
  ExportArguments export_;
  ConvertArguments convert_;
  DiffArguments diff_;
};

/// All that it prints is there, or that is the error.
int run_chosen(const std::function<int()>& chosen) {
  int code = 0;
  try {
    code = chosen();
  } catch (const std::system_error& error) {  // fmt's
    check_stdout(error.code().value());
    throw;
  }
  if (code == 0) {
    check_stdout();
  }
  return code;
}

}  // namespace

int run_program(int argc, char** argv, const Tools* tools) {
  try {
    prepare_process();
    CommandLine line(tools, argv);
    line.check_commands(argc, argv);
    try {
      line.app().parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() == 0) {
        return run_chosen([&] { return line.app().exit(error); });  // --help, --version
      }
      print_error(fmt::format("{} (see tessera --help)", shown(error.what(), 800)));
      return exit_code_of(ErrorKind::input);
    }
    return run_chosen(line.chosen);
  } catch (const collective::PeerFailed& error) {
    return exit_code_of(error.kind());  // it has been printed, here or by another rank
  } catch (const Error& error) {
    print_error(error.what());
    return exit_code_of(error.kind());
  } catch (const std::exception& error) {
    if (const std::string problem = json_problem(error); !problem.empty()) {
      print_error("a JSON document has another form than expected: " + problem);
      return exit_code_of(ErrorKind::input);
    }
    print_error(shown(reason_of(error), 800));
  }
  return exit_code_of(ErrorKind::run);
}

}  // namespace tessera::app
