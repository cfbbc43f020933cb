// `tessera trace summary FILE`.
#include <fmt/format.h>

#include <string>

#include "commands/commands.hpp"
#include "trace/read.hpp"
#include "trace/summary.hpp"

namespace tessera::app {

int run_trace_summary(const std::string& file) {
  fmt::print("{}", trace_summary(read_trace(file)));
  return 0;
}

}  // namespace tessera::app
