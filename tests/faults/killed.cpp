// kill -9 at any moment: one message, nothing left running, nothing left behind.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "program.hpp"

using namespace faults;

namespace {

/// All checkpoints with a final name are whole, and the same command completes the run.
void can_be_resumed(const RunFolder& folder, const std::vector<std::string>& arguments,
                    std::int64_t steps) {
  const Result rest = run(folder, arguments);
  INFO(rest.out << rest.error);
  CHECK(rest.code == 0);
  CHECK(steps_in(folder / "metrics.jsonl") == steps_to(steps));
}

/// Kills one rank of a run of our own launcher after `seconds`. Returns whether the run was there.
bool kill_a_rank(double seconds, std::size_t rank, const std::vector<std::string>& more = {}) {
  const auto shared_before = shared_memory();
  const RunFolder folder;
  const std::filesystem::path temporary = folder / "temporary";
  std::filesystem::create_directory(temporary);
  std::vector<std::string> arguments = {"train", "run.toml", "train.steps=12",
                                        "checkpoint.every=2"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  Program program(folder, arguments, {.environment = {{"TMPDIR", temporary.string()}}});
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const std::vector<pid_t> ranks = program.ranks();
  const bool there = ranks.size() == 4;
  if (there) {
    kill(ranks[rank], SIGKILL);
  }
  const Result result = program.wait(30);
  INFO("rank " << rank << " after " << seconds << " s: " << result.error);
  if (there && result.code != 0) {  // else the rank had ended just before
    CHECK(result.code == 1);
    CHECK(count(result.error, "error:") == 1);
    CHECK(result.error.starts_with("error: rank " + std::to_string(rank) +
                                   " was killed by signal 9"));
  } else {
    CHECK(result.code == 0);
  }
  CHECK(result.left_running == 0);
  CHECK(within(2, [&] { return std::ranges::includes(shared_before, shared_memory()); }));
  CHECK(std::filesystem::is_empty(temporary));
  can_be_resumed(folder, arguments, 12);
  return there;
}

/// The same for one of two ranks that another program started.
void kill_a_joined_rank(double seconds, int rank) {
  const auto shared_before = shared_memory();
  const RunFolder folder;
  const std::vector<std::string> arguments = {"train",
                                              "run.toml",
                                              "train.steps=12",
                                              "checkpoint.every=2",
                                              "mesh.axes=[shard]",
                                              "mesh.shape=[2]",
                                              "parallel=[{style=FSDP,axis=shard,on=[\".\"]}]"};
  const auto environment = [](int number) {
    return std::map<std::string, std::string>{
        {"RANK", std::to_string(number)},
        {"WORLD_SIZE", "2"},
        {"TESSERA_TIMEOUT", "20"},
        {"TESSERA_JOB", "faults-kill-" + std::to_string(getpid())}};
  };
  Program zero(folder, arguments, {.environment = environment(0)});
  Program one(folder, arguments, {.environment = environment(1)});
  // Both have to be there: a rank that never comes is another test's.
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  Program& victim = rank == 0 ? zero : one;
  Program& other = rank == 0 ? one : zero;
  victim.signal(SIGKILL);
  const bool killed = victim.wait(5).code == 128 + SIGKILL;
  const Result result = other.wait(30);
  INFO("joined rank " << rank << " after " << seconds << " s: " << result.error);
  if (killed && result.code != 0) {
    CHECK(result.code == 1);
    CHECK(count(result.error, "error:") == 1);
  }
  CHECK(result.left_running == 0);
  CHECK(within(2, [&] { return std::ranges::includes(shared_before, shared_memory()); }));
}

}  // namespace

TEST_CASE("a rank is killed at any moment") {
  for (const double seconds : {0.15, 0.45}) {
    kill_a_rank(seconds, 2);
  }
}

TEST_CASE("a rank of a step that a mode has placed is killed at any moment") {
  for (const double seconds : {0.3, 0.6}) {
    kill_a_rank(seconds, 1,
                {"parallel=[]", "mesh.axes=[data]", "mesh.shape=[4]", "graph.capture=true",
                 "graph.mode=fully_shard"});
  }
}

TEST_CASE("a killed rank of a captured pipeline is named with the action that it was at") {
  const auto shared_before = shared_memory();
  const RunFolder folder;
  Program program(folder, {"train", "run.toml", "train.steps=1000000", "train.micro_batch=1",
                           "mesh.axes=[pipe,shard]", "mesh.shape=[2,2]", "graph.capture=true",
                           "parallel=[{style=Pipeline,axis=pipe,on=[\".\"]},"
                           "{style=FSDP,axis=shard,on=[\"model.layers.*\",\".\"]}]"});
  REQUIRE(within(20, [&] { return steps_in(folder / "metrics.jsonl").size() >= 5; }));
  const std::vector<pid_t> ranks = program.ranks();
  REQUIRE(ranks.size() == 4);
  kill(ranks[1], SIGSTOP);  // of the first stage: rank 3 waits for it then, within a step
  std::this_thread::sleep_for(std::chrono::duration<double>(0.5));
  kill(ranks[3], SIGKILL);
  const Result result = program.wait(10);
  INFO(result.error);
  CHECK(result.code == 1);
  CHECK(count(result.error, "error:") == 1);
  CHECK(result.error.starts_with("error: rank 3 was killed by signal 9"));
  CHECK(count(result.error, " of stage 1, micro-batch ") == 1);
  CHECK(result.left_running == 0);
  CHECK(within(2, [&] { return std::ranges::includes(shared_before, shared_memory()); }));
}

TEST_CASE("what ranks did last is kept in a file when one of them is killed") {
  const RunFolder folder;
  Program program(folder, {"train", "run.toml", "train.steps=1000000", "log.blackbox=box",
                           "mesh.axes=[shard]", "mesh.shape=[4]",
                           "parallel=[{style=FSDP,axis=shard,on=[\"model.layers.*\",\".\"]}]"});
  REQUIRE(within(20, [&] { return steps_in(folder / "metrics.jsonl").size() >= 5; }));
  const std::vector<pid_t> ranks = program.ranks();
  REQUIRE(ranks.size() == 4);
  kill(ranks[1], SIGSTOP);  // the others wait for it then
  std::this_thread::sleep_for(std::chrono::duration<double>(2));
  kill(ranks[1], SIGKILL);
  const Result result = program.wait(10);
  INFO(result.error);
  CHECK(result.code == 1);
  CHECK(count(result.error, "error:") == 1);
  const Result said = run(folder, {"blackbox", "box"});
  INFO(said.out << said.error);
  CHECK(said.code == 0);
  CHECK(said.out.starts_with("rank 1 was killed by signal 9"));
  CHECK(count(said.out, "ranks 0, 2 and 3 waited in call ") == 1);
  CHECK(count(said.out, "for rank 1 (step ") == 1);
}

TEST_CASE("a joined rank is killed at any moment") {
  kill_a_joined_rank(0.6, 0);
  kill_a_joined_rank(0.8, 1);
}

TEST_CASE("a killed rank ends the others that have a model with it") {
  const auto shared_before = shared_memory();
  const RunFolder folder;
  REQUIRE(run(folder, {"train", "run.toml"}).code == 0);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    Program program(folder, {"generate", "checkpoints/step-00000003", "--prompt", "a", "--tokens",
                             "10000000", "--temperature", "2", "--ranks", "4", "--split", "2"});
    REQUIRE(within(20, [&] { return program.out().size() > 20; }));
    const std::vector<pid_t> ranks = program.ranks();
    REQUIRE(ranks.size() == 4);
    kill(ranks[rank], SIGKILL);
    const Result result = program.wait(10);
    INFO("rank " << rank << ": " << result.error);
    CHECK(result.code == 1);
    CHECK(count(result.error, "error:") == 1);
    CHECK(result.error.starts_with("error: rank " + std::to_string(rank) +
                                   " was killed by signal 9"));
    CHECK(result.left_running == 0);
  }
  Program program(folder, {"generate", "checkpoints/step-00000003", "--prompt", "a", "--tokens",
                           "10000000", "--ranks", "2"});
  REQUIRE(within(20, [&] { return program.out().size() > 20; }));
  program.signal(SIGINT);
  const Result result = program.wait(10);
  CHECK(result.code == 130);
  CHECK(result.error.empty());
  CHECK(result.left_running == 0);
  CHECK(within(2, [&] { return std::ranges::includes(shared_before, shared_memory()); }));
}

