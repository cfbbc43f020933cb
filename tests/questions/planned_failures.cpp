// What a plan says that failures cost, compared with the ledgers of runs whose ranks are killed at
// random times.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "folder.hpp"

import tessera.base;
import tessera.runs;
import tessera.app.plan;

using namespace tessera;
using tessera::testing::Folder;
using tessera::testing::read_if_there;

namespace {

constexpr int steps = 600;
constexpr int keep_every = 20;
const std::string config = R"([model]
dim = 32
layers = 2
heads = 2
kv_heads = 2
ffn_dim = 64
[data]
text = ["text.txt"]
seq_len = 64
validation = 0
[train]
steps = 600
batch = 8
threads = 1
heal = true
heal_every = 20
heal_limit = 100000
[mesh]
axes = ["shard"]
shape = [2]
[[parallel]]
style = "FSDP"
axis = "shard"
on = ["model.layers.*", "."]
[checkpoint]
folder = ""
[log]
metrics = "metrics.jsonl"
every = 100
)";

/// What a run has taken.
struct Taken {
  runs::TimeBook ledger;  // of rank 0, from the first step to the last
  double wall = 0;        // seconds from its start to its end
  int kills = 0;
};

std::vector<pid_t> ranks_of(pid_t run) {
  std::vector<pid_t> ranks;
  const std::string number = std::to_string(run);
  std::ifstream children("/proc/" + number + "/task/" + number + "/children");
  for (pid_t rank = 0; children >> rank;) {
    ranks.push_back(rank);
  }
  return ranks;
}

/// The step of the last line.
std::int64_t last_step(const Folder& folder) {
  const std::string text = read_if_there(folder / "metrics.jsonl");
  const std::size_t at = text.rfind("{\"step\":");
  return at == std::string::npos ? 0 : std::strtoll(text.c_str() + at + 8, nullptr, 10);
}

/// Trains; from the first step on, a rank is killed at random times, `between` seconds apart on
/// average, and at most so many times.
Taken train(std::mt19937_64& random, double between, int most_kills) {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 1000; ++i) {
    text += "line " + std::to_string(i * i % 97) + " of a text\n";
  }
  folder.write("text.txt", text);
  folder.write("run.toml", config);
  const auto start = std::chrono::steady_clock::now();
  const pid_t run = ::fork();
  REQUIRE(run >= 0);
  if (run == 0) {
    const int log = ::open((folder / "log.txt").c_str(), O_WRONLY | O_CREAT, 0600);
    ::dup2(log, 1);
    ::dup2(log, 2);
    if (::chdir(folder.path().c_str()) == 0) {
      ::execl(TESSERA_PROGRAM, "tessera", "train", "run.toml", nullptr);
    }
    ::_exit(127);
  }
  Taken taken;
  std::exponential_distribution<double> waits(1 / between);
  std::optional<std::chrono::steady_clock::time_point> next;
  const auto draw = [&](std::chrono::steady_clock::time_point from) {
    next = from + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                      std::chrono::duration<double>(waits(random)));
  };
  int status = 0;
  while (::waitpid(run, &status, WNOHANG) == 0) {
    const auto now = std::chrono::steady_clock::now();
    if (!next && last_step(folder) > 0) {
      draw(now);
    }
    if (next && now >= *next && taken.kills < most_kills && last_step(folder) < steps - 5) {
      const std::vector<pid_t> ranks = ranks_of(run);
      if (!ranks.empty() && ::kill(ranks[random() % ranks.size()], SIGKILL) == 0) {
        ++taken.kills;
        draw(*next);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  taken.wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  INFO(read_if_there(folder / "log.txt"));
  REQUIRE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  for (const runs::StepMetrics& step : runs::read_metrics(folder / "metrics.jsonl")) {
    taken.ledger += step.ledger;
  }
  return taken;
}

/// What the run would have taken without failures, saving included.
double work_of(const runs::TimeBook& ledger) {
  using runs::TimeUse;
  return ledger.total() - ledger[TimeUse::start] - ledger[TimeUse::heal] -
         ledger[TimeUse::repeated] - ledger[TimeUse::end];
}

int runs_asked() {
  const char* const asked = std::getenv("TESSERA_FAILURE_RUNS");
  return asked == nullptr ? 100 : std::atoi(asked);
}

/// The mean time that ranks need until they compute again when nothing else happens, of runs with
/// one kill each.
class RestartTime {
 public:
  void measure(std::mt19937_64& random) {
    const Taken once = train(random, 0.2, 1);
    REQUIRE(once.kills == 1);
    sum_ += once.ledger[runs::TimeUse::heal];
    ++count_;
  }
  double mean() const { return sum_ / count_; }

 private:
  double sum_ = 0;
  int count_ = 0;
};

/// What is known of a run without looking at its failures.
struct Undisturbed {
  double work = 0;  // seconds
  double save = 0;
};

}  // namespace

TEST_CASE("runs whose ranks are killed take as long as a plan says") {
  std::mt19937_64 random(1);
  RestartTime restart;
  for (int i = 0; i < 4; ++i) {
    restart.measure(random);
  }
  const double between = 6 * restart.mean();
  std::vector<Undisturbed> undisturbed;
  double measured = 0;
  double repeated = 0;
  double healing = 0;
  int kills = 0;
  const int count = runs_asked();
  for (int i = 0; i < count; ++i) {
    if (i % 4 == 0) {
      restart.measure(random);  // all the time, as the machine may have other work for some of it
    }
    const Taken run = train(random, between, 1'000'000);
    const double save = run.ledger[runs::TimeUse::save];
    undisturbed.push_back({work_of(run.ledger) - save, save});
    measured +=
        work_of(run.ledger) + run.ledger[runs::TimeUse::heal] + run.ledger[runs::TimeUse::repeated];
    repeated += run.ledger[runs::TimeUse::repeated];
    healing += run.ledger[runs::TimeUse::heal];
    kills += run.kills;
  }
  double predicted = 0;
  for (const auto& [work, save] : undisturbed) {
    constexpr double intervals = static_cast<double>(steps) / keep_every;
    predicted += work * app::time_by_work({.between = between,
                                           .write = save / intervals,
                                           .restart = restart.mean(),
                                           .interval = work / intervals});
  }
  const double by_work = measured / predicted;
  std::cout << count << " runs, " << kills << " kills, a restart " << restart.mean()
            << " s, between " << between << " s: measured " << measured << " s (healing " << healing
            << " s, repeated " << repeated << " s), predicted " << predicted << " s, ratio "
            << by_work << "\n";
  CHECK(2 * kills > count);
  if (count >= 100) {
    CHECK(std::abs(by_work - 1) < 0.03);
  }
}
