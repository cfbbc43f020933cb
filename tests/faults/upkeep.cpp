// What a run does with old checkpoints, and with the folder that they are in: it never ends for
// them, and never removes what it did not write.
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "catch.hpp"
#include "mount.hpp"
#include "program.hpp"
#include "skip.hpp"

using namespace faults;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// One rank, a checkpoint after each step.
Words train(const Words& more) {
  return with(
      {"train", "run.toml", "mesh.axes=[]", "mesh.shape=[]", "parallel=[]", "checkpoint.every=1"},
      more);
}

const Words endless = train({"train.steps=100000000"});

const char* const first_step = "checkpoints/step-00000001";

/// Checkpoints of the steps 1 to 3.
void trained(const RunFolder& folder) {
  const Result result = run(folder, train({"train.steps=3"}));
  INFO(result.error);
  REQUIRE(result.code == 0);
}

/// A run to step 6 that keeps one: step 1 cannot be removed, and all else is as if it could.
void first_stays(const RunFolder& folder, const std::string& why) {
  const Result result = run(folder, train({"train.steps=6", "checkpoint.keep=1"}));
  INFO(result.out << result.error);
  CHECK(result.code == 0);
  CHECK(count(result.error, "warning:") == 1);
  CHECK(count(result.error, "\n") == 1);
  CHECK(result.error.find(std::string("'") + first_step + "' (" + why) != std::string::npos);
  CHECK(checkpoints(folder / "checkpoints") == Words{"step-00000001", "step-00000006"});
}

void is_whole(const RunFolder& folder, const std::string& checkpoint) {
  const Result verified = run(folder, {"checkpoint", "verify", checkpoint});
  INFO(verified.error);
  CHECK(verified.code == 0);
}

/// It goes as soon as nothing is in the way.
void first_goes(const RunFolder& folder) {
  const Result result = run(folder, train({"train.steps=7", "checkpoint.keep=1"}));
  INFO(result.error);
  CHECK(result.code == 0);
  CHECK(result.error.empty());
  CHECK(checkpoints(folder / "checkpoints") == Words{"step-00000007"});
}

bool set_immutable(const std::string& path, bool on) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  int flags = 0;
  const bool known = file >= 0 && ::ioctl(file, FS_IOC_GETFLAGS, &flags) == 0;
  flags = on ? flags | FS_IMMUTABLE_FL : flags & ~FS_IMMUTABLE_FL;
  const bool done = known && ::ioctl(file, FS_IOC_SETFLAGS, &flags) == 0;
  ::close(file);
  return done;
}

}  // namespace

TEST_CASE("a folder that is mounted in an old checkpoint keeps all its files", "[.root]") {
  const RunFolder folder;
  trained(folder);
  folder.write("precious/thesis.txt", "years of work");
  folder.write("precious/rank-0.safetensors", "not a checkpoint's");
  {
    const Mount inner(
        {.at = folder / (std::string(first_step) + "/archive"), .of = folder / "precious"});
    if (!inner.mounted()) {
      tessera::testing::skip("folders cannot be mounted here (it takes root)");
      return;
    }
    first_stays(folder, "another file system is mounted at archive");
    is_whole(folder, first_step);
    CHECK(read_file(folder / "precious/thesis.txt") == "years of work");
    CHECK(fs::exists(folder / "precious/rank-0.safetensors"));
  }
  fs::remove(folder / (std::string(first_step) + "/archive"));
  first_goes(folder);
}

TEST_CASE("a copy that is mounted in the place of an old checkpoint stays", "[.root]") {
  const RunFolder folder;
  trained(folder);
  fs::copy(folder / first_step, folder / "copy");
  {
    const Mount over({.at = folder / first_step, .of = folder / "copy"});
    if (!over.mounted()) {
      tessera::testing::skip("folders cannot be mounted here (it takes root)");
      return;
    }
    first_stays(folder, "another file system is mounted there");
  }
  is_whole(folder, "copy");
  is_whole(folder, first_step);
  first_goes(folder);
}

TEST_CASE("an immutable file of an old checkpoint does not end the run", "[.root]") {
  const RunFolder folder;
  trained(folder);
  const std::string file = folder / (std::string(first_step) + "/rank-0.safetensors");
  if (!set_immutable(file, true)) {
    tessera::testing::skip("files cannot be made immutable here (root, and ext4 or its like)");
    return;
  }
  first_stays(folder, "rank-0.safetensors is immutable");
  is_whole(folder, first_step);
  REQUIRE(set_immutable(file, false));
  first_goes(folder);
}

