module;
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.options;
import tessera.plugin;
import tessera.sinks;
import tessera.tensor;
import tessera.passes;
import tessera.nn;
import tessera.models;
import tessera.optim;
import tessera.parallel;
import tessera.app.base;
import tessera.app.plugin_template;
import :plugin;
import :tools;

namespace tessera::app {
namespace {

namespace fs = std::filesystem;
using plugin::CheckReport;
using plugin::PluginFile;
using plugin::Stamp;

constexpr int wrong_input = 2;

constexpr const char* order_of_search =
    "Plugins are searched in this order:\n"
    "  1. --plugin PATH and the config's plugins.paths (files or folders)\n"
    "  2. TESSERA_PLUGIN_PATH: absolute paths of files or folders, separated by ':'\n"
    "  3. $XDG_DATA_HOME/tessera/plugins, or ~/.local/share/tessera/plugins\n"
    "  4. lib/tessera/plugins of the installation\n"
    "Never in the working directory. A file that others can write is refused. Two different files\n"
    "that provide the same name are an error when that name is used.";

struct PluginArguments {
  std::vector<std::string> paths;  // --plugin
  std::string name;
  std::vector<std::string> files;
  std::string kind = "style";
  std::string folder = ".";
  bool gates_only = false;
  bool deviations = false;
  std::function<const Tools&()> tools;  // of this program, or it becomes the one that has them
};

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

std::string offers_of(const Stamp& stamp, bool with_kind) {
  std::string text;
  for (const plugin::Offer& offer : stamp.provides) {
    text += (text.empty() ? "" : " ") + (with_kind ? offer.kind + " " : "") + offer.name;
  }
  return text;
}

std::string kinds_of(const Stamp& stamp) {
  std::string text;
  for (const std::string& kind : stamp.kinds()) {
    text += (text.empty() ? "" : " ") + kind;
  }
  return text;
}

/// The host of these paths; a path that is not there is the user's mistake.
plugin::SearchOptions search_of(const PluginArguments& arguments) {
  for (const std::string& path : arguments.paths) {
    std::error_code ignored;
    if (!fs::exists(path, ignored)) {
      fail_input(
          {.thing = fmt::format("plugin {}", path), .wrong = "there is no such file or folder"});
    }
  }
  return {.paths = arguments.paths};
}

/// A line for each name that several usable files of different content provide.
std::vector<std::string> conflicts_of(const std::vector<PluginFile>& all) {
  std::vector<std::string> lines;
  for (auto a = all.begin(); a != all.end(); ++a) {
    for (auto b = a + 1; b != all.end(); ++b) {
      if (!a->stamp || !b->stamp || !a->refusals.empty() || !b->refusals.empty() ||
          a->stamp->digest == b->stamp->digest) {
        continue;
      }
      for (const plugin::Offer& offer : a->stamp->provides) {
        if (std::ranges::find(b->stamp->provides, offer) != b->stamp->provides.end()) {
          lines.push_back(fmt::format("{} '{}': provided by {} and by {}; remove one of them",
                                      offer.kind, offer.name, a->file, b->file));
        }
      }
    }
  }
  return lines;
}

int run_list(const PluginArguments& arguments) {
  const std::vector<PluginFile> all = plugin::Host(search_of(arguments)).list();
  if (all.empty()) {
    print(fmt::format("No plugin was found.\n{}\n", order_of_search));
    return 0;
  }
  TableRows rows{{"name", "kind", "version", "state", "provides", "file"}};
  for (const PluginFile& found : all) {
    const Stamp stamp = found.stamp.value_or(Stamp{});
    const std::string state =
        !found.refusals.empty() ? "refused" : (found.loaded ? "loaded" : "usable");
    rows.push_back(
        {stamp.name.empty() ? "?" : stamp.name, stamp.provides.empty() ? "?" : kinds_of(stamp),
         stamp.version.empty() ? "?" : stamp.version, state, offers_of(stamp, false), found.file});
  }
  std::string text = format_table(rows, "");
  for (const PluginFile& found : all) {
    if (!found.refusals.empty()) {
      text += fmt::format("\n{} is refused:\n", found.file);
    }
    for (const std::string& why : found.refusals) {
      text += fmt::format("  {}\n", one_line(why));
    }
  }
  for (const std::string& line : conflicts_of(all)) {
    text += "\n" + line + "\n";
  }
  print(text);
  return 0;
}

/// The file of the plugin that has this name, provides it, or is it.
std::string file_of(const PluginArguments& arguments) {
  if (arguments.name.find('/') != std::string::npos || arguments.name.ends_with(".so")) {
    return arguments.name;
  }
  std::vector<std::string> known;
  std::string refused;
  for (const PluginFile& found : plugin::Host(search_of(arguments)).list()) {
    if (!found.stamp) {
      refused += fmt::format("; {} cannot be read as one", found.file);
      continue;
    }
    known.push_back(found.stamp->name);
    for (const plugin::Offer& offer : found.stamp->provides) {
      known.push_back(offer.name);
    }
    if (std::ranges::find(known, arguments.name) != known.end()) {
      return found.file;
    }
  }
  std::ranges::sort(known);
  known.erase(std::unique(known.begin(), known.end()), known.end());
  fail_input(
      {.thing = fmt::format("plugin {}", arguments.name),
       .wrong = fmt::format("not found (known: {}){}{}", known.empty() ? "none" : join_words(known),
                            did_you_mean(arguments.name, known), refused),
       .advice = "tessera plugin list shows all"});
}

/// The options that an object of this kind reads, asked of a fresh one.
template <class Interface, class Options>
std::string options_of(const std::string& file, const plugin::Offer& offer) {
  plugin::Host host({{}, false, false});
  host.load(file);
  Options options("{}", offer.name);
  std::string failure;
  try {
    host.find<Interface>(offer.name)(options);
  } catch (const Error& error) {
    failure = fmt::format("  without options it says: {}\n", error.what());
  }
  TableRows rows;
  for (const OptionUse& use : options.asked()) {
    rows.push_back({use.name, use.expected, "default " + use.otherwise});
  }
  std::istringstream lines(format_table(rows));
  std::string text;
  for (const OptionUse& use : options.asked()) {
    std::string line;
    std::getline(lines, line);
    text += line + "\n";
    text += use.doc.empty() ? "" : wrap_text(terminal_text(use.doc), "      ", "      ") + "\n";
  }
  return fmt::format("\nOptions of {} {}{}\n{}{}", offer.kind, offer.name,
                     text.empty() ? ": none" : "", text, failure);
}

/// The keys of [model] that a family declares.
std::string keys_of(const std::string& file, const plugin::Offer& offer) {
  plugin::Host host({{}, false, false});
  host.load(file);
  TableRows rows;
  for (const models::ModelKey& key : host.find<models::ModelFamily>(offer.name)()->keys()) {
    rows.push_back({"model." + key.name, key.doc});
  }
  return fmt::format("\nKeys of {} {}\n{}", offer.kind, offer.name, format_table(rows));
}

/// What a change says of itself, for its host.
std::string facts_of(const std::string& file, const plugin::Offer& offer) {
  plugin::Host host({{}, false, false});
  host.load(file);
  std::string text = fmt::format("\nFacts of {} {}\n", offer.kind, offer.name);
  for (const std::string& fact : graph::facts_in_words(host.find<graph::Change>(offer.name)())) {
    text += fmt::format("  {}\n", terminal_text(fact));
  }
  return text;
}

std::string refusals_as_text(const CheckReport& report) {
  std::string text;
  for (const std::string& why : report.found.refusals) {
    text += fmt::format("  {}\n", one_line(why));
  }
  return text;
}

int run_info(const PluginArguments& arguments) {
  const CheckReport report = plugin::check_library(file_of(arguments));
  if (!report.found.stamp) {
    print(fmt::format("{}: refused\n{}", report.found.file, refusals_as_text(report)));
    return wrong_input;
  }
  const Stamp& stamp = *report.found.stamp;
  std::string text = format_table({{"name", stamp.name},
                                   {"version", stamp.version},
                                   {"description", stamp.description},
                                   {"provides", offers_of(stamp, true)},
                                   {"digest", stamp.digest},
                                   {"file", report.found.file},
                                   {"state", report.usable() ? "usable" : "refused"}});
  text += refusals_as_text(report);
  if (report.usable()) {
    for (const plugin::Offer& offer : report.registered) {
      if (offer.kind == parallel::ParallelStyle::plugin_kind.name) {
        text += options_of<parallel::ParallelStyle, parallel::Options>(report.found.file, offer);
      } else if (offer.kind == optim::UpdateRule::plugin_kind.name) {
        text += options_of<optim::UpdateRule, PluginOptions>(report.found.file, offer);
      } else if (offer.kind == sinks::Sink::plugin_kind.name) {
        text += options_of<sinks::Sink, PluginOptions>(report.found.file, offer);
      } else if (offer.kind == models::ModelFamily::plugin_kind.name) {
        text += keys_of(report.found.file, offer);
      } else if (offer.kind == graph::Change::plugin_kind.name) {
        text += facts_of(report.found.file, offer);
      }
    }
  }
  TableRows facts;
  const std::vector<plugin::Fact> host = plugin::host_facts();
  for (std::size_t i = 0; i < stamp.facts.size(); ++i) {
    const bool same = i < host.size() && host[i].value == stamp.facts[i].value;
    facts.push_back({stamp.facts[i].name, stamp.facts[i].value + (same ? "" : "  (differs)")});
  }
  print(text + "\nBuilt with\n" + format_table(facts));
  return report.usable() ? 0 : wrong_input;
}

int run_check(const PluginArguments& arguments) {
  const Tools* const tools = arguments.gates_only ? nullptr : &arguments.tools();
  int code = 0;
  for (const std::string& file : arguments.files) {
    const CheckReport report = plugin::check_library(file);
    if (!report.usable()) {
      print(fmt::format("{}: refused\n{}", report.found.file, refusals_as_text(report)));
      code = wrong_input;
      continue;
    }
    std::string offers;
    for (const plugin::Offer& offer : report.registered) {
      offers += fmt::format("{}{} {}", offers.empty() ? "" : ", ", offer.kind, offer.name);
    }
    print(fmt::format("{}: usable, registers {}\n", report.found.file, offers));
    if (tools != nullptr && !tools->check_plugin(report, arguments.deviations)) {
      code = wrong_input;
    }
  }
  return code;
}

int run_new(const PluginArguments& arguments) {
  const std::vector<TemplateFile> files = plugin_template(arguments.kind, arguments.name);
  check_plugin_name(arguments.kind, arguments.name);
  const fs::path folder = write_template(files, arguments.folder, arguments.name);
  std::string text = fmt::format("{}\n", folder.string());
  for (const TemplateFile& file : files) {
    text += fmt::format("  {}\n", file.path);
  }
  print(text + fmt::format("\nNext:\n  cd {}\n  cmake -B build -G Ninja "
                           "-DCMAKE_CXX_COMPILER=clang++-19 -DCMAKE_BUILD_TYPE=Release\n"
                           "  cmake --build build\n"
                           "README.md explains the rest.\n",
                           folder.string()));
  return 0;
}

}  // namespace

void add_plugin_command(CLI::App& program, std::function<int()>& chosen,
                        std::function<const Tools&()> tools) {
  const auto arguments = std::make_shared<PluginArguments>();
  arguments->tools = std::move(tools);
  CLI::App* const all = program.add_subcommand("plugin", "List, check and create plugins");
  all->require_subcommand(1);
  all->footer(order_of_search);
  const auto add = [&](const char* name, const char* help,
                       int (*run)(const PluginArguments& arguments)) {
    CLI::App* const command = all->add_subcommand(name, help);
    command->callback([&chosen, arguments, run] { chosen = [=] { return run(*arguments); }; });
    return command;
  };
  const auto add_paths = [&](CLI::App* command) {
    command
        ->add_option("--plugin", arguments->paths,
                     "Search this file or folder first; may be repeated")
        ->type_name("PATH")
        ->expected(1)
        ->take_all()
        ->allow_extra_args(false);
  };

  CLI::App* const list = add("list", "List all plugins, and why some are refused", run_list);
  list->footer(order_of_search);
  add_paths(list);

  CLI::App* const info = add(
      "info", "Show what a plugin provides, its options and facts, and how it was built", run_info);
  info->add_option("NAME", arguments->name, "The plugin, something that it provides, or its file")
      ->required();
  add_paths(info);

  CLI::App* const check =
      add("check", "Check plugins in separate processes and print every reason against them",
          run_check);
  check->add_option("FILE", arguments->files, "The file of the library; may be repeated")
      ->required();
  check->add_flag("--gates-only", arguments->gates_only,
                  "Only whether a file can be loaded, without the tests of its kind");
  check->add_flag(
      "--deviations", arguments->deviations,
      "Of a device: each operator whose results differ from the CPU's, with the largest "
      "difference as a share of the tolerance");
  check->footer(
      "A usable plugin is then tested as its kind demands: a style and an optimizer against one\n"
      "rank, a device against the CPU, a change on programs of one and two ranks. The exit code is "
      "0\n"
      "if all plugins are usable and no test has failed, and 2 otherwise.");

  CLI::App* const fresh =
      add("new", "Create a folder with a small plugin that works without changes", run_new);
  fresh->footer("");
  fresh->add_option("NAME", arguments->name, "The name of the plugin, for example MyStyle")
      ->required();
  fresh->add_option("--kind", arguments->kind, "The plugin kind: " + join_words(template_kinds()))
      ->capture_default_str();
  fresh->add_option("--folder", arguments->folder, "Where to create the folder NAME")
      ->capture_default_str();
}

}  // namespace tessera::app
