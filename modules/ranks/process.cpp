module;
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <string>
module tessera.ranks;

import tessera.base;
import :process;

namespace tessera::collective {
namespace {

struct Status {
  char state = '?';
  std::uint64_t used = 0;  // clock ticks of a processor, as a user and in the system
  std::uint64_t start = 0;
};

/// Reads /proc/ID/stat (see proc(5)). Returns false when there is no such process.
bool read_status(std::int32_t id, Status& status) {
  std::string line;
  if (!std::getline(std::ifstream(fmt::format("/proc/{}/stat", id)), line)) {
    return false;
  }
  const std::size_t name_end = line.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos) {
    return false;
  }
  std::istringstream fields(line.substr(name_end + 1));
  fields >> status.state;
  std::string skipped;
  for (int field = 4; field <= 13; ++field) {
    fields >> skipped;
  }
  std::uint64_t in_system = 0;
  fields >> status.used >> in_system;
  status.used += in_system;
  for (int field = 16; field <= 21; ++field) {
    fields >> skipped;
  }
  return static_cast<bool>(fields >> status.start);
}

}  // namespace

Process this_process() { return process_of(getpid()); }

Process process_of(std::int32_t id) {
  Status status;
  return {id, read_status(id, status) ? status.start : 0};
}

ProcessState state_of(const Process& process) {
  Status status;
  if (!read_status(process.id, status)) {
    return kill(process.id, 0) != 0 && errno == ESRCH ? ProcessState::gone : ProcessState::running;
  }
  if (status.state == 'Z' || status.state == 'X' ||
      (process.start != 0 && status.start != process.start)) {
    return ProcessState::gone;
  }
  const bool stopped = status.state == 'T' || status.state == 't';
  return stopped ? ProcessState::stopped : ProcessState::running;
}

double processor_seconds(std::int32_t id) {
  Status status;
  return read_status(id, status)
             ? static_cast<double>(status.used) / static_cast<double>(sysconf(_SC_CLK_TCK))
             : 0;
}

}  // namespace tessera::collective
