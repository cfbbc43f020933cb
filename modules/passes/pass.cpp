module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <ranges>
#include <span>
#include <string>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.plugin;
import tessera.program;
import :pass;
import :builtin;
import :keep_gathers;

namespace tessera::graph {
namespace {

void write(const std::string& dump, std::size_t number, const std::string& name,
           const std::string& text) {
  const std::filesystem::path file =
      std::filesystem::path(dump) / fmt::format("{:02}-{}", number, name);
  try_side_work(SideWork::output, "graph.dump", [&] {
    if (const std::string why = write_file(file.string(), text); !why.empty()) {
      fail({.thing = "graph.dump",
            .wrong = fmt::format("cannot write {}: {}", file.string(), why),
            .advice = "name a folder that can be written and has room"});
    }
  });
}

[[maybe_unused]] const bool declared = plugin::declare_kind<Pass>();

const Pass* built_in(const std::string& name) {
  const auto found = std::ranges::find(built_in_passes(), name, &Pass::name);
  return found == built_in_passes().end() ? nullptr : &*found;
}

[[noreturn]] void fail_unknown(const std::string& name, const std::vector<std::string>& known) {
  const std::string nearest = nearest_name(name, known);
  fail_input({.thing = "passes",
              .wrong = fmt::format("there is no pass '{}'", shown(name)),
              .expected = fmt::format("one of {}", join_words(known)),
              .advice = nearest.empty() ? "'tessera plugin list' shows the plugins"
                                        : fmt::format("did you mean '{}'?", nearest)});
}

Pass from_plugin(const std::string& name) {
  const std::vector<std::string> known = pass_names();
  if (std::ranges::find(known, name) == known.end()) {
    fail_unknown(name, known);
  }
  Pass pass = plugin::host().find<Pass>(name)();
  const bool runs = pass.run || pass.run_agreed;
  if (pass.name != name || !runs) {
    fail({.thing = fmt::format("pass '{}'", name),
          .wrong = runs ? "its plugin returned a pass of another name"
                        : "its plugin returned a pass without a function",
          .expected = fmt::format("'{}'", name),
          .got = fmt::format("'{}'", pass.name)});
  }
  return pass;
}

}  // namespace

const std::vector<Pass>& built_in_passes() {
  static const std::vector<Pass> passes = {
      {.name = "views",
       .about = "Views of views become views of the memory's first tensor; equal views become one.",
       .is_default = true,
       .run = simplify_views},
      {.name = "copies",
       .about =
           "Copies of values that stay as they are (clone, contiguous) are not made, where the "
           "original needs no more memory and all bits stay the same.",
       .is_default = true,
       .run = elide_copies},
      {.name = "merge_collectives",
       .about =
           "Collectives that all ranks make of the same values twice are made once, where that "
           "does not raise the peak of memory.",
       .is_default = true,
       .run_agreed = merge_collectives},
      {.name = "common",
       .about = "Merges calls that compute the same values, where the first result is still there.",
       .is_default = true,
       .run = merge_common},
      {.name = "dead",
       .about = "Removes instructions whose results nothing needs. What other ranks take part in "
                "stays.",
       .is_default = true,
       .run = remove_dead},
      {.name = "lifetimes",
       .about = "Memory that is released and restored becomes a new memory for each time, so that "
                "others can take its place in between.",
       .is_default = true,
       .ends_lifetimes = true,
       .run = split_lifetimes},
      {.name = "keep_gathers",
       .about = "What was gathered before is kept and not gathered again. With a budget of memory: "
                "as much as fits.",
       .after = {"lifetimes"},
       .keeps = PartialPass{.spare = keep_gathers, .within = keep_gathers_within},
       .run = keep_all_gathers},
      {.name = "recompute",
       .about = "What is cheap to compute again is not kept from forward, where that lowers the "
                "peak of memory.",
       .after = {"lifetimes"},
       .run = recompute_cheap},
      {.name = "early_issues",
       .about = "Collectives are issued as early as their operands and the peak of memory permit.",
       .after = {"lifetimes"},
       .is_default = true,
       .moves_communication = true,
       .run = advance_issues},
      {.name = "late_waits",
       .about = "Waits for collectives move down to where their results are first used.",
       .is_default = true,
       .moves_communication = true,
       .run = delay_waits},
  };
  return passes;
}

std::vector<std::string> default_passes() {
  std::vector<std::string> names;
  for (const Pass& pass : built_in_passes()) {
    if (pass.is_default) {
      names.push_back(pass.name);
    }
  }
  return names;
}

std::vector<std::string> pass_names() {
  std::vector<std::string> names;
  for (const Pass& pass : built_in_passes()) {
    names.push_back(pass.name);
  }
  std::ranges::copy(plugin::host().names(Pass::plugin_kind.name), std::back_inserter(names));
  return names;
}

const Pass& find_pass(const std::string& name) {
  if (const Pass* const pass = built_in(name)) {
    return *pass;  // a program without plugins has no host
  }
  static std::mutex mutex;  // ranks that are threads call this at the same time
  static std::map<std::string, Pass> loaded;
  const std::lock_guard lock(mutex);
  const auto found = loaded.find(name);
  return found != loaded.end() ? found->second
                               : loaded.emplace(name, from_plugin(name)).first->second;
}

std::vector<std::string> without_keeping(std::span<const std::string> names) {
  std::vector<std::string> others;
  std::ranges::copy_if(names, std::back_inserter(others),
                       [](const std::string& name) { return !find_pass(name).keeps; });
  return others;
}

void check_passes(std::span<const std::string> names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (const std::string& needed : find_pass(names[i]).after) {
      if (std::ranges::find(names.first(i), needed) == names.first(i).end()) {
        fail_input({.thing = "passes",
                    .wrong = fmt::format("'{}' needs '{}' before it", names[i], needed),
                    .advice = fmt::format("add '{}' before '{}'", needed, names[i])});
      }
    }
  }
}

