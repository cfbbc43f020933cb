module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <ranges>
#include <span>
#include <string>
#include <vector>
module tessera.graph;

import tessera.base;
import tessera.record;
import :accesses;
import :difference;
import :pass;
import :passes;
import :shadow;
import :verify;

namespace tessera::graph {
namespace {

int size_of_program(const Program& program) { return static_cast<int>(places_of(program).size()); }

void write(const std::string& dump, std::size_t number, const std::string& name,
           const std::string& text) {
  const std::filesystem::path file =
      std::filesystem::path(dump) / fmt::format("{:02}-{}", number, name);
  std::ofstream out(file, std::ios::binary);
  out << text;
  out.close();
  if (!out) {
    fail_input({.thing = "passes",
                .wrong = fmt::format("cannot write {}", file.string()),
                .advice = "name a folder that can be written"});
  }
}

}  // namespace

const std::vector<Pass>& all_passes() {
  static const std::vector<Pass> passes = {
      {.name = "dead",
       .about = "Removes instructions whose results nothing needs. What other ranks take part in "
                "stays.",
       .run = remove_dead},
      {.name = "views",
       .about = "Views of views become views of the memory's first tensor; equal views become one.",
       .run = simplify_views},
      {.name = "common",
       .about = "Merges calls that compute the same values, where the first result is still there.",
       .run = merge_common},
      {.name = "lifetimes",
       .about = "Memory that is released and restored becomes a new memory for each time, so that "
                "others can take its place in between.",
       .run = split_lifetimes},
      {.name = "recompute",
       .about = "What is cheap to compute again is not kept from forward, where that lowers the "
                "peak of memory.",
       .after = {"lifetimes"},
       .run = recompute_cheap},
      {.name = "early_issues",
       .about = "Collectives are issued as early as their operands and the peak of memory permit.",
       .after = {"lifetimes"},
       .run = advance_issues},
      {.name = "late_waits",
       .about = "Waits for collectives move down to where their results are first used.",
       .run = delay_waits},
  };
  return passes;
}

std::vector<std::string> pass_names() {
  std::vector<std::string> names;
  for (const Pass& pass : all_passes()) {
    names.push_back(pass.name);
  }
  return names;
}

const Pass& find_pass(const std::string& name) {
  const auto found = std::ranges::find(all_passes(), name, &Pass::name);
  if (found == all_passes().end()) {
    const std::vector<std::string> known = pass_names();
    const std::string nearest = nearest_name(name, known);
    fail_input({.thing = "passes",
                .wrong = fmt::format("there is no pass '{}'", name),
                .expected = fmt::format("one of {}", join_words(known)),
                .advice = nearest.empty() ? "" : fmt::format("did you mean '{}'?", nearest)});
  }
  return *found;
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

std::vector<PassReport> run_passes(Program& program, std::span<const std::string> names,
                                   const std::string& dump) {
  check_passes(names);
  verify(program);
  if (!dump.empty()) {
    std::error_code ignored;  // write() fails then
    std::filesystem::create_directories(dump, ignored);
    write(dump, 0, "recorded.txt", program.to_text());
  }
  std::vector<PassReport> reports;
  for (const std::string& name : names) {
    const Program before = program;
    find_pass(name).run(program);
    try {
      verify(program);
      verify_same(before, program);
    } catch (const Error& error) {
      throw Error(fmt::format("pass '{}': {}", name, error.what()), error.kind());
    }
    reports.push_back({.name = name,
                       .instructions_before = size_of_program(before),
                       .instructions_after = size_of_program(program),
                       .peak_before = peak_bytes(shadow_of(before)),
                       .peak_after = peak_bytes(shadow_of(program))});
    if (!dump.empty()) {
      const std::string text = program.to_text();
      write(dump, reports.size(), name + ".txt", text);
      write(dump, reports.size(), name + ".diff", difference(before.to_text(), text));
    }
  }
  return reports;
}

}  // namespace tessera::graph
