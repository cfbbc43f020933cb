// Ranks that another program started: they find each other, share memory, and notice who has died.
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.collective;

using namespace tessera;
using namespace tessera::collective;

#include "errors.hpp"
#include "processes.hpp"

using namespace collective_test;

namespace {

using Environment = std::map<std::string, std::string>;

/// Rank `rank` of `size`, of a job of this test process.
Environment rank_of(int rank, int size, const std::string& job = "test") {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(size)},
          {"TESSERA_JOB", job + "-" + std::to_string(getpid())}};
}

void set(const Environment& environment) {
  for (const auto& [name, value] : environment) {
    setenv(name.c_str(), value.c_str(), 1);
  }
}

/// Starts a rank in a process of its own, which ends with the rank's exit code.
pid_t start(const Environment& environment, const std::function<int()>& rank) {
  const pid_t child = fork();
  if (child == 0) {
    set(environment);
    int code = 99;
    try {
      code = rank();
    } catch (const Error& error) {
      std::fprintf(stderr, "thrown: %s\n", error.what());
      code = error.kind() == ErrorKind::input ? 2 : 1;
    }
    _exit(code);
  }
  return child;
}

int code_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// All ranks of a job at once; returns the highest exit code and what they wrote on stderr.
Outcome run_joined(int size, const RankFunction& rank, const std::string& job = "test",
                   double timeout = 10, int wanted = -1) {
  const std::vector<Environment> environments = [&] {
    std::vector<Environment> all;
    for (int r = 0; r < size; ++r) {
      all.push_back(rank_of(r, size, job));
    }
    return all;
  }();
  return as_program([&] {
    std::vector<pid_t> ranks;
    for (const Environment& environment : environments) {
      ranks.push_back(start(environment, [&] {
        return join_launch({.ranks = wanted < 0 ? size : wanted, .timeout_seconds = timeout}, rank);
      }));
    }
    int code = 0;
    for (const pid_t child : ranks) {
      code = std::max(code, code_of(child));
    }
    return code;
  });
}

