// Tests that run launches in processes of their own. Include it after the imports.
#pragma once
#include "texts.hpp"

namespace collective_test {

using tessera::testing::contains;
using tessera::testing::count;

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Outcome {
  int code = 0;
  std::string errors;  // stderr as a whole
  double seconds = 0;
};

/// Runs `body` in a process of its own, as a program would.
inline Outcome as_program(const std::function<int()>& body) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const auto begin = Clock::now();
  std::fflush(nullptr);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    int code = 99;
    try {
      code = body();
    } catch (const tessera::Error& error) {
      std::fprintf(stderr, "thrown: %s\n", error.what());
    }
    _exit(code);
  }
  close(ends[1]);
  Outcome outcome;
  char buffer[4096];
  // Ends when the last process that holds the pipe has ended: no rank may stay behind.
  for (ssize_t got = 0; (got = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    outcome.errors.append(buffer, static_cast<std::size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  outcome.seconds = seconds_since(begin);
  return outcome;
}

/// Names in /dev/shm that this library made.
inline std::vector<std::string> left_in_shared_memory() {
  std::vector<std::string> names;
  if (std::filesystem::exists("/dev/shm")) {
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      if (contains(entry.path().filename().string(), "tessera")) {
        names.push_back(entry.path().filename().string());
      }
    }
  }
  return names;
}

inline void reduce_one(tessera::collective::World& world) {
  float x = 1;
  world.everyone().all_reduce(&x, &x, 1, tessera::DType::f32);
}

}  // namespace collective_test
