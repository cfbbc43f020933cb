// Ranks that are slower than the others: named while the run continues.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "layouts.hpp"
#include "program.hpp"

using namespace faults;

namespace {

/// Stops a process for half of the time, in short turns, while the object lives.
class Slowed {
 public:
  explicit Slowed(pid_t process)
      : process_(process), turns_([this] {
          while (!ended_) {
            kill(process_, SIGSTOP);
            pause();
            kill(process_, SIGCONT);
            pause();
          }
        }) {}
  Slowed(const Slowed&) = delete;
  Slowed& operator=(const Slowed&) = delete;
  ~Slowed() {
    ended_ = true;
    turns_.join();
  }

 private:
  static void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

  pid_t process_;
  std::atomic<bool> ended_{false};
  std::thread turns_;
};

const Words endless = {"train", "run.toml", "train.steps=100000000", "train.threads=1"};

/// Two stages of two ranks each.
const Words wide_pipeline = {"mesh.axes=[pipe,shard]", "mesh.shape=[2,2]", "train.micro_batch=1",
                             R"(parallel=[{style=Pipeline,axis=pipe,on=["."]},)"
                             R"({style=FSDP,axis=shard,on=["model.layers.*","."]}])",
                             "graph.capture=true"};

/// Whether the warning that names this rank alone comes within some seconds.
bool is_named(const Program& program, int rank) {
  const std::string words = "the other ranks wait for rank " + std::to_string(rank) + " in";
  return within(20, [&] { return program.error().find(words) != std::string::npos; });
}

void stop(Program& program) {
  program.signal(SIGINT);
  CHECK(program.wait(20).code == 130);
}

}  // namespace

TEST_CASE("a rank that becomes slow is named while the run continues, and when it no longer is") {
  const RunFolder folder;
  Program program(folder, with(endless, sharded.arguments));
  REQUIRE(within(30, [&] { return steps_in(folder / "metrics.jsonl").size() >= 200; }));
  CHECK(program.error().empty());
  {
    const Slowed slowed(program.ranks()[1]);
    CHECK(is_named(program, 1));
  }
  CHECK(within(20,
               [&] { return program.error().find("no rank is waited for") != std::string::npos; }));
  stop(program);
  INFO(program.error());
  CHECK(count(program.error(), "warning:") == 2);
  // The figure from which it was derived.
  CHECK(read_file(folder / "metrics.jsonl").find(R"("waited_for":{"rank":1,"seconds":0.0)") !=
        std::string::npos);
}

TEST_CASE("a slow rank is named among those of its stage, in a captured step") {
  const RunFolder folder;
  Program program(folder, with(endless, wide_pipeline));
  REQUIRE(within(30, [&] { return steps_in(folder / "metrics.jsonl").size() >= 10; }));
  {
    const Slowed slowed(program.ranks()[2]);
    CHECK(is_named(program, 2));
  }
  stop(program);
}

TEST_CASE("a stage of one rank that becomes slow is named") {
  const RunFolder folder;
  Program program(folder, with(endless, pipeline.arguments));
  REQUIRE(within(30, [&] { return steps_in(folder / "metrics.jsonl").size() >= 10; }));
  std::this_thread::sleep_for(std::chrono::seconds(2));  // what it needs otherwise becomes known
  {
    const Slowed slowed(program.ranks()[1]);
    CHECK(is_named(program, 1));
  }
  stop(program);
}

TEST_CASE("ranks that share cores are not called slow") {
  const RunFolder folder;
  Program program(folder, with(endless, mixed.arguments));
  REQUIRE(within(30, [&] { return steps_in(folder / "metrics.jsonl").size() >= 10; }));
  std::this_thread::sleep_for(std::chrono::seconds(4));
  stop(program);
  CHECK(program.error().empty());
}

TEST_CASE("a share of a step that is no share is refused") {
  const RunFolder folder;
  are_refused(folder, {{{"log.stragglers=-0.1"}, {"log.stragglers", "-0.1"}},
                       {{"log.stragglers=often"}, {"log.stragglers"}}});
}
