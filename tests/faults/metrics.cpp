// The metrics file of a run: written where it is, kept from other runs, and missed when it is gone.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "mount.hpp"
#include "program.hpp"
#include "skip.hpp"

using namespace faults;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

/// `tessera train` on one rank.
Words train(const Words& more) {
  Words words = {"train", "run.toml", "mesh.axes=[]", "mesh.shape=[]", "parallel=[]"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const Words endless = train({"train.steps=100000000"});

void runs(const RunFolder& folder, const Words& more) {
  const Result result = run(folder, train(more));
  INFO(result.out << result.error);
  REQUIRE(result.code == 0);
  CHECK(result.error.empty());
}

unsigned mode_of(const std::string& path) {
  struct stat status = {};
  REQUIRE(::lstat(path.c_str(), &status) == 0);
  return status.st_mode & 07777U;
}

void has_trained(const RunFolder& folder, std::size_t steps) {
  REQUIRE(within(60, [&] { return steps_in(folder / "metrics.jsonl").size() >= steps; }));
}

/// Ends the run, which says once that `words` happened to its metrics; they are all there.
Result is_noticed(Program& program, const RunFolder& folder, const std::string& words) {
  has_trained(folder, steps_in(folder / "metrics.jsonl").size() + 2);
  program.signal(SIGINT);
  Result result = program.wait(20);
  INFO(result.out << result.error);
  CHECK(result.code == 130);
  CHECK(count(result.error, "warning:") == 1);
  CHECK(result.error.find(words) != std::string::npos);
  CHECK(steps_in(folder / "metrics.jsonl") ==
        steps_to(step_after(result.out, "interrupted after step ")));
  return result;
}

}  // namespace

TEST_CASE("metrics are written where a link leads, with the mode of the umask or of the file") {
  const RunFolder folder;
  fs::create_directory(folder / "disk");
  fs::create_symlink("disk/far.jsonl", folder / "metrics.jsonl");
  const mode_t before = ::umask(027);
  runs(folder, {"train.steps=2"});
  ::umask(before);
  CHECK(fs::is_symlink(folder / "metrics.jsonl"));
  CHECK(steps_in(folder / "disk/far.jsonl") == steps_to(2));
  CHECK(mode_of(folder / "disk/far.jsonl") == 0640U);
  REQUIRE(::chmod((folder / "disk/far.jsonl").c_str(), 0604) == 0);
  runs(folder, {"train.steps=4"});
  CHECK(fs::is_symlink(folder / "metrics.jsonl"));
  CHECK(steps_in(folder / "disk/far.jsonl") == steps_to(4));
  CHECK(mode_of(folder / "disk/far.jsonl") == 0604U);
  CHECK(fs::exists(folder / "checkpoints"));
  CHECK(folder.listing().count("disk/.far.jsonl.lock") == 0);
}

TEST_CASE("another run's metrics are not touched") {
  const RunFolder folder;
  runs(folder, {"train.steps=3", "checkpoint.folder=first"});
  const std::string written = read_file(folder / "metrics.jsonl");
  const auto refused = [&](const Words& more) {
    is_refused(folder, train(more),
               {"log.metrics: metrics.jsonl has 3 steps of another run", "checkpoints in first"});
    CHECK(read_file(folder / "metrics.jsonl") == written);
  };
  refused({"checkpoint.folder=second"});
  refused({"checkpoint.folder="});
  refused({"checkpoint.folder=second", "checkpoint.resume=first/step-00000003", "train.steps=5"});
  // The same run, with or without checkpoints: from where it continues.
  runs(folder, {"train.steps=5", "checkpoint.folder=first"});
  CHECK(steps_in(folder / "metrics.jsonl") == steps_to(5));
  fs::remove_all(folder / "first");
  runs(folder, {"train.steps=2", "checkpoint.folder=first"});
  CHECK(steps_in(folder / "metrics.jsonl") == steps_to(2));
}

TEST_CASE("a run that is moved with its metrics continues them") {
  const RunFolder folder;
  runs(folder, {"train.steps=2", "checkpoint.folder=a/saved", "log.metrics=a/metrics.jsonl"});
  fs::rename(folder / "a", folder / "b");
  runs(folder, {"train.steps=4", "checkpoint.folder=b/saved", "log.metrics=b/metrics.jsonl"});
  CHECK(steps_in(folder / "b/metrics.jsonl") == steps_to(4));
}

TEST_CASE("a file that is not of metrics is not written over") {
  const RunFolder folder;
  const std::string notes = folder.write("notes.txt", "my notes\nand more\n");
  is_refused(folder, train({"log.metrics=notes.txt"}), {"notes.txt is not a metrics file"});
  CHECK(read_file(notes) == "my notes\nand more\n");
}

TEST_CASE("a metrics file that is removed is written again, with all its lines") {
  const RunFolder folder;
  Program program(folder, endless);
  has_trained(folder, 3);
  fs::remove(folder / "metrics.jsonl");
  is_noticed(program, folder, "metrics.jsonl was removed or moved during the run");
}

TEST_CASE("a metrics file that is moved is written again, with all its lines") {
  const RunFolder folder;
  Program program(folder, endless);
  has_trained(folder, 3);
  fs::rename(folder / "metrics.jsonl", folder / "old.jsonl");
  is_noticed(program, folder, "metrics.jsonl was removed or moved during the run");
  const auto old = steps_in(folder / "old.jsonl");
  CHECK(old == steps_to(static_cast<std::int64_t>(old.size())));
}

TEST_CASE("lines are added to the file that replaces the metrics") {
  const RunFolder folder;
  Program program(folder, endless);
  has_trained(folder, 3);
  program.signal_group(SIGSTOP);
  REQUIRE(within(10, [&] { return !program.living().empty(); }));
  fs::copy_file(folder / "metrics.jsonl", folder / "edited.jsonl");
  fs::rename(folder / "edited.jsonl", folder / "metrics.jsonl");
  program.signal_group(SIGCONT);
  is_noticed(program, folder, "metrics.jsonl was replaced during the run");
}

TEST_CASE("metrics follow their folder, and the run's end says that they are not in their place") {
  const RunFolder folder;
  Program program(folder, train({"train.steps=400", "log.metrics=logs/metrics.jsonl"}));
  REQUIRE(within(60, [&] { return steps_in(folder / "logs/metrics.jsonl").size() >= 3; }));
  fs::rename(folder / "logs", folder / "old");
  const Result result = program.wait(60);
  INFO(result.out << result.error);
  CHECK(result.code == 1);
  CHECK(count(result.error, "warning:") == 1);
  CHECK(count(result.error, "error:") == 1);
  CHECK(result.error.find("the folder of logs/metrics.jsonl was removed, moved or replaced") !=
        std::string::npos);
  CHECK(steps_in(folder / "old/metrics.jsonl") == steps_to(400));
  CHECK(checkpoints(folder / "checkpoints") == Words{"step-00000400"});
}

TEST_CASE("metrics that cannot be written do not end the run, and its exit code says so") {
  // The rank that writes may be another process than the one that ends with the code.
  const Words two_ranks = {"mesh.axes=[shard]", "mesh.shape=[2]",
                           "parallel=[{style=FSDP,axis=shard,on=[\".\"]}]"};
  for (const Words& mesh : {Words{}, two_ranks}) {
    const RunFolder folder;
    Words words = train({"train.steps=5", "log.metrics=/dev/full"});
    words.insert(words.end(), mesh.begin(), mesh.end());
    const Result result = run(folder, words);
    INFO(result.out << result.error);
    CHECK(result.code == 1);
    CHECK(count(result.error, "warning:") == 1);
    CHECK(
        result.error.find("metrics: /dev/full cannot be written: No space left on device; the run "
                          "goes on") != std::string::npos);
    CHECK(count(result.error, "error: train: all steps are done") == 1);
    CHECK(checkpoints(folder / "checkpoints") == Words{"step-00000005"});
    CHECK(result.out.find("checkpoint  checkpoints/step-00000005") != std::string::npos);
  }
}

TEST_CASE("lines that found the disk full are written when there is room", "[.root]") {
  const RunFolder folder;
  const Mount disk({.at = folder / "disk", .size = "64k"});
  if (!disk.mounted()) {
    tessera::testing::skip("a small tmpfs cannot be mounted here (it takes root)");
    return;
  }
  std::ofstream(folder / "disk/filler") << std::string(60000, 'x');
  Program program(folder, train({"train.steps=100000000", "log.metrics=disk/metrics.jsonl"}));
  REQUIRE(within(60, [&] { return program.error().find("No space left") != std::string::npos; }));
  const auto written = steps_in(folder / "disk/metrics.jsonl");
  CHECK(written == steps_to(static_cast<std::int64_t>(written.size())));  // whole lines
  fs::remove(folder / "disk/filler");
  REQUIRE(
      within(60, [&] { return steps_in(folder / "disk/metrics.jsonl").size() > written.size(); }));
  program.signal(SIGINT);
  const Result result = program.wait(20);
  INFO(result.out << result.error);
  CHECK(result.code == 130);
  CHECK(count(result.error, "warning:") == 1);
  CHECK(steps_in(folder / "disk/metrics.jsonl") ==
        steps_to(step_after(result.out, "interrupted after step ")));
}

TEST_CASE("metrics in the file that stdout goes to lose no line, of either") {
  const RunFolder folder;
  const Result apart = run(folder, train({"train.steps=12", "checkpoint.folder="}));
  const Result result =
      run(folder, train({"train.steps=12", "checkpoint.folder=", "log.metrics=/dev/stdout"}));
  INFO(result.out << result.error);
  CHECK(result.code == 0);
  CHECK(count(result.out, "{\"step\":") == 12);
  // Besides, the lines of a run with a file of metrics.
  const auto others = [](const std::string& text) {
    const Words lines = lines_of(text);
    return std::ranges::count_if(lines, [](const auto& line) {
      return !line.starts_with("{") && !line.starts_with("the GEMM ceiling");  // on a busy machine
    });
  };
  CHECK(others(result.out) == others(apart.out));
}

TEST_CASE("a pipe for metrics holds no run up") {
  const RunFolder folder;
  const std::string pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const Words to_pipe = {"log.metrics=pipe"};
  const Result unread = run(folder, train({"train.steps=3", "log.metrics=pipe"}));
  INFO(unread.error);
  CHECK(unread.code == 2);
  CHECK(unread.seconds < 20);
  CHECK(count(unread.error, "error:") == 1);
  CHECK(unread.error.find("pipe cannot be written: nobody reads it; start its reader first") !=
        std::string::npos);

  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  REQUIRE(reader >= 0);
  runs(folder, {"train.steps=3", "log.metrics=pipe"});
  std::string text(1 << 16, '\0');
  text.resize(static_cast<std::size_t>(::read(reader, text.data(), text.size())));
  CHECK(count(text, "\"step\":") == 3);
  CHECK(fs::is_fifo(pipe));

  // Nobody empties it: the run goes on, and a request to stop reaches it.
  Program stuck(folder, train({"train.steps=100000000", "log.metrics=pipe", "log.every=1"}));
  REQUIRE(within(60, [&] {
    return step_after(stuck.out(), "\nstep 300/") > 0 ||
           stuck.out().find("300/100000000") != std::string::npos;
  }));
  stuck.signal(SIGTERM);
  const Result stopped = stuck.wait(20);
  INFO(stopped.out << stopped.error);
  CHECK(stopped.code == 130);
  CHECK(stopped.error.empty());

  // Its reader goes.
  Program left(folder, train({"train.steps=600", "log.metrics=pipe", "checkpoint.folder=left"}));
  REQUIRE(within(60, [&] { return left.out().find("step   1/600") != std::string::npos; }));
  ::close(reader);
  const Result alone = left.wait(60);
  INFO(alone.out << alone.error);
  CHECK(alone.code == 1);
  CHECK(alone.error.find("Broken pipe; the run goes on") != std::string::npos);
  CHECK(count(alone.error, "error:") == 1);
  CHECK(checkpoints(folder / "left") == Words{"step-00000600"});
}
