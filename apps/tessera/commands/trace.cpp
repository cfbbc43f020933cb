module;
#include <fmt/format.h>

#include <string>
#include <vector>
module tessera.app.commands;

import tessera.app.base;
import tessera.app.trace;

// `tessera trace` and `tessera blackbox`.
namespace tessera::app {

int run_trace_summary(const std::string& file) {
  fmt::print("{}", trace_summary(read_trace(file)));
  return 0;
}

int run_trace_draw(const std::string& file, const std::string& to) {
  write_output("trace", to, draw_trace(read_trace(file)));
  return 0;
}

int run_blackbox(const std::vector<std::string>& paths) {
  fmt::print("{}", black_box_text(paths));
  return 0;
}

}  // namespace tessera::app
