module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.tensor;
import tessera.program;
import tessera.app.base;
import :program_file;

// `tessera graph show`: the regions of a captured step.
namespace tessera::app {
namespace {

std::vector<graph::Region> regions_of(const Program& program, const GraphShowOptions& options) {
  const auto parts = static_cast<int>(std::ranges::count(options.module, '.')) + 1;
  const int depth = options.module.empty() ? options.depth : std::max(options.depth, parts);
  return graph::regions_of(program, graph::statistics_of(program), depth, options.module);
}

void print_json(const Program& program, const std::vector<graph::Region>& regions) {
  nlohmann::ordered_json all = {{"rank", program.rank},
                                {"regions", nlohmann::ordered_json::array()}};
  for (const graph::Region& region : regions) {
    all["regions"].push_back({{"section", name_of(region.section)},
                              {"phase", name_of(region.phase)},
                              {"module", region.module},
                              {"first", region.first.number},
                              {"instructions", region.count},
                              {"collectives", region.collectives},
                              {"peak_bytes", region.peak}});
  }
  fmt::print("{}\n", all.dump(2));
}

void print_table(const std::vector<graph::Region>& regions) {
  TableRows rows = {{"section", "phase", "module", "from", "instructions", "peak", "collectives"}};
  std::optional<SectionKind> section;
  for (const graph::Region& region : regions) {
    std::string collectives;
    for (const auto& [name, calls] : region.collectives) {
      collectives += fmt::format("{}{} {}", collectives.empty() ? "" : ", ", calls, name);
    }
    rows.push_back({region.section == section ? "" : std::string(name_of(region.section)),
                    std::string(name_of(region.phase)), region.module,
                    std::to_string(region.first.number + 1), std::to_string(region.count),
                    format_bytes(static_cast<std::uint64_t>(region.peak)), collectives});
    section = region.section;
  }
  fmt::print("{}", format_table(rows, ""));
}

/// The instructions of modules within `outer`, as the program's text has them.
void print_instructions(const Program& program, const std::string& outer) {
  for (const Section& section : program.sections) {
    for (const Instruction& i : section.instructions) {
      const ProgramScope& scope = program.scopes[i.scope];
      if (graph::is_within(scope.module, outer)) {
        fmt::print("{}  {}\n", name_of(section.kind), to_text(program, i));
      }
    }
  }
}

}  // namespace

int run_graph_show(const std::string& file, const GraphShowOptions& options) {
  const Program program = read_program(file);
  const std::vector<graph::Region> regions = regions_of(program, options);
  if (regions.empty() && !options.module.empty()) {
    std::vector<std::string> known;
    for (const ProgramScope& scope : program.scopes) {
      known.push_back(scope.module);
    }
    const std::string nearest = nearest_name(options.module, known);
    fail_input({.thing = file,
                .wrong = fmt::format("no instruction is of a module '{}'", options.module),
                .advice = nearest.empty() ? "" : fmt::format("did you mean '{}'?", nearest)});
  }
  if (options.json) {
    print_json(program, regions);
  } else if (options.all) {
    print_instructions(program, options.module);
  } else {
    print_table(regions);
  }
  return 0;
}

int run_graph_diff(const std::string& before, const std::string& after) {
  const std::string differences =
      graph::difference(read_program(before).to_text(), read_program(after).to_text());
  fmt::print("{}", differences);
  check_stdout();  // 1 is not an error here
  return differences.empty() ? 0 : 1;
}

}  // namespace tessera::app
