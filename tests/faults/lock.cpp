// Two runs that would write the same files: the second one touches nothing, and says who is first.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "catch.hpp"
#include "program.hpp"

using namespace faults;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

const Words endless = {"train", "run.toml", "train.steps=100000000"};

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

void has_trained(const RunFolder& folder, std::size_t steps) {
  REQUIRE(within(60, [&] { return steps_in(folder / "metrics.jsonl").size() >= steps; }));
}

/// The lock files that a process has open.
std::vector<std::string> locks_of(pid_t process) {
  std::vector<std::string> found;
  std::error_code ignored;
  for (const auto& entry :
       fs::directory_iterator("/proc/" + std::to_string(process) + "/fd", ignored)) {
    const std::string target = fs::read_symlink(entry.path(), ignored);
    if (target.find("lock") != std::string::npos) {
      found.push_back(target);
    }
  }
  return found;
}

void second_is_refused(const RunFolder& folder, const Words& arguments, const Program& first,
                       const std::string& key) {
  const Result second = run(folder, arguments);
  INFO(second.error);
  CHECK(second.code == 2);
  CHECK(second.out.empty());
  CHECK(count(second.error, "error:") == 1);
  CHECK(second.error.find(key + ": another run is writing") != std::string::npos);
  CHECK(second.error.find("process " + std::to_string(first.process()) + " on ") !=
        std::string::npos);
}

}  // namespace

TEST_CASE("a second run in one folder is refused, and the first one is not disturbed") {
  const RunFolder folder;
  Program first(folder, with(endless, {"checkpoint.every=3", "checkpoint.keep=2"}));
  has_trained(folder, 4);
  second_is_refused(folder, endless, first, "checkpoint.folder");
  second_is_refused(folder, with(endless, {"checkpoint.resume=never"}), first, "checkpoint.folder");
  second_is_refused(folder, with(endless, {"log.metrics=other.jsonl"}), first, "checkpoint.folder");
  second_is_refused(folder, with(endless, {"checkpoint.folder=other"}), first, "log.metrics");
  CHECK_FALSE(fs::exists(folder / "other"));
  CHECK_FALSE(fs::exists(folder / "other.jsonl"));
  CHECK(run(folder, with(endless, {"--dry-run", "checkpoint.resume=never",
                                   "checkpoint.folder=other", "log.metrics=other.jsonl"}))
            .code == 0);
  has_trained(folder, steps_in(folder / "metrics.jsonl").size() + 3);
  first.signal(SIGINT);
  const Result result = first.wait(20);
  INFO(result.out << result.error);
  CHECK(result.code == 130);
  CHECK(steps_in(folder / "metrics.jsonl") ==
        steps_to(step_after(result.out, "interrupted after step ")));
  CHECK(run(folder, {"checkpoint", "verify", "checkpoints"}).code == 0);
  // A run that ended leaves no lock files.
  CHECK_FALSE(fs::exists(folder / "checkpoints/.lock"));
  CHECK_FALSE(fs::exists(folder / ".metrics.jsonl.lock"));
}

TEST_CASE("a killed run holds nothing: not its ranks, not the files that it left") {
  const RunFolder folder;
  Program first(folder, with(endless, {"checkpoint.every=2"}));
  has_trained(folder, 3);
  // It is saved in the background, and what is saved shows in the folder's names.
  REQUIRE(within(60, [&] {
    std::error_code ignored;
    const fs::directory_iterator entries(folder / "checkpoints", ignored);
    return std::ranges::any_of(entries, [](const fs::directory_entry& entry) {
      return entry.path().filename().string().size() == std::string("step-00000002").size();
    });
  }));
  REQUIRE(first.ranks().size() == 4);
  CHECK(locks_of(first.process()).size() == 2);
  for (const pid_t rank : first.ranks()) {
    CHECK(locks_of(rank).empty());
  }
  first.signal(SIGKILL);
  CHECK(first.wait(10).code == 128 + SIGKILL);
  CHECK(fs::exists(folder / "checkpoints/.lock"));
  const Result next =
      run(folder, {"train", "run.toml",
                   "train.steps=" + std::to_string(steps_in(folder / "metrics.jsonl").size() + 2)});
  INFO(next.out << next.error);
  CHECK(next.code == 0);
  CHECK(step_after(next.out, "resumed after step ") >= 2);
  CHECK_FALSE(fs::exists(folder / "checkpoints/.lock"));
}

TEST_CASE("a run of one rank holds its lock to its end") {
  const RunFolder folder;
  const Words one = with(endless, {"mesh.axes=[]", "mesh.shape=[]", "parallel=[]"});
  Program first(folder, one);
  has_trained(folder, 3);
  second_is_refused(folder, one, first, "checkpoint.folder");
  first.signal(SIGKILL);
  CHECK(first.wait(10).code == 128 + SIGKILL);
}

TEST_CASE("of ranks that another launcher starts, rank 0 alone holds the lock") {
  const RunFolder folder;
  const Words two = with(endless, {"mesh.axes=[shard]", "mesh.shape=[2]",
                                   "parallel=[{style=FSDP,axis=shard,on=[\".\"]}]"});
  const auto rank = [&](const char* number, const std::string& job) -> StartOptions {
    return {
        .environment = {{"RANK", number},
                        {"WORLD_SIZE", "2"},
                        {"TESSERA_TIMEOUT", "5"},
                        {"TESSERA_JOB", "lock-" + job + "-" + folder.path().filename().string()}}};
  };
  Program first(folder, two, rank("0", "first"));
  Program second(folder, two, rank("1", "first"));
  has_trained(folder, 3);
  CHECK(locks_of(first.process()).size() == 2);
  CHECK(locks_of(second.process()).empty());
  Program other(folder, two, rank("0", "second"));
  const Result refused = other.wait(20);
  INFO(refused.error);
  CHECK(refused.code == 2);
  CHECK(refused.error.find("another run is writing") != std::string::npos);
}
