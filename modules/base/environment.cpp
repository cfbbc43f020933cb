module;
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
module tessera.base;

namespace tessera {
namespace {

bool colour_on(int descriptor) {
  return isatty(descriptor) != 0 && !environment_variable("NO_COLOR") &&
         environment_variable("TERM").value_or("dumb") != "dumb";
}

}  // namespace

std::optional<std::string> environment_variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    return std::nullopt;
  }
  return value;
}

bool colour_on_stderr() { return colour_on(STDERR_FILENO); }
bool colour_on_stdout() { return colour_on(STDOUT_FILENO); }

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {
    return 1;
  }
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace tessera
