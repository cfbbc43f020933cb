#include "served.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "trained.hpp"

namespace server_test {
namespace {

/// A line of /proc/PROCESS/status.
long status_line(pid_t process, const std::string& name) {
  std::istringstream lines(trainer_test::read_file("/proc/" + std::to_string(process) + "/status"));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name + ":")) {
      return std::stol(line.substr(name.size() + 1));
    }
  }
  FAIL("no line " << name);
  return 0;
}

}  // namespace

Served::Served(const std::vector<std::string>& more)
    : Served(generation_test::trained().model, more) {}

Served::Served(const std::string& model, const std::vector<std::string>& more) {
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  process_ = fork();
  REQUIRE(process_ >= 0);
  if (process_ == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    std::vector<std::string> words = {TESSERA_PROGRAM, "serve", model, "--port", "0",
                                      "--temperature", "0"};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<char*> arguments;
    for (std::string& word : words) {
      arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(ends[1]);
  output_ = fdopen(ends[0], "r");
  std::array<char, 200> line{};
  REQUIRE(std::fgets(line.data(), line.size(), output_) != nullptr);
  REQUIRE(std::sscanf(line.data(), "listening at http://127.0.0.1:%d/v1", &port) == 1);
}

Served::~Served() {
  if (process_ > 0) {
    stop();
  }
  std::fclose(output_);
}

Served::Ended Served::stop(int signal) {
  kill(process_, signal);
  return wait();
}

Served::Ended Served::wait() {
  const auto begin = std::chrono::steady_clock::now();
  int status = 0;
  waitpid(process_, &status, 0);
  process_ = -1;
  return {
      .code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
      .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()};
}

std::vector<pid_t> Served::processes() const {
  std::vector<pid_t> found;
  const auto add_children = [&](pid_t of) {
    const std::string task = std::to_string(of);
    std::istringstream children(
        trainer_test::read_file("/proc/" + task + "/task/" + task + "/children"));
    for (pid_t child = 0; children >> child;) {
      found.push_back(child);
    }
  };
  add_children(process_);
  for (std::size_t i = 0; i < found.size(); ++i) {
    add_children(found[i]);
  }
  return found;
}

Served::Ended Served::stop() { return stop(SIGTERM); }

std::size_t Served::peak_bytes() const {
  return static_cast<std::size_t>(status_line(process_, "VmHWM")) * 1024;
}

std::size_t Served::bytes() const {
  return static_cast<std::size_t>(status_line(process_, "VmRSS")) * 1024;
}

int Served::threads() const { return static_cast<int>(status_line(process_, "Threads")); }

std::string template_with_calls() {
  std::string text = trainer_test::read_file(generation_test::reference + "chat/chatml.jinja");
  for (const std::string mark : {"<call>", "</call>"}) {
    const std::size_t at = text.find(mark);
    REQUIRE(at != std::string::npos);
    text.insert(at + mark.find('c'), "tool_");
  }
  return generation_test::trained().write("calls.jinja", text);
}

}  // namespace server_test