int sum_of_ranks(World& world) {
  std::vector<float> x(300'000, static_cast<float>(world.rank()));
  world.everyone().all_reduce(x.data(), x.data(), 300'000, DType::f32);
  world.everyone().barrier();
  const int wanted = world.size() * (world.size() - 1) / 2;
  return x[299'999] == static_cast<float>(wanted) && current_rank() == world.rank() ? 0 : 97;
}

}  // namespace

#if !__has_feature(thread_sanitizer)  // it holds signals back
TEST_CASE("a rank that waits for others to join ends at a signal, blocked or not") {
  for (const bool blocked : {false, true}) {
    const Environment first = rank_of(0, 2, "alone");
    const Outcome outcome = as_program([&] {
      set(first);
      sigset_t signals;
      sigemptyset(&signals);
      if (blocked) {
        sigaddset(&signals, SIGTERM);
      }
      sigprocmask(SIG_SETMASK, &signals, nullptr);
      const pid_t rank = getpid();
      if (fork() == 0) {
        usleep(300'000);
        kill(rank, SIGTERM);
        _exit(0);
      }
      return join_launch({.ranks = 2, .timeout_seconds = 20}, sum_of_ranks);
    });
    CHECK(outcome.code == 1000 + SIGTERM);
    CHECK(outcome.seconds < 10);
    CHECK(outcome.errors.empty());
  }
}
#endif

TEST_CASE("ranks that another program started meet by name and leave nothing behind") {
  const Outcome good = run_joined(3, sum_of_ranks);
  INFO(good.errors);
  CHECK(good.code == 0);
  CHECK(run_joined(2, sum_of_ranks, "any number", 10, 0).code == 0);
  CHECK(good.errors.empty());
  CHECK(left_in_shared_memory().empty());
  const Outcome failed = run_joined(3, [](World& world) -> int {
    world.set_progress(4, "forward");
    if (world.rank() == 1) {
      fail("rank one gives up");
    }
    reduce_one(world);
    return 0;
  });
  CHECK(failed.code == 1);
  CHECK(failed.errors == "error: rank 1, step 4, forward: rank one gives up\n");
}

TEST_CASE("joined ranks do not use /dev/shm: a small one is enough") {
  const Environment rank_zero = rank_of(0, 2);
  const Environment rank_one = rank_of(1, 2);
  const Outcome outcome = as_program([&] {
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) ||
        mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64k")) {
      return 77;
    }
    const auto rank = [] {
      return join_launch({.ranks = 2, .timeout_seconds = 10}, [](World& world) {
        const SharedBuffer buffer = world.allocate(std::size_t{8} << 20);
        std::fill_n(buffer.data(), buffer.bytes(), std::byte{1});
        return sum_of_ranks(world);
      });
    };
    const pid_t other = start(rank_one, rank);
    const int code = code_of(start(rank_zero, rank));
    return std::max(code, code_of(other));
  });
  if (outcome.code == 77) {
    WARN("skipped: a small /dev/shm cannot be mounted here (it takes root)");
    return;
  }
  INFO(outcome.errors);
  CHECK(outcome.code == 0);
}

TEST_CASE("a joined rank that dies while it holds the lock does not stop the others for ever") {
  // Rank 1 spends most of its time in allocate and release, under the lock; where it dies is left
  // to chance, so several die.
  for (int round = 0; round < 5; ++round) {
    const Outcome outcome = run_joined(
        2,
        [&](World& world) -> int {
          world.everyone().barrier();
          const auto begin = Clock::now();
          if (world.rank() == 1) {
            std::thread([&] {
              usleep(20'000 + 3'000 * static_cast<unsigned>(round));
              kill(getpid(), SIGKILL);
            }).detach();
          }
          while (world.rank() == 1 || seconds_since(begin) < 0.2) {
            world.allocate(std::size_t{16} << 20);
          }
          reduce_one(world);
          return 0;
        },
        "lock", 20);
    INFO(outcome.errors);
    CHECK(outcome.code == 128 + SIGKILL);
    CHECK(outcome.seconds < 15);
    CHECK(count(outcome.errors, "error:") == 1);
    CHECK(contains(outcome.errors, "rank 1, for which this rank waits, has died"));
  }
}

TEST_CASE("a rank whose process is a zombie, or whose number another process has, is dead") {
  const Environment rank_zero = rank_of(0, 2, "reused");
  const Environment rank_one = rank_of(1, 2, "reused");
  for (const bool reused : {false, true}) {
    const Outcome outcome = as_program([&] {
      const LaunchOptions options{.ranks = 2, .timeout_seconds = 5};
      const pid_t victim = start(rank_one, [&] {
        return join_launch(options, [](World& world) -> int {
          reduce_one(world);
          usleep(50'000);  // starts are told apart to a hundredth of a second
          raise(SIGKILL);
          return 0;
        });
      });
      const pid_t survivor = start(rank_zero, [&] {
        return join_launch(options, [](World& world) -> int {
          reduce_one(world);
          usleep(300'000);
          reduce_one(world);
          return 0;
        });
      });
      pid_t stranger = 0;
      if (reused) {
        waitpid(victim, nullptr, 0);
        pid_t number = victim;
        clone_args arguments{};
        arguments.exit_signal = SIGCHLD;
        arguments.set_tid = reinterpret_cast<std::uint64_t>(&number);
        arguments.set_tid_size = 1;
        stranger = static_cast<pid_t>(syscall(SYS_clone3, &arguments, sizeof(arguments)));
        if (stranger == 0) {
          pause();
        }
        if (stranger != victim) {
          kill(survivor, SIGKILL);
          return 77;
        }
      }
      const int code = code_of(survivor);  // the victim has not been waited for where not reused
      if (stranger > 0) {
        kill(stranger, SIGKILL);
      }
      return code;
    });
    if (outcome.code == 77) {
      WARN("skipped: the number of a process cannot be chosen here (it takes root)");
      continue;
    }
    INFO(outcome.errors);
    CHECK(outcome.code == 1);
    CHECK(outcome.seconds < 4);
    CHECK(contains(outcome.errors, "rank 1, for which this rank waits, has died"));
  }
}

TEST_CASE("a rank that dies while the ranks meet ends the others at once") {
  for (const int killed : {0, 1}) {
    std::vector<Environment> environments;
    for (int rank = 0; rank < 3; ++rank) {
      environments.push_back(rank_of(rank, 3, "meeting"));
    }
    // Rank 2 never comes, so the others are meeting when one of them is killed.
    const Outcome outcome = as_program([&] {
      const auto rank = [] {
        return join_launch({.ranks = 3, .timeout_seconds = 20}, [](World&) { return 0; });
      };
      const pid_t zero = start(environments[0], rank);
      const pid_t one = start(environments[1], rank);
      usleep(300'000);
      kill(killed == 0 ? zero : one, SIGKILL);
      return code_of(killed == 0 ? one : zero);
    });
    INFO(outcome.errors);
    CHECK(outcome.code == 1);
    CHECK(outcome.seconds < 5);
    CHECK(count(outcome.errors, "error:") == 1);
    CHECK(contains(outcome.errors,
                   "rank " + std::to_string(killed) + " ended before all ranks had joined"));
  }
}

TEST_CASE("two jobs of one name are an error, not a mixture") {
  const Environment first = rank_of(0, 3, "same");
  const Environment second = rank_of(1, 3, "same");
  const auto rank = [] {
    return join_launch({.ranks = 3, .timeout_seconds = 20}, [](World&) { return 0; });
  };
  const Outcome zeros = as_program([&] {
    const pid_t one = start(first, rank);
    usleep(100'000);
    const int code = code_of(start(first, rank));
    kill(one, SIGKILL);
    return code;
  });
  INFO(zeros.errors);
  CHECK(zeros.code == 2);
  CHECK(contains(zeros.errors, "another job named 'same-"));
  CHECK(contains(zeros.errors, "TESSERA_JOB"));
  const Outcome ones = as_program([&] {
    const pid_t zero = start(first, rank);
    const pid_t one = start(second, rank);
    usleep(200'000);
    const pid_t other = start(second, rank);
    return std::min({code_of(zero), code_of(one), code_of(other)});
  });
  INFO(ones.errors);
  CHECK(ones.code >= 1);
  CHECK(ones.seconds < 5);
  CHECK(contains(ones.errors, "two processes are rank 1 of the job 'same-"));
}

TEST_CASE("a rank says who did not join") {
  for (const int rank : {0, 2}) {
    const Environment environment = rank_of(rank, 3, "alone");
    const Outcome outcome = as_program([&] {
      return code_of(start(environment, [] {
        return join_launch({.ranks = 3, .timeout_seconds = 0.5, .report_seconds = 0.2},
                           [](World&) { return 0; });
      }));
    });
    INFO(outcome.errors);
    CHECK(outcome.code == 1);
    const std::string missing = rank == 0 ? "ranks 1 and 2" : "rank 0";
    CHECK(count(outcome.errors, missing + " did not join the job 'alone-") == 1);
    CHECK(contains(outcome.errors, missing + " did not join within 0.5 s; are all ranks started"));
  }
}

namespace {

/// Runs `size` ranks, of which those in `refused` fail before they join.
Outcome run_refused(int size, const std::vector<int>& refused, const std::string& job) {
  std::vector<Environment> environments;
  for (int rank = 0; rank < size; ++rank) {
    environments.push_back(rank_of(rank, size, job));
  }
  return as_program([&] {
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < size; ++rank) {
      const bool refuse = std::find(refused.begin(), refused.end(), rank) != refused.end();
      ranks.push_back(start(environments[static_cast<std::size_t>(rank)], [&, rank, refuse] {
        if (refuse) {
          report_refusal("no such file", ErrorKind::input,
                         [&] { std::fprintf(stderr, "no such file (rank %d)\n", rank); });
          return 2;
        }
        try {
          return join_launch({.ranks = size, .timeout_seconds = 30}, [](World&) { return 99; });
        } catch (const PeerFailed& error) {
          return error.kind() == ErrorKind::input ? 2 : 98;
        }
      }));
    }
    int all_two = 2;
    for (const pid_t child : ranks) {
      all_two = code_of(child) == 2 ? all_two : 97;
    }
    return all_two;
  });
}

}  // namespace

TEST_CASE("ranks that fail before they join end the others within seconds, with one message") {
  for (const std::vector<int>& refused : std::vector<std::vector<int>>{{0}, {1}, {0, 1, 2}}) {
    const Outcome outcome = run_refused(
        3, refused, "refused" + std::to_string(refused.size()) + std::to_string(refused[0]));
    INFO(refused.size() << " from " << refused[0] << ": " << outcome.errors);
    CHECK(outcome.code == 2);
    CHECK(outcome.seconds < 8);
    CHECK(outcome.errors == "no such file (rank " + std::to_string(refused[0]) + ")\n");
  }
}

TEST_CASE("a rank that fails alone prints its error itself") {
  for (const int rank : {0, 1}) {
    const Environment environment = rank_of(rank, 2, "nobody");
    const Outcome outcome = as_program([&] {
      return code_of(start(environment, [] {
        report_refusal("x", ErrorKind::input, [] { std::fputs("printed", stderr); });
        return 2;
      }));
    });
    CHECK(outcome.errors == "printed");
    CHECK(outcome.seconds < 8);
  }
}

namespace {

struct Launched {
  bool by_other;
  bool first;
};

/// What a process with these variables, and no others of launchers, is.
Launched launched(const Environment& environment, const MachineOptions& said = {}) {
  const Outcome outcome = as_program([&] {
    set(environment);
    return (launched_by_other(said) ? 1 : 0) + (is_first_process(said) ? 2 : 0);
  });
  return {(outcome.code & 1) != 0, (outcome.code & 2) != 0};
}

/// What join_launch of `ranks` ranks of one machine says in a process with these variables.
Outcome refusal(const Environment& environment, int ranks) {
  return as_program([&] {
    return code_of(start(environment, [&] {
      return join_launch({.ranks = ranks, .timeout_seconds = 20, .transport = "shm"},
                         [](World&) { return 0; });
    }));
  });
}

}  // namespace

TEST_CASE("the launcher is known by what it sets") {
  CHECK_FALSE(launched({}).by_other);
  CHECK(launched({}).first);
  for (const int rank : {0, 1}) {
    const std::string r = std::to_string(rank);
    for (const Environment& environment :
         {Environment{{"RANK", r}, {"WORLD_SIZE", "2"}},
          Environment{{"OMPI_COMM_WORLD_RANK", r}, {"OMPI_COMM_WORLD_SIZE", "2"}},
          Environment{{"PMI_RANK", r}, {"PMI_SIZE", "2"}},
          Environment{{"SLURM_PROCID", r}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}},
          // mpirun inside a Slurm step of one task
          Environment{{"OMPI_COMM_WORLD_RANK", r},
                      {"OMPI_COMM_WORLD_SIZE", "2"},
                      {"SLURM_PROCID", "0"},
                      {"SLURM_NTASKS", "1"},
                      {"SLURM_STEP_ID", "0"}}}) {
      CHECK(launched(environment).by_other);
      CHECK(launched(environment).first == (rank == 0));
    }
  }
  // The script of a batch job and an interactive shell have a task's numbers too.
  CHECK_FALSE(launched({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}).by_other);
  CHECK_FALSE(
      launched({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "4294967290"}})
          .by_other);
  // One task of one may launch ranks itself.
  CHECK_FALSE(launched({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).by_other);
}

TEST_CASE("what is said of a machine goes before its environment, which has the rest") {
  const Environment srun = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TESSERA_MEET", "localhost:7000"}};
  CHECK(launched(srun).by_other);
  CHECK_FALSE(launched(srun, {.machines = 2, .number = 1}).by_other);
  CHECK_FALSE(launched(srun, {.machines = 2, .number = 1}).first);
  CHECK(launched(srun, {.machines = 2, .number = 0}).first);
  const Outcome outcome = as_program([&] {
    set({{"TESSERA_MACHINES", "3"}, {"TESSERA_MACHINE_NUMBER", "2"}});
    const auto place = launcher_place({.number = 1, .meet = "localhost:7001", .ranks = 5});
    return place && place->machines == 3 && place->machine == 1 &&
                   place->meet == "localhost:7001" && place->ranks_of(12) == 5
               ? 7
               : 8;
  });
  CHECK(outcome.code == 7);
  const std::string error =
      tessera::testing::error_of([] { launcher_place({.meet = "localhost:7000"}); });
  CHECK(error.starts_with("--machines: is missing"));
}

TEST_CASE("ranks on several machines are refused at once by shared memory, on each of them") {
  for (const int rank : {0, 3}) {
    const std::string r = std::to_string(rank);
    for (const Environment& environment :
         {Environment{{"RANK", r}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}},
          Environment{{"OMPI_COMM_WORLD_RANK", r},
                      {"OMPI_COMM_WORLD_SIZE", "4"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
          Environment{{"PMI_RANK", r}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "2"}},
          Environment{{"SLURM_PROCID", r},
                      {"SLURM_NTASKS", "4"},
                      {"SLURM_NNODES", "2"},
                      {"SLURM_JOB_ID", "7"},
                      {"SLURM_STEP_ID", "0"}}}) {
      const Outcome outcome = refusal(environment, 4);
      INFO(outcome.errors);
      CHECK(outcome.code == 2);
      CHECK(outcome.seconds < 5);
      CHECK(contains(outcome.errors, "all ranks must be on one machine"));
      CHECK(contains(outcome.errors, "set `mesh.transport` to \"auto\""));
    }
  }
}

TEST_CASE("jobs and steps that run at the same time do not meet") {
  // Each pair differs in one variable; a rank 0 and a rank 1 of different jobs wait in vain.
  const std::string own = std::to_string(getpid());
  const auto with = [&](Environment environment, const std::string& name,
                        const std::string& value) {
    environment[name] = value;
    return environment;
  };
  const Environment torch_rank = {{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", own}};
  const Environment slurm = {
      {"SLURM_NTASKS", "2"}, {"SLURM_JOB_ID", own}, {"SLURM_STEP_ID", "0"}, {"SLURM_NNODES", "1"}};
  const Environment mpi = {{"OMPI_COMM_WORLD_SIZE", "2"}, {"MASTER_PORT", own}};
  struct Pair {
    Environment common;
    const char* rank;
    const char* differs;
  };
  for (const Pair& pair : {Pair{with(torch_rank, "WORLD_SIZE", "2"), "RANK", "TORCHELASTIC_RUN_ID"},
                           Pair{slurm, "SLURM_PROCID", "SLURM_STEP_ID"},
                           Pair{mpi, "OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE"}}) {
    for (const bool same : {true, false}) {
      const auto environment = [&](int rank) {
        return with(with(pair.common, pair.rank, std::to_string(rank)), pair.differs,
                    same || rank == 0 ? "1" : "2");
      };
      const Outcome outcome = as_program([&] {
        const auto rank = [] {
          return join_launch({.ranks = 2, .timeout_seconds = 0.7}, sum_of_ranks);
        };
        const pid_t other = start(environment(1), rank);
        const int code = code_of(start(environment(0), rank));
        return std::max(code, code_of(other));
      });
      INFO(pair.differs << ": " << outcome.errors);
      CHECK(outcome.code == (same ? 0 : 1));
    }
  }
}
