module;
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <tessera/limits.hpp>
#include <vector>
module tessera.base;

namespace tessera {
namespace {

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

/// A process with a group of its own, whose output comes through a pipe.
class Child {
 public:
  Child(pid_t process, int from) : process_(process), from_(from) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (from_ >= 0) {
      close(from_);
    }
  }

  /// Reads until the pipe's end, or until the text ends with `mark`. False: the patience ended.
  template <class Look>
  bool read(std::string& text, const char* mark, Patience& patience, const Look& look) {
    constexpr double longest_look = 0.25;
    char buffer[4096];
    while (look(patience)) {
      const double left = patience.limit() - patience.waited();
      pollfd waiting{from_, POLLIN, 0};
      const int ready =
          poll(&waiting, 1, static_cast<int>(std::clamp(left, 0.0, longest_look) * 1000) + 1);
      if (ready <= 0) {
        continue;
      }
      const ssize_t got = ::read(from_, buffer, sizeof(buffer));
      if (got < 0 && errno == EINTR) {
        continue;
      }
      if (got <= 0) {
        return true;
      }
      text.append(buffer, static_cast<std::size_t>(got));
      if (mark != nullptr && text.back() == *mark) {
        return true;  // a process that this one started may hold the pipe open
      }
    }
    return false;
  }

  /// Whether it ends by itself; its status.
  template <class Look>
  bool ends(int& status, Patience& patience, const Look& look) {
    Pause pause;
    while (waitpid(process_, &status, WNOHANG) == 0) {
      if (!look(patience)) {
        return false;
      }
      pause.sleep();
    }
    kill(-process_, SIGKILL);  // what it has started
    return true;
  }

  int end() {
    int status = 0;
    kill(-process_, SIGKILL);
    waitpid(process_, &status, 0);
    return status;
  }

 private:
  pid_t process_;
  int from_;
};

std::string problem_of(int status) {
  return WIFSIGNALED(status) ? fmt::format("killed its process (signal {}, {})", WTERMSIG(status),
                                           strsignal(WTERMSIG(status)))
                             : fmt::format("ended its process (exit code {})", WEXITSTATUS(status));
}

/// Settings that a program is started with.
class SpawnSettings {
 public:
  explicit SpawnSettings(int output) {
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
    posix_spawnattr_init(&attributes);
    // Threads that compute block signals, and ranks handle them: not so the program.
    sigset_t signals;
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes, &signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2, SIGCHLD}) {
      sigaddset(&signals, signal);
    }
    posix_spawnattr_setsigdefault(&attributes, &signals);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};
};

}  // namespace

ChildResult run_in_child(const std::string& who, std::chrono::milliseconds limit,
                         const std::function<void(const SendReport& send)>& body) {
  const auto refuse = [&](const char* what) {
    fail({.thing = who, .wrong = fmt::format("cannot {}: {}", what, reason_of(errno))});
  };
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    refuse("create a pipe");
  }
  const pid_t process = fork();
  if (process < 0) {
    const int why = errno;
    close(ends[0]);
    close(ends[1]);
    errno = why;
    refuse("start a child process");
  }
  if (process == 0) {
    close(ends[0]);
    run_child(ends[1], body);
  }
  setpgid(process, process);  // both do it, whoever is first
  close(ends[1]);
  Child child(process, ends[0]);
  Patience patience(std::chrono::duration<double>(limit).count());
  const auto look = [&](Patience& wait) {
    return wait.look([&] { return fmt::format("{}: waits for its child process", who); },
                     "is ended");
  };
  ChildResult result;
  const bool in_time = child.read(result.report, &end_mark, patience, look);
  const bool returned = !result.report.empty() && result.report.back() == end_mark;
  int status = 0;
  // One that closed the pipe is ending by itself.
  const bool ended = in_time && !returned && child.ends(status, patience, look);
  if (!ended) {
    status = child.end();
  }
  if (returned) {
    result.report.pop_back();
  } else {
    result.late = !ended;
    result.problem =
        result.late ? fmt::format("did not end within {} ms", limit.count()) : problem_of(status);
  }
  return result;
}

ProgramResult run_program(const std::vector<std::string>& arguments, Patience patience,
                          std::string_view what, std::string_view then) {
  ProgramResult result;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    result.output = reason_of(errno);
    return result;
  }
  std::vector<char*> words;
  for (const std::string& argument : arguments) {
    words.push_back(const_cast<char*>(argument.c_str()));
  }
  words.push_back(nullptr);
  pid_t process = 0;
  int error = 0;
  {
    const SpawnSettings settings(ends[1]);
    error = posix_spawnp(&process, words.front(), &settings.actions, &settings.attributes,
                         words.data(), environ);
  }
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    result.output = reason_of(error);
    return result;
  }
  Child child(process, ends[0]);
  const auto look = [&](Patience& wait) { return wait.look([&] { return what; }, then); };
  int status = 0;
  const bool ended =
      child.read(result.output, nullptr, patience, look) && child.ends(status, patience, look);
  if (!ended) {
    child.end();
    result.late = true;
  } else {
    result.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  return result;
}

}  // namespace tessera
