module;
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
module tessera.plugin;

import tessera.base;

namespace tessera::plugin {
namespace {

using Clock = std::chrono::steady_clock;

/// The last byte of a whole report; in none before it.
constexpr char end_mark = '\0';

void write_all(int to, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(to, text.data(), text.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      _exit(1);  // nobody reads any more
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

[[noreturn]] void run_child(int report_to,
                            const std::function<void(const SendReport&)>& body) noexcept {
  setpgid(0, 0);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    dup2(nothing, stream);
  }
  body([report_to](std::string_view text) {
    std::string without_mark(text);
    std::erase(without_mark, end_mark);
    write_all(report_to, without_mark);
  });
  write_all(report_to, {&end_mark, 1});
  _exit(0);
}

/// Reads the pipe until the end of the report or of the pipe, or the deadline; false for the
/// deadline.
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
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return true;
    }
    text.append(buffer, static_cast<std::size_t>(got));
    if (text.back() == end_mark) {
      return true;  // a process that the body started may hold the pipe open
    }
  }
}

std::string problem_of(int status) {
  return WIFSIGNALED(status) ? fmt::format("killed its process (signal {}, {})", WTERMSIG(status),
                                           strsignal(WTERMSIG(status)))
                             : fmt::format("ended its process (exit code {})", WEXITSTATUS(status));
}

}  // namespace

ChildResult run_in_child(const std::string& who, std::chrono::milliseconds limit,
                         const std::function<void(const SendReport& send)>& body) {
  const auto refuse = [&](const char* what) {
    fail({.thing = who, .wrong = fmt::format("cannot {}: {}", what, std::strerror(errno))});
  };
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    refuse("create a pipe");
  }
  const pid_t child = fork();
  if (child < 0) {
    const int why = errno;
    close(ends[0]);
    close(ends[1]);
    errno = why;
    refuse("start a child process");
  }
  if (child == 0) {
    close(ends[0]);
    run_child(ends[1], body);
  }
  setpgid(child, child);  // both do it, whoever is first: its own group, to end all that it starts
  close(ends[1]);
  ChildResult result;
  const bool in_time = read_until(ends[0], Clock::now() + limit, result.report);
  close(ends[0]);
  const bool returned = !result.report.empty() && result.report.back() == end_mark;
  int status = 0;
  if (in_time && !returned) {
    waitpid(child, &status, 0);  // it closed the pipe: it is ending by itself
    kill(-child, SIGKILL);
  } else {
    kill(-child, SIGKILL);
    waitpid(child, &status, 0);
  }
  if (returned) {
    result.report.pop_back();
  } else {
    result.late = !in_time;
    result.problem =
        result.late ? fmt::format("did not end within {} ms", limit.count()) : problem_of(status);
  }
  return result;
}

}  // namespace tessera::plugin
