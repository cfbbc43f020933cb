module;
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tessera/limits.hpp>
#include <tessera/signals.hpp>
#include <thread>
#include <utility>
#include <vector>
module tessera.sinks;

import tessera.base;
import tessera.options;
import :command;

namespace tessera::sinks {
namespace {

/// Whether there is a program that this process may execute: a path, or a name in PATH.
bool is_program(const std::string& name) {
  const auto executable = [](const std::string& path) { return ::access(path.c_str(), X_OK) == 0; };
  if (name.find('/') != std::string::npos) {
    return executable(name);
  }
  const std::string path = environment_variable("PATH").value_or("/bin:/usr/bin");
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t end = std::min(path.find(':', at), path.size());
    if (executable(fmt::format("{}/{}", path.substr(at, end - at), name))) {
      return true;
    }
    at = end + 1;
  }
  return false;
}

/// A running program, whose standard input is a pipe from here.
class Program {
 public:
  /// Error (run): it cannot be started.
  explicit Program(const std::vector<std::string>& command) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
      fail({.thing = "command", .wrong = "cannot create a pipe: " + reason_of(errno)});
    }
    to_ = ends[1];
    ::fcntl(to_, F_SETFL, O_NONBLOCK);
    const int error = spawn(command, ends[0]);
    ::close(ends[0]);
    if (error != 0) {
      ::close(to_);
      fail({.thing = "command",
            .wrong = fmt::format("{} cannot be started: {}", command.front(), reason_of(error))});
    }
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    close_input();
    if (!has_ended()) {
      ::kill(-process_, SIGKILL);
      ::waitpid(process_, &status_, 0);
    }
  }

  /// Writes what it reads within a second, and removes that from the text. Error: it has closed its
  /// input.
  void write(std::string& text) {
    const WithoutSigpipe quiet;
    constexpr int milliseconds = 1000;
    std::size_t done = 0;
    while (done < text.size()) {
      const ssize_t count = ::write(to_, text.data() + done, text.size() - done);
      if (count >= 0) {
        done += static_cast<std::size_t>(count);
      } else if (errno == EAGAIN) {
        pollfd ready{.fd = to_, .events = POLLOUT, .revents = 0};
        if (::poll(&ready, 1, milliseconds) == 0) {
          break;
        }
      } else if (errno != EINTR) {
        const int error = errno;
        wait_for_end();
        fail({.thing = "command",
              .wrong = has_ended() ? "the program has ended " + end_text()
                                   : "its input cannot be written: " + reason_of(error)});
      }
    }
    text.erase(0, done);
  }

  void close_input() {
    if (to_ >= 0) {
      ::close(std::exchange(to_, -1));
    }
  }

  /// For the report: who has closed its input is mostly ending.
  void wait_for_end() {
    constexpr int most = 50;
    for (int i = 0; i < most && !has_ended(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  bool has_ended() {
    ended_ = ended_ || ::waitpid(process_, &status_, WNOHANG) == process_;
    return ended_;
  }
  bool succeeded() const { return WIFEXITED(status_) && WEXITSTATUS(status_) == 0; }
  std::string end_text() const {
    return WIFSIGNALED(status_) ? fmt::format("by signal {}", WTERMSIG(status_))
                                : fmt::format("with exit code {}", WEXITSTATUS(status_));
  }
  void ask_to_end() const { ::kill(-process_, SIGTERM); }

 private:
  /// Its output goes to the error output of the run: the other one may be read by a program.
  int spawn(const std::vector<std::string>& command, int input) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    sigset_t signals;
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes, &signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2, SIGCHLD}) {
      sigaddset(&signals, signal);
    }
    posix_spawnattr_setsigdefault(&attributes, &signals);
    // A group of its own: Ctrl-C ends the run, which then ends the program.
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    std::vector<char*> words;
    for (const std::string& word : command) {
      words.push_back(const_cast<char*>(word.c_str()));
    }
    words.push_back(nullptr);
    const int error =
        posix_spawnp(&process_, words.front(), &actions, &attributes, words.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return error;
  }

  pid_t process_ = -1;
  int to_ = -1;
  int status_ = 0;
  bool ended_ = false;
};

class CommandSink final : public Sink {
 public:
  CommandSink(std::vector<std::string> command, double finish_seconds)
      : command_(std::move(command)), finish_seconds_(finish_seconds) {}

  void check() const override {
    if (!is_program(command_.front())) {
      fail_input({.thing = "command",
                  .wrong = fmt::format("there is no program {}", command_.front()),
                  .advice = "give its path, or a name that is in PATH"});
    }
  }

  void take(std::span<const Event> events) override {
    if (!program_) {
      program_ = std::make_unique<Program>(command_);
    }
    if (pending_.empty()) {
      for (const Event& event : events) {
        pending_ += to_json(event) + "\n";
      }
    }  // else these are they: they have come again
    program_->write(pending_);
    if (!pending_.empty()) {
      throw UnavailableError({.thing = "command", .wrong = "the program does not read its input"});
    }
  }

  void finish(double seconds) override {
    if (!program_) {
      return;
    }
    program_->close_input();
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    constexpr double after_request = 1;
    constexpr auto advice = "it must end when its input does; finish_seconds gives it more time";
    bool asked = false;
    while (!program_->has_ended()) {
      const double left =
          std::chrono::duration<double>(end - std::chrono::steady_clock::now()).count();
      if (left < 0) {
        fail({.thing = "command",
              .wrong = fmt::format("the program did not end within {} s, and was killed",
                                   finish_seconds_),
              .advice = advice});
      }
      if (left < std::min(after_request, finish_seconds_ / 4) && !std::exchange(asked, true)) {
        program_->ask_to_end();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (asked && !program_->succeeded()) {
      fail({.thing = "command",
            .wrong = "the program did not end when its input did, and was ended",
            .advice = advice});
    }
    if (!program_->succeeded()) {
      fail({.thing = "command", .wrong = "the program has ended " + program_->end_text()});
    }
  }

  double patience() const override { return finish_seconds_; }

 private:
  std::vector<std::string> command_;
  double finish_seconds_;
  std::unique_ptr<Program> program_;
  std::string pending_;  // lines that are not written
};

}  // namespace

std::unique_ptr<Sink> make_command_sink(PluginOptions& options) {
  std::vector<std::string> command = options.texts("command");
  options.document("command", "The program and its arguments.");
  const double seconds = options.number("finish_seconds", 10, {.low = 0, .high = 3600});
  options.document("finish_seconds", "Seconds that it has to end when the run has.");
  if (command.empty() || command.front().empty()) {
    options.refuse(
        "command must be a program and its arguments, such as [\"python3\", \"log.py\"]");
  }
  return std::make_unique<CommandSink>(std::move(command), seconds);
}

}  // namespace tessera::sinks
