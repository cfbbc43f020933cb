// Interrupts at random moments, most of them within products: every run ends with its step saved,
// and continues with the same bits. oneDNN's products use the stack pointer as an ordinary
// register, so a handler that ran in a thread that computes one would write anywhere.
#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "program.hpp"
#include "thread_signals.hpp"

using namespace faults;
using namespace tessera;

namespace {

// Extents at which a step consists mostly of products.
const char* const large_run = R"([model]
dim = 256
layers = 1
heads = 4
kv_heads = 4
ffn_dim = 512
[data]
text = ["text.txt"]
seq_len = 64
validation = 0
[train]
batch = 4
[checkpoint]
every = 0
keep = 1
)";

struct Kind {
  int ranks;
  std::string executor;  // "": eager
};

std::vector<std::string> arguments_of(const Kind& kind, std::int64_t steps) {
  std::vector<std::string> arguments = {"train", "run.toml",
                                        "train.steps=" + std::to_string(steps)};
  if (kind.ranks == 3) {
    arguments.emplace_back("train.batch=6");  // as many rows on each rank
  }
  if (kind.ranks > 1) {
    arguments.insert(arguments.end(),
                     {"mesh.axes=[shard]", "mesh.shape=[" + std::to_string(kind.ranks) + "]",
                      R"(parallel=[{style="FSDP",axis="shard",on=["model.layers.*","."]}])"});
  }
  if (!kind.executor.empty()) {
    arguments.insert(arguments.end(), {"graph.capture=true", "graph.executor=" + kind.executor});
  }
  return arguments;
}

/// The losses of a metrics file as they are written: all digits.
std::vector<std::string> losses_in(const RunFolder& folder) {
  std::vector<std::string> losses;
  for (const std::string& line : lines_of(read_file(folder / "metrics.jsonl"))) {
    const std::size_t begin = line.find("\"loss\":");
    losses.push_back(line.substr(begin, line.find(',', begin) - begin));
  }
  return losses;
}

/// The losses of runs that nothing interrupts, by ranks. Captured steps have the same bits.
const std::vector<std::string>& uninterrupted(int ranks, std::size_t steps) {
  static std::map<int, std::vector<std::string>> known;
  std::vector<std::string>& losses = known[ranks];
  if (losses.size() < steps) {
    const RunFolder folder;
    folder.write("run.toml", large_run);
    const Result whole = run(folder, arguments_of({ranks, ""}, static_cast<std::int64_t>(steps)));
    INFO(whole.error);
    REQUIRE(whole.code == 0);
    losses = losses_in(folder);
  }
  return losses;
}

/// Interrupts a run again and again; each time it continues where it was.
void interrupt(const Kind& kind, int times, std::mt19937& random) {
  constexpr std::array numbers = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};
  const RunFolder folder;
  folder.write("run.toml", large_run);
  std::int64_t done = 0;
  for (int i = 0; i < times; ++i) {
    const std::string before = read_file(folder / "metrics.jsonl");
    Program program(folder, arguments_of(kind, 100000000));
    // At every moment of the first steps.
    const double seconds = std::uniform_real_distribution<double>(0, 0.08)(random);
    const int number = numbers.at(random() % numbers.size());
    const bool group = random() % 2 == 0;
    INFO(kind.ranks << " ranks, '" << kind.executor << "', interrupt " << i << ": signal " << number
                    << " after " << seconds << " s, to the group: " << group);
    REQUIRE(within(60, [&] { return read_file(folder / "metrics.jsonl").size() > before.size(); }));
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    group ? program.signal_group(number) : program.signal(number);
    const Result result = program.wait(60);
    INFO(result.out << result.error);
    REQUIRE(result.code == 130);
    CHECK(result.error.empty());
    CHECK(result.left_running == 0);
    CHECK(step_after(result.out, "resumed after step ") == (i == 0 ? -1 : done));
    done = step_after(result.out, "interrupted after step ");
    REQUIRE(checkpoints(folder / "checkpoints").size() == 1);
    CHECK(step_after(checkpoints(folder / "checkpoints")[0], "step-") == done);
  }
  const Result rest = run(folder, arguments_of(kind, done + 2));
  INFO(rest.out << rest.error);
  CHECK(rest.code == 0);
  CHECK(steps_in(folder / "metrics.jsonl") == steps_to(done + 2));
  const std::vector<std::string> losses = losses_in(folder);
  const std::vector<std::string>& expected = uninterrupted(kind.ranks, losses.size());
  CHECK(std::equal(losses.begin(), losses.end(), expected.begin()));
}

/// Looks at the threads of all ranks of a run again and again.
void block_what_they_handle(const std::vector<std::string>& more, std::size_t ranks,
                            std::size_t threads) {
  const std::uint64_t answered =
      testing::bits_of({SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU, SIGPIPE, SIGXFSZ});
  const RunFolder folder;
  std::vector<std::string> arguments = {"train", "run.toml", "train.steps=100000000",
                                        "checkpoint.every=3", "checkpoint.keep=1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  Program program(folder, arguments);
  REQUIRE(within(60, [&] { return steps_in(folder / "metrics.jsonl").size() >= 4; }));
  std::vector<pid_t> processes = program.ranks();
  if (ranks == 1) {
    processes = {program.process()};
  }
  REQUIRE(processes.size() == ranks);
  std::size_t most = 0;
  for (int look = 0; look < 100; ++look) {
    for (const pid_t process : processes) {
      const auto found = testing::thread_signals(process);
      most = std::max(most, found.size());
      std::size_t waiting = 0;
      for (const testing::ThreadSignals& thread : found) {
        waiting += thread.name == "tessera-signals" ? 1 : 0;
        REQUIRE((thread.handled & answered) == answered);
      }
      REQUIRE(waiting == 1);
      REQUIRE(testing::interruptible(found) == std::string());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(most >= threads);
  program.signal(SIGINT);
  CHECK(program.wait(20).code == 130);
}

}  // namespace

TEST_CASE("runs that are interrupted within products save, and continue with the same bits") {
  std::mt19937 random(29);
  for (const Kind& kind : {Kind{1, ""}, Kind{1, "planned"}, Kind{2, ""}, Kind{4, "planned"}}) {
    interrupt(kind, 6, random);
  }
}

TEST_CASE("hundreds of interrupts within products, on one rank and two", "[.long]") {
  std::mt19937 random(30);
  for (const int ranks : {1, 2}) {
    for (const char* const executor : {"", "interpreter", "planned", "compiled"}) {
      interrupt({ranks, executor}, ranks == 1 ? 24 : 12, random);
    }
  }
}

TEST_CASE("hundreds of interrupts within products, on three ranks and four", "[.long]") {
  std::mt19937 random(31);
  for (const int ranks : {3, 4}) {
    for (const char* const executor : {"", "interpreter", "planned", "compiled"}) {
      interrupt({ranks, executor}, 12, random);
    }
  }
}

TEST_CASE("every thread of a rank blocks the signals that the run answers") {
  // The threads of a rank: its own, one that computes with it, one for signals, one that saves.
  block_what_they_handle({"train.threads=2", "mesh.axes=[]", "mesh.shape=[]", "parallel=[]"}, 1, 4);
  // And one that moves the data of collectives.
  block_what_they_handle(
      {"train.threads=2", "mesh.background=true", "graph.capture=true", "mesh.axes=[shard]",
       "mesh.shape=[2]", R"(parallel=[{style="FSDP",axis="shard",on=["model.layers.*","."]}])"},
      2, 5);
}
