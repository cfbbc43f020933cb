// Ranks that are processes, each with its GPU of the emulator's. Include it after the imports of
// tessera.base, tessera.device, tessera.plugin and tessera.collective.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

namespace tessera::testing {

inline Device gpu(int number) { return find_device("cuda:" + std::to_string(number)); }

struct Outcome {
  int code = 0;
  std::string errors;  // of all ranks
};

/// Runs `body` in a process of its own, whose devices nobody has opened, with variables of the
/// environment.
inline Outcome as_program(const std::function<int()>& body,
                          const std::map<std::string, std::string>& variables = {}) {
  static const bool loaded = [] {
    setenv("TESSERA_EMULATOR_KERNELS", CUDA_KERNELS, 1);
    setenv("TESSERA_EMULATOR_DEVICES", "4", 1);
    plugin::host().load(CUDA_PLUGIN);
    plugin::host().load(NCCL_PLUGIN);
    return true;
  }();
  (void)loaded;
  int ends[2] = {};
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    alarm(60);  // ends what would hang
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    int code = 99;
    try {
      code = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "thrown: %s\n", error.what());
    }
    _exit(code);
  }
  close(ends[1]);
  Outcome outcome;
  char part[4096];
  for (ssize_t n = 0; (n = read(ends[0], part, sizeof(part))) > 0;) {
    outcome.errors.append(part, static_cast<std::size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  // What draws the emulator's behaviour, for a run that is to be repeated.
  const char* const modes = std::getenv("TESSERA_EMULATOR_MODES");
  outcome.errors += std::string("\nTESSERA_EMULATOR_MODES=") + (modes == nullptr ? "0" : modes);
  for (const auto& [name, value] : variables) {
    outcome.errors += std::string(", ").append(name).append("=").append(value);
  }
  return outcome;
}

/// Runs ranks that are processes.
inline Outcome launched(int ranks, const std::function<void(collective::World&)>& rank,
                        const std::map<std::string, std::string>& variables = {},
                        double timeout_seconds = 60) {
  return as_program(
      [&] {
        return collective::launch(
            {.ranks = ranks, .timeout_seconds = timeout_seconds, .grace_seconds = 0.5},
            [&](collective::World& world) {
              rank(world);
              return 0;
            });
      },
      variables);
}

inline std::vector<int> all_ranks(const collective::World& world) {
  std::vector<int> ranks;
  for (int r = 0; r < world.size(); ++r) ranks.push_back(r);
  return ranks;
}

inline collective::Communicator& over_nccl(collective::World& world, Device device) {
  collective::Communicator* const found = world.communicator_on(device, all_ranks(world));
  check(found != nullptr, "NCCL is used");
  return *found;
}

}  // namespace tessera::testing
