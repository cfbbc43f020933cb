// What commands write: all of it, or an error and nothing of it.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
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

const char* const checkpoint = "checkpoints/step-00000002";

/// A checkpoint, a program and a trace.
void prepare(const RunFolder& folder) {
  const Result result = run(folder, train({"train.steps=2", "graph.capture=true",
                                           "graph.program=step.txt", "trace.file=trace.json"}));
  INFO(result.error);
  REQUIRE(result.code == 0);
}

Words captured(const std::string& to) {
  return {"graph",
          "capture",
          "run.toml",
          "mesh.axes=[]",
          "mesh.shape=[]",
          "parallel=[]",
          "checkpoint.folder=",
          "--to",
          to};
}

/// What is below a folder, with the sizes of files.
std::map<std::string, std::uintmax_t> below(const fs::path& folder) {
  std::map<std::string, std::uintmax_t> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    found.emplace(fs::relative(entry.path(), folder).string(),
                  entry.is_regular_file() ? entry.file_size() : 0);
  }
  return found;
}

unsigned mode_of(const std::string& path) {
  struct stat status = {};
  REQUIRE(::lstat(path.c_str(), &status) == 0);
  return status.st_mode & 07777U;
}

}  // namespace

TEST_CASE("every command that prints fails when its output cannot be written") {
  const RunFolder folder;
  prepare(folder);
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  REQUIRE(full >= 0);
  const std::vector<Words> commands = {
      {"keys"},
      {"--help"},
      {"--version"},
      {"train", "--help"},
      {"ops"},
      {"ops", "softmax"},
      {"doctor"},
      {"plugin", "list"},
      {"plugin", "new", "MyStyle", "--kind", "style"},
      {"layout", "[Shard(0)]", "--mesh", "2", "--shape", "8x6"},
      {"generate", checkpoint, "--prompt", "a", "--tokens", "3"},
      {"checkpoint", "info", checkpoint},
      {"checkpoint", "info", checkpoint, "--json"},
      {"checkpoint", "verify", checkpoint},
      {"checkpoint", "diff", checkpoint, checkpoint},
      {"checkpoint", "export", checkpoint, "--to", "exported"},
      {"checkpoint", "convert", checkpoint, "--to", "converted", "--format", "torch"},
      {"graph", "show", "step.txt"},
      {"graph", "show", "step.txt", "--all"},
      {"graph", "stats", "step.txt"},
      captured("captured.txt"),
      {"trace", "summary", "trace.json"},
      train({"--dry-run"}),
      train({"train.steps=4"})};
  for (const Words& command : commands) {
    const Result result = run(folder, command, {.out = full});
    std::string line;
    for (const std::string& word : command) {
      line += word + " ";
    }
    INFO(line << result.error);
    CHECK(result.code == 1);
    CHECK(count(result.error, "\n") == 1);
    CHECK(result.error.find("error: stdout: not everything could be written") == 0);
  }
  CHECK(checkpoints(folder / "checkpoints") == Words{"step-00000002"});  // none was trained
  ::close(full);
}

TEST_CASE("a difference that cannot be printed is an error") {
  const RunFolder folder;
  prepare(folder);
  REQUIRE(run(folder, train({"train.steps=3"})).code == 0);
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  const Words diff = {"checkpoint", "diff", checkpoint, "checkpoints/step-00000003"};
  CHECK(run(folder, diff).code == 1);
  CHECK(run(folder, diff).error.empty());
  CHECK(count(run(folder, diff, {.out = full}).error, "error: stdout: ") == 1);
  ::close(full);
}

TEST_CASE("what does not fit is not there in part", "[.root]") {
  const RunFolder folder;
  prepare(folder);
  const Mount disk({.at = folder / "disk", .size = "64k"});
  if (!disk.mounted()) {
    tessera::testing::skip("a small tmpfs cannot be mounted here (it takes root)");
    return;
  }
  const std::string old = folder.write("disk/old.txt", "as it was");
  const auto before = below(folder / "disk");
  const std::vector<Words> commands = {
      {"checkpoint", "export", checkpoint, "--to", "disk/new"},
      {"checkpoint", "export", checkpoint, "--to", "disk/new", "--max-file-size", "20KB"},
      {"checkpoint", "convert", checkpoint, "--to", "disk/new", "--format", "torch"},
      {"checkpoint", "convert", checkpoint, "--to", "disk/new", "--format", "tessera"},
      {"checkpoint", "convert", checkpoint, "--to", "disk/new", "--format", "safetensors"},
      {"checkpoint", "convert", checkpoint, "--to", "disk/a/b/new", "--format", "torch"},
      {"trace", "draw", "trace.json", "--to", "disk/new.svg"},
      {"graph", "draw", "step.txt", "--to", "disk/new.svg"},
      captured("disk/new.txt"),
      captured("disk/old.txt")};
  // The room that the smaller outputs find: none.
  std::ofstream(folder / "disk/filler") << std::string(100000, 'x');
  const auto full = below(folder / "disk");
  for (const Words& command : commands) {
    const Result result = run(folder, command);
    INFO(command[0] << " " << command[1] << ": " << result.error);
    CHECK((result.code == 1 || result.code == 2));
    CHECK(count(result.error, "error:") == 1);
    CHECK(result.error.find("No space left on device") != std::string::npos);
    CHECK(below(folder / "disk") == full);
  }
  CHECK(read_file(old) == "as it was");
  fs::remove(folder / "disk/filler");
  // Where there is some room, but not enough.
  for (const Words& command : {commands[0], commands[2], commands[3], commands[4]}) {
    const Result result = run(folder, command);
    INFO(command[0] << " " << command[1] << ": " << result.error);
    CHECK(result.code == 1);
    CHECK(below(folder / "disk") == before);
  }
}

