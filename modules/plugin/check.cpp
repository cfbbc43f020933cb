module;
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.plugin;

import tessera.base;

namespace tessera::plugin {
namespace {

using Clock = std::chrono::steady_clock;

// The child's report: lines "refused TEXT" and "registered KIND NAME", "end" as the last.
constexpr std::string_view last_line = "end";

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

/// Loads and registers; returns the report as text.
std::string try_library(const LibraryFile& file, const Stamp& stamp) {
  Registrar registrar(stamp.name, file.path);
  std::string report;
  if (const std::string why = load_and_register(file, registrar); !why.empty()) {
    report += fmt::format("refused {}\n", one_line(why));
  } else {
    for (const std::string& refusal : refused_entries(stamp, registrar.entries())) {
      report += fmt::format("refused {}\n", one_line(refusal));
    }
  }
  for (const Entry& entry : registrar.entries()) {
    report += fmt::format("registered {} {}\n", entry.kind, entry.name);
  }
  return report + std::string(last_line) + "\n";
}

/// What the child process does. It prints nothing and leaves no core file.
[[noreturn]] void run_child(int report_to, const LibraryFile& file, const Stamp& stamp) {
  setpgid(0, 0);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    dup2(nothing, stream);
  }
  std::string_view rest;
  const std::string report = try_library(file, stamp);
  for (rest = report; !rest.empty();) {
    const ssize_t written = write(report_to, rest.data(), rest.size());
    if (written <= 0) {
      break;
    }
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  _exit(0);
}

/// Reads the pipe until its end or the deadline; false for the deadline.
bool read_until(int from, Clock::time_point deadline, std::string& text) {
  char buffer[4096];
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waiting{from, POLLIN, 0};
    const int ready = left > 0 ? poll(&waiting, 1, static_cast<int>(left)) : 0;
    if (ready < 0 && errno == EINTR) {
      continue;
    }
    if (ready <= 0) {
      return false;
    }
    const ssize_t got = read(from, buffer, sizeof(buffer));
    if (got <= 0) {
      return true;
    }
    text.append(buffer, static_cast<std::size_t>(got));
    if (text.ends_with(std::string(last_line) + "\n")) {
      return true;  // a process that the plugin started may hold the pipe open
    }
  }
}

std::string end_of(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("killed its process while it was loaded or registered (signal {}, {})",
                       WTERMSIG(status), strsignal(WTERMSIG(status)));
  }
  return fmt::format("ended its process while it was loaded or registered (exit code {})",
                     WEXITSTATUS(status));
}

void take_report(std::string_view report, CheckReport& into) {
  while (!report.empty()) {
    const std::string_view line = report.substr(0, report.find('\n'));
    report.remove_prefix(std::min(line.size() + 1, report.size()));
    if (line.starts_with("refused ")) {
      into.found.refusals.emplace_back(line.substr(8));
    } else if (line.starts_with("registered ")) {
      const std::string_view offer = line.substr(11);
      const std::size_t space = offer.find(' ');
      into.registered.push_back(
          {std::string(offer.substr(0, space)), std::string(offer.substr(space + 1))});
    }
  }
}

void try_in_child(const LibraryFile& file, std::chrono::milliseconds limit, CheckReport& report) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    fail({.thing = "plugin check",
          .wrong = fmt::format("cannot create a pipe: {}", std::strerror(errno))});
  }
  const pid_t child = fork();
  if (child < 0) {
    close(ends[0]);
    close(ends[1]);
    fail({.thing = "plugin check",
          .wrong = fmt::format("cannot start a child process: {}", std::strerror(errno))});
  }
  if (child == 0) {
    close(ends[0]);
    run_child(ends[1], file, *report.found.stamp);
  }
  setpgid(child, child);  // both do it, whoever is first: its own group, to end all that it starts
  close(ends[1]);
  std::string text;
  const bool in_time = read_until(ends[0], Clock::now() + limit, text);
  close(ends[0]);
  int status = 0;
  if (!text.ends_with("end\n") && in_time) {
    waitpid(child, &status, 0);  // it closed the pipe: it is ending by itself
    kill(-child, SIGKILL);
  } else {
    kill(-child, SIGKILL);
    waitpid(child, &status, 0);
  }
  report.tried = true;
  take_report(text, report);
  if (!in_time) {
    report.found.refusals.push_back(
        fmt::format("did not finish loading and registering within {} ms", limit.count()));
  } else if (!text.ends_with("end\n")) {
    report.found.refusals.push_back(end_of(status));
  }
}

}  // namespace

CheckReport check_library(const std::string& path, std::chrono::milliseconds limit) {
  const LibraryFile file = read_library_file(path);
  CheckReport report;
  report.found.file = file.path;
  report.found.refusals = file.refusals;
  if (!file.bytes.empty() || file.refusals.empty()) {
    StampReading reading = read_stamp(file.bytes);
    std::move(reading.refusals.begin(), reading.refusals.end(),
              std::back_inserter(report.found.refusals));
    report.found.stamp = std::move(reading.stamp);
  }
  if (report.found.stamp) {
    for (std::string& refusal : refused_kinds(*report.found.stamp)) {
      report.found.refusals.push_back(std::move(refusal));
    }
  }
  if (report.found.refusals.empty()) {
    try_in_child(file, limit, report);
  }
  return report;
}

}  // namespace tessera::plugin