TEST_CASE("links to old checkpoints and in them are not followed") {
  const RunFolder folder;
  trained(folder);
  fs::rename(folder / first_step, folder / "elsewhere");
  fs::create_directory_symlink(folder / "elsewhere", folder / first_step);
  first_stays(folder, "it is not a folder, or a link to one");
  is_whole(folder, "elsewhere");
  fs::remove(folder / first_step);
  // A file of the checkpoint that was moved to another disk.
  fs::rename(folder / "elsewhere", folder / first_step);
  const std::string file = folder / (std::string(first_step) + "/rank-0.safetensors");
  fs::rename(file, folder / "moved.safetensors");
  fs::create_symlink(folder / "moved.safetensors", file);
  const Result result = run(folder, train({"train.steps=7", "checkpoint.keep=1"}));
  CHECK(result.code == 0);
  CHECK(count(result.error, "rank-0.safetensors is not a regular file") == 1);
  CHECK(fs::file_size(folder / "moved.safetensors") > 0);
  is_whole(folder, first_step);
}

TEST_CASE("files that others keep in an old checkpoint stay, and the checkpoint goes") {
  const RunFolder folder;
  trained(folder);
  folder.write(std::string(first_step) + "/evaluation.json", "{\"accuracy\": 0.5}");
  const Result result = run(folder, train({"train.steps=6", "checkpoint.keep=1"}));
  INFO(result.error);
  CHECK(result.code == 0);
  CHECK(count(result.error, "warning:") == 1);
  CHECK(result.error.find("evaluation.json is in it") != std::string::npos);
  const std::string rest = std::string(first_step) + ".tmp-removed";
  CHECK(checkpoints(folder / "checkpoints") == Words{"step-00000001.tmp-removed", "step-00000006"});
  CHECK(checkpoints(folder / rest) == Words{"evaluation.json"});
  CHECK(read_file(folder / (rest + "/evaluation.json")) == "{\"accuracy\": 0.5}");
}

TEST_CASE("a run stops when the folder of its checkpoints is removed, moved or replaced") {
  for (const char* const fate : {"removed", "moved", "replaced"}) {
    for (const bool rare : {false, true}) {  // also where no save is due
      INFO(fate << (rare ? ", without a save" : ""));
      const RunFolder folder;
      Program first(folder, with(endless, {rare ? "checkpoint.every=0" : "checkpoint.every=2"}));
      REQUIRE(within(60, [&] { return steps_in(folder / "metrics.jsonl").size() >= 4; }));
      fs::rename(folder / "checkpoints", folder / "gone");
      if (std::string(fate) == "removed") {
        std::error_code ignored;  // a save may be writing
        fs::remove_all(folder / "gone", ignored);
      } else if (std::string(fate) == "replaced") {
        fs::create_directory(folder / "checkpoints");
      }
      const Result result = first.wait(20);
      INFO(result.out << result.error);
      CHECK(result.code == 1);
      CHECK(count(result.error, "error:") == 1);
      CHECK(result.error.find("checkpoints") != std::string::npos);
      if (rare) {  // else a save may find it first
        CHECK(result.error.find("was removed, moved or replaced") != std::string::npos);
      }
      CHECK(result.left_running == 0);
      CHECK(checkpoints(folder / "checkpoints").empty());
    }
  }
}

TEST_CASE("a run in a folder that was moved leaves the one that has its name now alone") {
  const RunFolder folder;
  Program first(folder, with(endless, {"log.metrics=first.jsonl", "checkpoint.keep=1"}));
  REQUIRE(within(60, [&] { return steps_in(folder / "first.jsonl").size() >= 4; }));
  first.signal_group(SIGSTOP);
  fs::rename(folder / "checkpoints", folder / "gone");
  Program second(folder, with(endless, {"log.metrics=second.jsonl"}));
  REQUIRE(within(60, [&] { return steps_in(folder / "second.jsonl").size() >= 4; }));
  first.signal_group(SIGCONT);
  const Result stopped = first.wait(20);
  INFO(stopped.error);
  CHECK(stopped.code == 1);
  CHECK(count(stopped.error, "error:") == 1);
  // The first run's end does not open the folder for a third one.
  const Result third = run(folder, with(endless, {"log.metrics=third.jsonl"}));
  CHECK(third.code == 2);
  CHECK(third.error.find("another run is writing") != std::string::npos);
  second.signal(SIGINT);
  const Result result = second.wait(20);
  INFO(result.error);
  CHECK(result.code == 130);
  std::int64_t step = 0;
  for (const std::string& name : checkpoints(folder / "checkpoints")) {
    CHECK(step_after(name, "step-") == ++step);  // none was removed
  }
  CHECK(step >= 4);
  is_whole(folder, "checkpoints");
}
