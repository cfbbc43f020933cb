// How a run is asked to stop, and what it is started with: signals, closed pipes, limits.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "catch.hpp"
#include "program.hpp"
#include "skip.hpp"

using namespace faults;

namespace {

const std::vector<std::string> endless = {"train", "run.toml", "train.steps=100000000"};

std::vector<std::string> endless_on(bool one_rank) {
  std::vector<std::string> arguments = endless;
  if (one_rank) {
    arguments.insert(arguments.end(), {"mesh.axes=[]", "mesh.shape=[]", "parallel=[]"});
  }
  return arguments;
}

/// The checkpoint of the last step is there, can be read, and is the only one.
void has_saved(const RunFolder& folder) {
  const std::vector<std::int64_t> steps = steps_in(folder / "metrics.jsonl");
  REQUIRE(steps.size() >= 3);
  CHECK(steps == steps_to(steps.back()));
  const std::vector<std::string> saved = checkpoints(folder / "checkpoints");
  std::vector<std::string> whole;
  for (const std::string& name : saved) {
    if (name.starts_with("step-")) {
      whole.push_back(name);
    }
  }
  REQUIRE(whole.size() == 1);
  CHECK(step_after(whole[0], "step-") == steps.back());
  CHECK(run(folder, {"checkpoint", "info", "checkpoints/" + whole[0]}).code == 0);
}

}  // namespace

TEST_CASE("a signal to the whole process group saves and stops, as Ctrl-C does") {
  // `timeout 3 tessera train` sends SIGTERM to the group, and once more to the program; a terminal
  // that closes sends SIGHUP to the group.
  for (const int number : {SIGTERM, SIGHUP}) {
    const RunFolder folder;
    Program program(folder, endless);
    REQUIRE(within(30, [&] { return steps_in(folder / "metrics.jsonl").size() >= 3; }));
    program.signal(number);
    program.signal_group(number);
    const Result result = program.wait(20);
    INFO("signal " << number << ": " << result.out << result.error);
    CHECK(result.code == 130);
    CHECK(result.error.empty());
    CHECK(result.left_running == 0);
    CHECK(result.out.find("interrupted after step") != std::string::npos);
    has_saved(folder);
  }
}

TEST_CASE("a notice that the time is nearly over saves and stops, as SIGTERM does") {
  // `#SBATCH --signal=USR1@120`: Slurm sends it to all processes, and SIGTERM when the time is
  // over.
  for (const bool one_rank : {true, false}) {
    const RunFolder folder;
    Program program(folder, endless_on(one_rank));
    REQUIRE(within(30, [&] { return steps_in(folder / "metrics.jsonl").size() >= 3; }));
    program.signal_group(one_rank ? SIGXCPU : SIGUSR1);
    program.signal_group(SIGUSR2);
    const Result result = program.wait(20);
    INFO(result.out << result.error);
    CHECK(result.code == 130);
    CHECK(result.error.empty());
    CHECK(result.left_running == 0);
    has_saved(folder);
  }
}

TEST_CASE("a run whose parent has blocked SIGTERM is stopped by it") {
  for (const bool one_rank : {true, false}) {
    const RunFolder folder;
    Program program(folder, endless_on(one_rank), {.blocked = {SIGTERM, SIGINT, SIGCHLD}});
    REQUIRE(within(30, [&] { return steps_in(folder / "metrics.jsonl").size() >= 3; }));
    program.signal(SIGTERM);
    const Result result = program.wait(20);
    INFO(result.out << result.error);
    CHECK(result.code == 130);
    CHECK(result.left_running == 0);
    has_saved(folder);
  }
}

TEST_CASE("a reader of stdout that leaves stops the run, which saves first") {
  // `tessera train run.toml | head -1`
  for (const bool one_rank : {false, true}) {
    const RunFolder folder;
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    std::vector<std::string> arguments = endless_on(one_rank);
    arguments.emplace_back("log.every=1");
    Program program(folder, arguments, {.out = ends[1]});
    close(ends[1]);
    REQUIRE(within(30, [&] { return steps_in(folder / "metrics.jsonl").size() >= 3; }));
    close(ends[0]);
    const Result result = program.wait(20);
    INFO(result.error);
    CHECK(result.code == 130);
    CHECK(result.left_running == 0);
    has_saved(folder);
  }
}

TEST_CASE("a run under nohup survives the end of its terminal") {
  const RunFolder folder;
  Program program(folder, {"train", "run.toml", "train.steps=60"}, {.ignored = {SIGHUP}});
  REQUIRE(within(30, [&] { return steps_in(folder / "metrics.jsonl").size() >= 3; }));
  program.signal_group(SIGHUP);
  const Result result = program.wait(60);
  INFO(result.out << result.error);
  CHECK(result.code == 0);
  CHECK(steps_in(folder / "metrics.jsonl") == steps_to(60));
}

