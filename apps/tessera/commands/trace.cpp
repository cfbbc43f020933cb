// `tessera trace`.
#include <fmt/format.h>

#include <string>

#include "commands/commands.hpp"
#include "output_file.hpp"
#include "trace/draw.hpp"
#include "trace/read.hpp"
#include "trace/summary.hpp"

namespace tessera::app {

int run_trace_summary(const std::string& file) {
  fmt::print("{}", trace_summary(read_trace(file)));
  return 0;
}

int run_trace_draw(const std::string& file, const std::string& to) {
  write_output("trace", to, draw_trace(read_trace(file)));
  return 0;
}

}  // namespace tessera::app
