// Several launchers of one run: which state they continue from.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "free_port.hpp"
#include "shared_object.hpp"

import tessera.base;
import tessera.plugin;
import tessera.collective;

using namespace tessera;
using namespace tessera::collective;

#include "processes.hpp"

using namespace collective_test;

namespace {

using Steps = std::vector<std::int64_t>;

/// Says that it has states of these steps.
class Holds final : public StateStore {
 public:
  explicit Holds(Steps steps) : steps_(std::move(steps)) {}
  std::vector<std::int64_t> whole() const override { return steps_; }
  std::optional<StateGeneration> generation(std::int64_t) const override { return std::nullopt; }
  std::int64_t wait_for_newer(std::int64_t, double seconds) const override {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    return -1;
  }
  std::vector<std::span<std::byte>> begin_copy(std::span<const std::uint64_t>) override {
    return {};
  }
  void end_copy(std::int64_t) override {}
  void set_copied(std::int64_t) override {}

 private:
  Steps steps_;
};

/// What each of two launchers is told to continue from, after a rank of the second one has died.
std::array<std::int64_t, 2> continued_from(const std::array<Steps, 2>& held) {
  struct Shared {
    std::array<std::atomic<std::int64_t>, 2> from{-2, -2};
  };
  auto* const shared = tessera::testing::shared_object<Shared>();
  const std::string meet = "127.0.0.1:" + std::to_string(tessera::testing::free_port());
  const Outcome outcome = as_program([&] {
    plugin::host().load(TESSERA_TCP);
    const pid_t second = fork();
    const int machine = second == 0 ? 1 : 0;
    Holds holds(held[static_cast<std::size_t>(machine)]);
    std::atomic<std::int64_t>& from = shared->from[static_cast<std::size_t>(machine)];
    const int code = launch({.ranks = 2,
                             .timeout_seconds = 20,
                             .place = LauncherPlace{machine, 2, meet},
                             .grace_seconds = 1,
                             .restart =
                                 [&](const FailedAttempt& failed) {
                                   from = failed.kept;
                                   return failed.number == 1;
                                 },
                             .kept = &holds},
                            [&](World& world) {
                              world.everyone().barrier();
                              if (world.rank() == 1 && from == -2) {
                                kill(getpid(), SIGKILL);
                              }
                              world.everyone().barrier();
                              return 7;
                            });
    if (second == 0) {
      _exit(code);
    }
    int status = 0;
    waitpid(second, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == code ? code : 98;
  });
  INFO(outcome.errors);
  CHECK(outcome.code == 7);
  return {shared->from[0], shared->from[1]};
}

}  // namespace

TEST_CASE("launchers continue from the newest state that all of them hold") {
  using Both = std::array<std::int64_t, 2>;
  CHECK(continued_from({Steps{4, 5}, Steps{3, 4}}) == Both{4, 4});
  CHECK(continued_from({Steps{3, 4}, Steps{4, 5}}) == Both{4, 4});
  CHECK(continued_from({Steps{4, 5}, Steps{4, 5}}) == Both{5, 5});
  CHECK(continued_from({Steps{5}, Steps{4}}) == Both{-1, -1});
}