TEST_CASE("a plugin that does not fit is not there in part", "[.root]") {
  const RunFolder folder;
  const Mount disk({.at = folder / "disk", .size = "8k"});
  if (!disk.mounted()) {
    tessera::testing::skip("a small tmpfs cannot be mounted here (it takes root)");
    return;
  }
  const Result result =
      run(folder, {"plugin", "new", "MyStyle", "--kind", "style", "--folder", "disk"});
  INFO(result.error);
  CHECK(result.code == 1);
  CHECK(count(result.error, "error: plugin new MyStyle: ") == 1);
  CHECK(result.error.find("No space left on device") != std::string::npos);
  CHECK(below(folder / "disk").empty());
}

TEST_CASE("an empty folder that is there is filled, whatever file system it is of", "[.root]") {
  const RunFolder folder;
  prepare(folder);
  const Mount disk({.at = folder / "disk", .size = "16m"});
  if (!disk.mounted()) {
    tessera::testing::skip("a small tmpfs cannot be mounted here (it takes root)");
    return;
  }
  for (const char* const format : {"torch", "tessera", "safetensors"}) {
    const Result result =
        run(folder, {"checkpoint", "convert", checkpoint, "--to", "disk", "--format", format});
    INFO(format << ": " << result.error);
    CHECK(result.code == 0);
    if (std::string(format) == "safetensors") {
      CHECK(fs::exists(folder / "disk/model.safetensors"));
    } else {
      CHECK(run(folder, {"checkpoint", "diff", checkpoint, "disk"}).code == 0);
    }
    for (const auto& entry : fs::directory_iterator(folder / "disk")) {
      CHECK(entry.is_regular_file());
      fs::remove(entry.path());
    }
  }
}

TEST_CASE("outputs go where a link leads, and keep the mode of a file that is there") {
  const RunFolder folder;
  prepare(folder);
  fs::create_directory(folder / "far");
  fs::create_symlink("far/picture.svg", folder / "picture.svg");
  const Words draw = {"graph", "draw", "step.txt", "--to", "picture.svg"};
  const mode_t before = ::umask(027);
  CHECK(run(folder, draw).code == 0);
  ::umask(before);
  CHECK(fs::is_symlink(folder / "picture.svg"));
  CHECK(mode_of(folder / "far/picture.svg") == 0640U);
  const std::string picture = read_file(folder / "far/picture.svg");
  CHECK(picture.find("</svg>") != std::string::npos);
  folder.write("far/picture.svg", "old");
  REQUIRE(::chmod((folder / "far/picture.svg").c_str(), 0604) == 0);
  CHECK(run(folder, draw).code == 0);
  CHECK(read_file(folder / "far/picture.svg") == picture);
  CHECK(mode_of(folder / "far/picture.svg") == 0604U);
  CHECK(below(folder / "far").size() == 1);
  // A second name of a file stays one.
  fs::create_hard_link(folder / "far/picture.svg", folder / "other.svg");
  folder.write("other.svg", "");
  CHECK(run(folder, draw).code == 0);
  CHECK(read_file(folder / "other.svg") == picture);
  // The model folder of an export, through a link that leads to nothing yet.
  fs::create_directory_symlink("far/model", folder / "model");
  CHECK(run(folder, {"checkpoint", "export", checkpoint, "--to", "model"}).code == 0);
  CHECK(fs::is_symlink(folder / "model"));
  CHECK(fs::exists(folder / "far/model/config.json"));
}

TEST_CASE("a program on stdout is printed") {
  const RunFolder folder;
  const Result result = run(folder, captured("/dev/stdout"));
  INFO(result.error);
  CHECK(result.code == 0);
  CHECK(result.out.find("program written: /dev/stdout") != std::string::npos);
}

TEST_CASE("outputs of a run that fail while it trains do not end it, and its exit code says so") {
  const RunFolder folder;
  const std::string pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  is_refused(folder, train({"trace.file=pipe"}), {"trace.file", "a pipe"});
  is_refused(folder, train({"graph.capture=true", "graph.program=pipe"}),
             {"graph.program", "a pipe"});
  const Result result = run(folder, train({"train.steps=6", "graph.capture=true",
                                           "graph.program=/dev/full", "trace.file=/dev/full"}));
  INFO(result.out << result.error);
  CHECK(result.code == 1);
  CHECK(count(result.error, "warning:") == 2);
  CHECK(result.error.find("trace.file: /dev/full cannot be written: No space left") !=
        std::string::npos);
  CHECK(result.error.find("graph.program: cannot write /dev/full: No space left") !=
        std::string::npos);
  CHECK(count(result.error, "error: train: all steps are done, and not everything else") == 1);
  CHECK(steps_in(folder / "metrics.jsonl") == steps_to(6));
  CHECK(checkpoints(folder / "checkpoints") == Words{"step-00000006"});
}
