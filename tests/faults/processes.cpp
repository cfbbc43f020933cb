// Ranks and parents that die, stop or are asked to end: what is said, what is left, what goes on.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>

#include "catch.hpp"
#include "program.hpp"

using namespace faults;

namespace {

const std::vector<std::string> endless = {"train", "run.toml", "train.steps=100000000"};

std::vector<std::string> with(std::vector<std::string> arguments,
                              const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

/// Waits until some steps are done.
void has_trained(const RunFolder& folder, std::size_t steps = 5) {
  REQUIRE(within(30, [&] { return steps_in(folder / "metrics.jsonl").size() >= steps; }));
}

void nothing_is_left(const Result& result, const std::set<std::string>& shared_before) {
  CHECK(result.left_running == 0);
  // Tests beside this one may hold shared memory for a moment, but not for long.
  CHECK(within(2, [&] { return std::ranges::includes(shared_before, shared_memory()); }));
}

/// The losses of a metrics file as they are written: all digits.
std::vector<std::string> losses_in(const std::string& metrics) {
  std::vector<std::string> losses;
  for (const std::string& line : lines_of(read_file(metrics))) {
    const std::size_t begin = line.find("\"loss\":");
    losses.push_back(line.substr(begin, line.find(',', begin) - begin));
  }
  return losses;
}

}  // namespace

TEST_CASE("a killed rank ends the run, and the error names it once") {
  for (int rank = 0; rank < 4; ++rank) {
    const auto shared_before = shared_memory();
    const RunFolder folder;
    Program program(folder, endless);
    has_trained(folder);
    const std::vector<pid_t> ranks = program.ranks();
    REQUIRE(ranks.size() == 4);
    kill(ranks[static_cast<std::size_t>(rank)], SIGKILL);
    const Result result = program.wait(10);
    INFO("rank " << rank << ": " << result.error);
    CHECK(result.code == 1);
    CHECK(result.seconds < 5);
    CHECK(result.error.starts_with("error: rank " + std::to_string(rank) +
                                   " was killed by signal 9"));
    CHECK(count(result.error, "error:") == 1);
    CHECK(step_after(result.error, "at step ") >= 5);
    nothing_is_left(result, shared_before);
  }
}

TEST_CASE("a killed parent takes its ranks along") {
  const auto shared_before = shared_memory();
  const RunFolder folder;
  Program program(folder, endless);
  has_trained(folder);
  REQUIRE(program.ranks().size() == 4);
  program.signal(SIGKILL);
  Result result = program.wait(5);
  CHECK(result.code == 128 + SIGKILL);
  CHECK(within(5, [&] { return program.living().empty(); }));
  result.left_running = 0;
  nothing_is_left(result, shared_before);
}

TEST_CASE("a rank that hangs is a time-out that says who waits for whom") {
  const auto shared_before = shared_memory();
  const RunFolder folder;
  Program program(folder, endless, {.environment = {{"TESSERA_TIMEOUT", "2"}}});
  has_trained(folder);
  const std::vector<pid_t> ranks = program.ranks();
  REQUIRE(ranks.size() == 4);
  kill(ranks[2], SIGSTOP);
  const Result result = program.wait(20);
  INFO(result.error);
  CHECK(result.code == 1);
  CHECK(result.seconds < 2 + 5);
  CHECK(count(result.error, "error:") == 1);
  // Its neighbour on an axis (0 or 3) waits for it, or somebody for that neighbour.
  CHECK(result.error.find("s for rank ") != std::string::npos);
  CHECK(result.error.find("the last call of rank ") != std::string::npos);
  CHECK(step_after(result.error, "step ") >= 5);
  nothing_is_left(result, shared_before);
}

TEST_CASE("an interrupt saves, says how to go on, and the run goes on as if nothing had been") {
  const auto shared_before = shared_memory();
  const RunFolder folder;
  std::int64_t done = 0;
  for (const bool whole_group : {true, false}) {  // a terminal's Ctrl-C reaches every process
    Program program(folder, endless);
    has_trained(folder, static_cast<std::size_t>(done) + 5);
    if (whole_group) {
      program.signal_group(SIGINT);
    } else {
      program.signal(SIGTERM);
    }
    const Result result = program.wait(10);
    INFO(result.out << result.error);
    CHECK(result.code == 130);
    CHECK(result.error.empty());
    if (!whole_group) {
      CHECK(step_after(result.out, "resumed after step ") == done);
    }
    done = step_after(result.out, "interrupted after step ");
    REQUIRE(done >= 5);
    CHECK(result.out.find("run the same command again to continue") != std::string::npos);
    CHECK(steps_in(folder / "metrics.jsonl") == steps_to(done));
    nothing_is_left(result, shared_before);
  }
  CHECK(checkpoints(folder / "checkpoints").size() == 2);
  const std::string steps = "train.steps=" + std::to_string(done + 7);
  const Result rest = run(folder, {"train", "run.toml", steps});
  INFO(rest.out << rest.error);
  CHECK(rest.code == 0);
  CHECK(step_after(rest.out, "resumed after step ") == done);
  CHECK(steps_in(folder / "metrics.jsonl") == steps_to(done + 7));
  const RunFolder fresh;
  CHECK(run(fresh, {"train", "run.toml", steps}).code == 0);
  CHECK(losses_in(folder / "metrics.jsonl") == losses_in(fresh / "metrics.jsonl"));
}

TEST_CASE("an interrupted run advises the command that continues it, or none") {
  struct Run {
    const char* setting;
    const char* advice;
  };
  for (const Run& one :
       {Run{"checkpoint.folder=", "; nothing is saved, as checkpoint.folder is empty\n"},
        Run{"checkpoint.resume=never",
            "; run the same command with checkpoint.resume=auto to continue\n"}}) {
    const RunFolder folder;
    std::vector<std::string> arguments = endless;
    arguments.emplace_back(one.setting);
    Program program(folder, arguments);
    has_trained(folder, 3);
    program.signal(SIGTERM);
    const Result result = program.wait(10);
    INFO(result.out << result.error);
    CHECK(result.code == 130);
    CHECK(result.out.find(one.advice) != std::string::npos);
  }
}

TEST_CASE("after a killed rank the run goes on from the last checkpoint") {
  const RunFolder folder;
  {
    Program program(folder, with(endless, {"checkpoint.every=10", "checkpoint.keep=2"}));
    has_trained(folder, 25);
    REQUIRE(program.ranks().size() == 4);
    kill(program.ranks()[1], SIGKILL);
    CHECK(program.wait(10).code == 1);
  }
  const auto done = static_cast<std::int64_t>(steps_in(folder / "metrics.jsonl").size());
  const Result rest = run(folder, {"train", "run.toml", "train.steps=" + std::to_string(done + 3)});
  INFO(rest.out << rest.error);
  CHECK(rest.code == 0);
  const std::int64_t from = step_after(rest.out, "resumed after step ");
  CHECK(from % 10 == 0);
  CHECK(from >= 10);
  CHECK(from <= done);
  CHECK(steps_in(folder / "metrics.jsonl") == steps_to(done + 3));
}

TEST_CASE("a second interrupt ends the run at once") {
  const RunFolder folder;
  Program program(folder, endless);
  has_trained(folder);
  const std::vector<pid_t> ranks = program.ranks();
  REQUIRE(ranks.size() == 4);
  kill(ranks[3], SIGSTOP);  // so that no step ends, and the first interrupt is never answered
  program.signal(SIGINT);
  CHECK_FALSE(within(0.8, [&] { return program.ranks().size() < 4; }));
  program.signal(SIGINT);
  const Result result = program.wait(10);
  CHECK(result.code == 130);
  CHECK(result.seconds < 2);
  CHECK(result.left_running == 0);
  // If rank 3 had answered the others before it was stopped, a save has begun. It cannot end.
  for (const std::string& name : checkpoints(folder / "checkpoints")) {
    CHECK_FALSE(exists(std::filesystem::path(folder / "checkpoints") / name / "checkpoint.json"));
  }
}

TEST_CASE("a run of one rank is interrupted as others are") {
  const RunFolder folder;
  Program program(folder, with(endless, {"mesh.axes=[]", "mesh.shape=[]", "parallel=[]"}));
  has_trained(folder);
  CHECK(program.living().size() == 1);
  program.signal(SIGINT);
  const Result result = program.wait(10);
  INFO(result.out << result.error);
  CHECK(result.code == 130);
  const std::int64_t done = step_after(result.out, "interrupted after step ");
  CHECK(done >= 5);
  CHECK(steps_in(folder / "metrics.jsonl") == steps_to(done));
  CHECK(run(folder,
            {"checkpoint", "info", "checkpoints/" + checkpoints(folder / "checkpoints").at(0)})
            .code == 0);
}
