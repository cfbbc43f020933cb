module;
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.stores;
import tessera.models;
import tessera.checkpoint;
import tessera.exported;
import tessera.hub;
import tessera.runs;
import tessera.app.base;
import :model;

namespace tessera::app {
namespace {

constexpr int not_understood = 2;

struct ModelCommand {
  std::vector<std::string> plugins;
  std::string folder;
};

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

int run_list(const ModelCommand& arguments) {
  runs::use_plugins(arguments.plugins);
  TableRows rows{{"family", "class in transformers", "besides a Llama"}};
  const std::vector<std::string> built_in = models::built_in_families();
  for (const std::string& name : models::model_families()) {
    const bool own = std::ranges::find(built_in, name) != built_in.end();
    rows.push_back({name, models::model_family(name).architecture(),
                    own ? models::built_in_family(name).about : "(a plugin)"});
  }
  print(format_table(rows, ""));
  return 0;
}

/// "  hidden_size 64" for each key, with its value in the file.
std::string keys_text(const std::vector<std::string>& keys, const nlohmann::json& config) {
  std::string text;
  for (const std::string& key : keys) {
    text += fmt::format("  {} {}\n", key, terminal_line(json_text(config.at(key)), 100));
  }
  return text;
}

std::string section(const std::string& title, const std::string& lines) {
  return lines.empty() ? "" : title + "\n" + lines;
}

std::string use_text(const hub::ConfigUse& use, const nlohmann::json& config) {
  std::string problems;
  for (const std::string& problem : use.problems) {
    problems += fmt::format("  {}\n", terminal_line(problem, 400));
  }
  std::string absent;
  for (const std::string& key : use.keys.absent) {
    absent += absent.empty() ? "  " + key : ", " + key;
  }
  return section("understood, and part of the model", keys_text(use.keys.read, config)) +
         section("not there, so the family's default counts", absent.empty() ? "" : absent + "\n") +
         section("must have this value", keys_text(use.keys.fixed, config)) +
         section("without influence on what is computed", keys_text(use.keys.ignored, config)) +
         section("NOT understood", keys_text(use.keys.unknown, config)) +
         section("problems", problems);
}

/// The families that understand most of a file of another one.
std::string nearest_text(const hub::ConfigReport& report) {
  TableRows rows{{"family", "keys not understood", "problems"}};
  constexpr std::size_t shown_families = 5;
  for (const hub::ConfigUse& use : report.uses) {
    if (rows.size() > shown_families) {
      break;
    }
    rows.push_back({use.family, fmt::format("{}", use.keys.unknown.size()),
                    fmt::format("{}", use.problems.size())});
  }
  return format_table(rows, "  ");
}

/// What is in a program of torch.export, and whether a run can train it.
int describe_program(const std::string& path) {
  const OpenedTensors opened = open_tensors(path);
  const exported::ExportedGraph graph = exported::read_exported_graph(*opened.source);
  TableRows rows;
  for (const auto& [name, text] : exported::described(graph)) {
    rows.push_back({name, terminal_line(text, 400)});
  }
  print(format_table(rows, ""));
  std::string problem;
  try {
    const exported::TokenProgram program = exported::token_program(graph);
    print(fmt::format("model.from takes it: a model of the next token, vocabulary {}{}\n",
                      program.vocab, program.loss >= 0 ? ", with a loss of its own" : ""));
    return 0;
  } catch (const Error& error) {
    problem = error.what();
  }
  try {
    const exported::ClassProgram program = exported::class_program(graph);
    print(
        fmt::format("model.from takes it with train.objective=classification: {} classes of "
                    "texts\n",
                    program.classes));
    return 0;
  } catch (const Error&) {
    print(fmt::format("model.from does not take it: {}\n", terminal_line(problem, 1000)));
  }
  return not_understood;
}

int run_describe(const ModelCommand& given) {
  ModelCommand arguments = given;
  runs::use_plugins(arguments.plugins);
  const stores::LocalInput local(arguments.folder, {.choose = hub::leave_out_other_formats});
  arguments.folder = local.path();
  if (exported::is_program(arguments.folder)) {
    return describe_program(arguments.folder);
  }
  const hub::ConfigReport report = hub::describe_config(arguments.folder);
  const nlohmann::json config = parse_json(report.text);
  const hub::ConfigUse& use = report.uses.front();
  const std::string type = terminal_line(report.model_type);
  if (report.is_known) {
    print(fmt::format("model_type {}: the family of this name\n", type) + use_text(use, config));
    return use.problems.empty() && use.keys.unknown.empty() ? 0 : not_understood;
  }
  print(fmt::format("model_type {}: no family has this name\n"
                    "families that understand most of the file\n{}"
                    "beside '{}', which a file of the family could be `like` "
                    "(docs/family-files.md)\n",
                    type.empty() ? "is missing" : type, nearest_text(report), use.family) +
        use_text(use, config));
  return not_understood;
}

}  // namespace

void add_model_command(CLI::App& program, std::function<int()>& chosen) {
  const auto arguments = std::make_shared<ModelCommand>();
  CLI::App* const all = program.add_subcommand("model", "Families of models, and what they read");
  all->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, int (*run)(const ModelCommand&)) {
    CLI::App* const command = all->add_subcommand(name, help);
    command->callback([&chosen, arguments, run] { chosen = [=] { return run(*arguments); }; });
    command
        ->add_option(
            "--plugin", arguments->plugins,
            "Load this plugin or family file (a file or a folder of them); may be repeated")
        ->type_name("PATH")
        ->expected(1)
        ->take_all()
        ->allow_extra_args(false);
    return command;
  };
  add("list", "List the families of models", run_list);
  CLI::App* const describe =
      add("describe", "Say what of a folder's config.json is understood, missing or ignored",
          run_describe);
  describe
      ->add_option("FOLDER", arguments->folder,
                   "A model folder in Hugging Face's format, or a program of torch.export (*.pt2)")
      ->required();
  describe->footer(
      "The exit code is 0 if a run can train the model, and 2 if something in the file is\n"
      "not understood. Where no family has the name of model_type, the nearest ones are compared.");
}

}  // namespace tessera::app