TEST_CASE("a small stack is raised, or refused with what to do") {
  const RunFolder folder;
  const std::vector<std::string> arguments = {"train", "run.toml", "--dry-run"};
  const std::vector<std::pair<int, unsigned long>> small = {{RLIMIT_STACK, 64UL << 10}};
  CHECK(run(folder, {"train", "run.toml", "train.steps=1"}, {.limits = small}).code == 0);
  const Result refused = run(folder, arguments, {.limits = small, .fixed_limits = true});
  INFO(refused.error);
  CHECK(refused.code == 2);
  CHECK(
      refused.error ==
      "error: stack: the limit is too low (expected at least 1.0 MiB, got 64.0 KiB); start "
      "in a shell whose hard limit (`ulimit -Hs`) is at least 8192; only root can raise it in this "
      "one\n");
  CHECK(
      run(folder, arguments, {.limits = {{RLIMIT_STACK, 1UL << 20}}, .fixed_limits = true}).code ==
      0);
}

TEST_CASE("limits of the system end a run with an error, not by a signal") {
  const RunFolder folder;
  struct Limit {
    int resource;
    unsigned long value;
  };
  for (const Limit& limit : {Limit{RLIMIT_AS, 300UL << 20}, Limit{RLIMIT_NOFILE, 8},
                             Limit{RLIMIT_NOFILE, 16}, Limit{RLIMIT_FSIZE, 100}}) {
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    if (limit.resource == RLIMIT_AS || limit.resource == RLIMIT_NOFILE) {
      continue;  // sanitizers reserve terabytes of addresses, and open pipes and files to report
    }
#endif
    const Result result = run(folder, {"train", "run.toml", "train.steps=2"},
                              {.limits = {{limit.resource, limit.value}}, .fixed_limits = true});
    INFO("limit " << limit.resource << " of " << limit.value << ": " << result.error);
    CHECK((result.code == 0 || result.code == 1 || result.code == 2));
    CHECK(count(result.error, "error: ") == (result.code == 0 ? 0 : 1));
    CHECK(result.left_running == 0);
  }
}

namespace {

/// Under the limit the command does its work, or ends with one error that names the limit.
void names_its_limit(const std::vector<std::string>& arguments, int resource, unsigned long value,
                     const std::string& name, const std::vector<std::string>& launcher = {}) {
  const RunFolder folder;
  std::filesystem::permissions(folder.path(), std::filesystem::perms::all);
  const Result result =
      run(folder, arguments,
          {.limits = {{resource, value}}, .launcher = launcher, .fixed_limits = launcher.empty()});
  INFO(arguments[0] << ", " << name << " " << value << ": " << result.error);
  REQUIRE((result.code == 0 || result.code == 1 || result.code == 2));
  CHECK(result.left_running == 0);
  CHECK(count(result.error, "error: ") == (result.code == 0 ? 0 : 1));
  CHECK((result.code == 0 || result.error.find("`ulimit " + name) != std::string::npos));
  CHECK(count(result.error, "std::") == 0);
}

const std::vector<std::vector<std::string>> limited_commands = {
    {"train", "run.toml", "train.steps=2", "checkpoint.every=1"},
    {"train", "run.toml", "train.steps=2", "mesh.axes=[]", "mesh.shape=[]", "parallel=[]",
     "train.threads=3"},
    {"plan", "run.toml"}};

}  // namespace

TEST_CASE("an error that is due to a limit of the system names it, with its value") {
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  return;  // sanitizers reserve terabytes of addresses, and open files and threads of their own
#endif
  for (const auto& command : limited_commands) {
    for (const unsigned long files : {5UL, 31UL, 32UL}) {
      names_its_limit(command, RLIMIT_NOFILE, files, "-Hn");
    }
    for (const unsigned long mib : {150UL, 200UL, 280UL}) {
      names_its_limit(command, RLIMIT_AS, mib << 20, "-v");
    }
    for (const unsigned long mib : {12UL, 20UL, 40UL, 60UL}) {
      names_its_limit(command, RLIMIT_DATA, mib << 20, "-d");
    }
  }
  names_its_limit(limited_commands[0], RLIMIT_FSIZE, 4000, "-f");
}

TEST_CASE("an error that is due to the limit on threads names it", "[.root]") {
  // That user must also reach the program and its libraries.
  if (::geteuid() != 0 || std::system("setpriv --reuid=65533 --clear-groups " TESSERA_PROGRAM
                                      " --version >/dev/null 2>&1") != 0) {
    tessera::testing::skip("another user cannot run the program here (it takes root and setpriv)");
    return;
  }
  for (const auto& command : limited_commands) {
    for (const unsigned long tasks : {1UL, 2UL, 3UL, 4UL, 5UL, 6UL, 8UL, 11UL, 13UL}) {
      names_its_limit(command, RLIMIT_NPROC, tasks, "-u",
                      {"setpriv", "--reuid=65533", "--clear-groups"});
    }
  }
}

TEST_CASE("with stdout closed nothing is printed into the files of the run") {
  const RunFolder folder;
  const Result result = run(folder, {"train", "run.toml", "train.steps=3"}, {.out = -2});
  INFO(result.error);
  CHECK(result.code == 0);
  CHECK(steps_in(folder / "metrics.jsonl") == steps_to(3));
}
