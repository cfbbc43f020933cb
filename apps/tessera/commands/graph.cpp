module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <system_error>
#include <tessera/input_file.hpp>
#include <utility>
module tessera.app.commands;

import tessera.base;
import tessera.mesh;
import tessera.device;
import tessera.tensor;
import tessera.program;
import tessera.app.base;
import :draw_program;
import :program_file;

// `tessera graph`.
namespace tessera::app {

Program read_program(const std::string& file) {
  std::string text;
  try {
    text = input_text(file, std::size_t{1} << 28, "the program");
  } catch (const Error& error) {
    ErrorFields fields = error.fields();
    fields.advice = "write one with tessera graph capture, or with graph.program=FILE";
    throw Error(std::move(fields), error.kind());
  }
  try {
    Program program = Program::parse(text, file);
    set_current_rank(program.rank);
    return program;
  } catch (const Error& error) {  // of a file, so it is the user's input
    throw Error(error.fields(), ErrorKind::input);
  }
}

namespace {

std::string bytes_in_words(std::int64_t bytes) {
  return format_bytes(static_cast<std::uint64_t>(bytes));
}

}  // namespace

int run_graph_stats(const std::string& file) {
  const Program program = read_program(file);
  const graph::ProgramStatistics statistics = graph::statistics_of(program);
  fmt::print("rank {}: {} instructions, {}\n", program.rank, statistics.live.size(),
             format_flops(statistics.flops));
  TableRows rows = {{"operator", "calls"}};
  for (const auto& [name, calls] : statistics.calls) {
    rows.push_back({name, std::to_string(calls)});
  }
  fmt::print("\n{}", format_table(rows));
  rows = {{"collective", "phase", "group", "calls", "bytes"}};
  for (const graph::CollectiveCount& c : statistics.collectives) {
    rows.push_back({c.op, std::string(name_of(c.phase)),
                    c.group.ranks.empty() ? std::string() : to_string(c.group),
                    std::to_string(c.calls), std::to_string(c.bytes)});
  }
  fmt::print("\n{}", format_table(rows));
  rows = {{"memory", "inputs", "at the peak"}};
  for (int c = 0; c < memory_category_count; ++c) {
    const auto at = static_cast<std::size_t>(c);
    const std::int64_t peak = statistics.live.empty() ? 0 : statistics.live[statistics.peak_at][at];
    if (statistics.inputs[at] != 0 || peak != 0) {
      rows.push_back({std::string(name_of(static_cast<MemoryCategory>(c))),
                      bytes_in_words(statistics.inputs[at]), bytes_in_words(peak)});
    }
  }
  rows.push_back(
      {"all", bytes_in_words(graph::total_of(statistics.inputs)), bytes_in_words(statistics.peak)});
  fmt::print("\n{}\npeak at {}\n", format_table(rows),
             graph::place_in_words(program, statistics.peak_at));
  return 0;
}

int run_graph_draw(const std::string& file, const std::string& to) {
  if (!to.ends_with(".svg")) {
    fail_input({.thing = "graph draw",
                .wrong = "the picture is an SVG",
                .expected = "a name that ends in .svg",
                .got = to});
  }
  write_output("graph", to, draw_program(read_program(file)));
  return 0;
}

}  // namespace tessera::app