std::vector<bool> suppose_agreement(std::span<const Proposal> proposals) {
  return std::vector<bool>(proposals.size(), true);
}

std::vector<PassReport> run_passes(Program& program, std::span<const std::string> names,
                                   const std::string& dump, const Agree& agree) {
  check_passes(names);
  return run_checked(program, names, dump, agree);
}

std::vector<PassReport> run_checked(Program& program, std::span<const std::string> names,
                                    const std::string& dump, const Agree& agree) {
  std::unique_ptr<Analysis> known = verified(program);
  ValueNames value_names;
  Values values = values_of(program, *known, value_names);
  if (!dump.empty()) {
    std::error_code ignored;  // write() says so
    std::filesystem::create_directories(dump, ignored);
    write(dump, 0, "recorded.txt", program.to_text());
  }
  std::vector<PassReport> reports;
  for (const std::string& name : names) {
    const Program before = program;
    PassReport report = {
        .name = name, .instructions_before = known->places(), .peak_before = known->peak_bytes()};
    try {
      const Pass& pass = find_pass(name);
      if (pass.run) {
        pass.run(program, *known);
      } else if (agree) {
        pass.run_agreed(program, *known, agree);
      }
      known = verified(program);
      Values left = values_of(program, *known, value_names);
      compare(before, values, program, left);
      values = std::move(left);
    } catch (const Error& error) {
      throw Error(fmt::format("pass '{}': {}", name, error.what()), error.kind());
    }
    report.instructions_after = known->places();
    report.peak_after = known->peak_bytes();
    reports.push_back(std::move(report));
    if (!dump.empty()) {
      const std::string text = program.to_text();
      write(dump, reports.size(), name + ".txt", text);
      write(dump, reports.size(), name + ".diff", difference(before.to_text(), text));
    }
  }
  return reports;
}

}  // namespace tessera::graph