TEST_CASE("ranks are killed at many moments", "[.long]") {
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(run(RunFolder(), {"train", "run.toml", "train.steps=12", "checkpoint.every=2"}).code ==
          0);
  const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - begin;
  std::mt19937 random(7);
  std::uniform_real_distribution<double> moment(0.05, whole.count());
  int there = 0;
  for (std::size_t i = 0; i < 40; ++i) {
    there += kill_a_rank(moment(random), i % 4) ? 1 : 0;
    kill_a_joined_rank(0.3 + moment(random), static_cast<int>(i % 2));
  }
  CHECK(there > 10);
}

TEST_CASE("a stopped rank is reported after ten seconds and the run continues", "[.long]") {
  const RunFolder folder;
  Program program(folder, {"train", "run.toml", "train.steps=100000000"});
  REQUIRE(within(30, [&] { return steps_in(folder / "metrics.jsonl").size() >= 3; }));
  const std::vector<pid_t> ranks = program.ranks();
  REQUIRE(ranks.size() == 4);
  kill(ranks[1], SIGSTOP);
  CHECK_FALSE(within(8, [&] { return !program.error().empty(); }));
  CHECK(within(6, [&] { return program.error().find("rank 1 is stopped") != std::string::npos; }));
  std::this_thread::sleep_for(std::chrono::seconds(3));
  kill(ranks[1], SIGCONT);
  const std::size_t done = steps_in(folder / "metrics.jsonl").size();
  CHECK(within(20, [&] { return steps_in(folder / "metrics.jsonl").size() > done + 3; }));
  program.signal(SIGINT);
  const Result result = program.wait(20);
  CHECK(result.code == 130);
  CHECK(lines_of(result.error).size() == 1);
  CHECK(step_after(result.error, "(step ") >= 3);
}
