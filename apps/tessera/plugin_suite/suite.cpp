#include "plugin_suite/suite.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <string_view>

import tessera.base;
import tessera.plugin;

namespace tessera::app {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<SuiteCheck> suite_of(const SuiteSubject& subject) {
  if (subject.kind == "style") {
    return style_suite(subject.name);
  }
  if (subject.kind == "optimizer") {
    return optimizer_suite(subject.name);
  }
  if (subject.kind == "device") {
    return device_suite(subject.name);
  }
  return subject.kind == "operator" ? operator_suite(subject.name) : std::vector<SuiteCheck>{};
}

// The child's report: lines "begin CHECK", then "passed", "failed TEXT" or "not tried TEXT"; "end"
// as the last.
constexpr std::string_view last_line = "end\n";

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

void send(int to, const std::string& line) {
  const std::string text = line + "\n";
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t written = write(to, rest.data(), rest.size());
    if (written <= 0) {
      _exit(1);
    }
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::string outcome_of(const SuiteCheck& check) {
  try {
    const std::string problem = check.run();
    return problem.empty() ? "passed" : "failed " + problem;
  } catch (const NotTried& reason) {
    return "not tried " + reason.why;
  } catch (const std::exception& error) {
    return fmt::format("failed {}", error.what());
  }
}

[[noreturn]] void run_child(int report_to, const SuiteSubject& subject) {
  setpgid(0, 0);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    dup2(nothing, stream);
  }
  plugin::configure_host({.paths = {subject.file}, .environment = false, .standard_places = false});
  for (const SuiteCheck& check : suite_of(subject)) {
    send(report_to, "begin " + check.name);
    send(report_to, one_line(outcome_of(check)));
  }
  send(report_to, "end");
  _exit(0);
}

/// Reads until the end of the report, of the pipe, or the deadline.
std::string read_report(int from, Clock::time_point deadline) {
  std::string text;
  char buffer[4096];
  while (!text.ends_with(last_line)) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waiting{from, POLLIN, 0};
    const int ready = left > 0 ? poll(&waiting, 1, static_cast<int>(left)) : 0;
    if (ready < 0 && errno == EINTR) {
      continue;
    }
    const ssize_t got = ready > 0 ? read(from, buffer, sizeof(buffer)) : 0;
    if (got <= 0) {
      break;
    }
    text.append(buffer, static_cast<std::size_t>(got));
  }
  return text;
}

std::vector<SuiteResult> results_of(std::string_view report, const std::string& end) {
  using State = SuiteResult::State;
  std::vector<SuiteResult> results;
  while (!report.empty()) {
    const std::string_view line = report.substr(0, report.find('\n'));
    report.remove_prefix(std::min(line.size() + 1, report.size()));
    if (line.starts_with("begin ")) {
      results.push_back({State::failed, std::string(line.substr(6)), end});
    } else if (line == "passed") {
      results.back() = {State::passed, results.back().check, ""};
    } else if (line.starts_with("failed ")) {
      results.back().text = line.substr(7);
    } else if (line.starts_with("not tried ")) {
      results.back() = {State::not_tried, results.back().check, std::string(line.substr(10))};
    }
  }
  return results;
}

}  // namespace

std::vector<SuiteResult> run_suite(const SuiteSubject& subject, std::chrono::milliseconds limit) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    fail({.thing = "plugin check",
          .wrong = fmt::format("cannot create a pipe: {}", std::strerror(errno))});
  }
  const pid_t child = fork();
  if (child < 0) {
    fail({.thing = "plugin check",
          .wrong = fmt::format("cannot start a child process: {}", std::strerror(errno))});
  }
  if (child == 0) {
    close(ends[0]);
    run_child(ends[1], subject);
  }
  setpgid(child, child);  // both do it, whoever is first: its own group, to end all that it starts
  close(ends[1]);
  const Clock::time_point deadline = Clock::now() + limit;
  const std::string report = read_report(ends[0], deadline);
  close(ends[0]);
  const bool late = Clock::now() >= deadline;
  int status = 0;
  if (late || report.ends_with(last_line)) {
    kill(-child, SIGKILL);
    waitpid(child, &status, 0);
  } else {
    waitpid(child, &status, 0);  // it closed the pipe: it is ending by itself
    kill(-child, SIGKILL);
  }
  return results_of(report,
                    late ? fmt::format("did not end within {} ms", limit.count())
                    : WIFSIGNALED(status)
                        ? fmt::format("killed its process (signal {}, {})", WTERMSIG(status),
                                      strsignal(WTERMSIG(status)))
                        : fmt::format("ended its process (exit code {})", WEXITSTATUS(status)));
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = a.size() == b.size() ? 0 : std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::abs(a[i] - b[i]) / (1 + std::abs(b[i]));
    largest = std::isfinite(difference) ? std::max(largest, difference)
                                        : std::numeric_limits<double>::infinity();
  }
  return largest;
}

}  // namespace tessera::app
