// Compiled kernels where there is no compiler, and where the cache is damaged, full or somebody
// else's. The run goes on with the same losses, or says what to do.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "catch.hpp"
#include "program.hpp"
#include "skip.hpp"

using namespace faults;

namespace {

namespace fs = std::filesystem;

std::vector<std::string> words(const std::string& executor) {
  return {"train",
          "run.toml",
          "train.steps=3",
          "mesh.axes=[\"shard\"]",
          "mesh.shape=[2]",
          "parallel=[{style=\"FSDP\", axis=\"shard\", on=[\"model.layers.*\", \".\"]}]",
          "checkpoint.folder=",
          "checkpoint.every=0",
          "graph.capture=true",
          "graph.executor=" + executor};
}

/// What a run prints of its losses.
std::vector<std::string> losses(const Result& result) {
  std::vector<std::string> all;
  for (const std::string& line : lines_of(result.out)) {
    const std::size_t loss = line.find("loss ");
    const std::size_t speed = line.find("tokens/s");
    if (line.starts_with("step ") && loss != std::string::npos && speed != std::string::npos) {
      all.push_back(line.substr(0, line.find(" ", line.find("grad ") + 5)));
    }
  }
  return all;
}

Result compiled(const RunFolder& folder, const std::map<std::string, std::string>& environment) {
  return run(folder, words("compiled"), {.environment = environment});
}

std::vector<fs::path> files_of(const fs::path& folder, const std::string& extension) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == extension) {
      files.push_back(entry.path());
    }
  }
  return files;
}

}  // namespace

TEST_CASE("compiled kernels: a run compiles them once, and damaged ones again") {
  const RunFolder folder;
  const std::string cache = folder / "cache";
  const Result planned = run(folder, words("planned"));
  INFO(planned.error);
  REQUIRE(planned.code == 0);
  REQUIRE(losses(planned).size() >= 2);
  const Result first = compiled(folder, {{"TESSERA_KERNEL_CACHE", cache}});
  INFO(first.out << first.error);
  REQUIRE(first.code == 0);
  CHECK(losses(first) == losses(planned));
  CHECK(first.out.find(" compiled kernels for ") != std::string::npos);
  const std::vector<fs::path> made = files_of(cache, ".so");
  REQUIRE(!made.empty());
  CHECK(files_of(cache, ".sum").size() == made.size());
  struct stat status{};
  REQUIRE(stat(cache.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777U) == 0700);

  // Without a compiler, what is in the cache cannot be told from what another one has made.
  const auto written = fs::last_write_time(made[0]);
  std::ofstream(made[0], std::ios::binary | std::ios::in).seekp(512) << "damage";
  const Result again = compiled(folder, {{"TESSERA_KERNEL_CACHE", cache}});
  INFO(again.error);
  CHECK(again.code == 0);
  CHECK(losses(again) == losses(planned));
  CHECK(files_of(cache, ".so").size() == made.size());
  CHECK(fs::last_write_time(made[0]) >= written);
  CHECK(read_file(made[0]).substr(512, 6) != "damage");
}

TEST_CASE(
    "compiled kernels: the cache is in the user's folder of caches, if its path is absolute") {
  const RunFolder folder;
  const std::string home = folder / "home";
  const auto made = [&](const std::string& cache) {
    const Result result =
        compiled(folder, {{"TESSERA_KERNEL_CACHE", ""}, {"XDG_CACHE_HOME", cache}, {"HOME", home}});
    INFO(result.out << result.error);
    CHECK(result.code == 0);
    CHECK(result.out.find(" compiled kernels for ") != std::string::npos);
  };
  made(folder / "caches");
  CHECK(!files_of(folder / "caches/tessera/kernels", ".so").empty());
  CHECK(!fs::exists(home));
  made("relative");  // the XDG specification: such a path is ignored
  CHECK(!files_of(home + "/.cache/tessera/kernels", ".so").empty());
  CHECK(!fs::exists("relative"));
  CHECK(!fs::exists(folder / "relative"));
}

TEST_CASE("compiled kernels: without a compiler or a cache, a run is planned, and says so") {
  const RunFolder folder;
  const Result planned = run(folder, words("planned"));
  const auto check = [&](const std::map<std::string, std::string>& environment,
                         const std::string& why) {
    const Result result = compiled(folder, environment);
    INFO(why << "\n" << result.out << result.error);
    CHECK(result.code == 0);
    CHECK(losses(result) == losses(planned));
    CHECK(count(result.out, "no kernels are compiled: ") == 1);
    CHECK(result.out.find(why) != std::string::npos);
  };
  const std::string cache = folder / "cache";
  check(
      {{"TESSERA_CXX", "/nowhere/clang++"}, {"TESSERA_KERNEL_CACHE", cache}},
      "there is no compiler: /nowhere/clang++ cannot be run; install clang-19 or set TESSERA_CXX");
  const std::string other = folder.write("other", "#!/bin/sh\necho another compiler, 1.0\n");
  fs::permissions(other, fs::perms::owner_all);
  check({{"TESSERA_CXX", other}, {"TESSERA_KERNEL_CACHE", cache}},
        other + " is no clang of version 19 or later (it says 'another compiler, 1.0')");
  check({{"TESSERA_KERNEL_CACHE", "/proc/cache"}}, "/proc/cache");
  const std::string file = folder.write("file", "no folder");
  check({{"TESSERA_KERNEL_CACHE", file + "/cache"}}, file + "/cache");
  CHECK(!fs::exists(cache));
}

namespace {

/// The run goes on without compiled kernels, and says why in its table.
void is_planned(const Result& result, const std::string& why) {
  INFO(why << "\n" << result.out << result.error);
  CHECK(result.code == 0);
  CHECK(losses(result).size() >= 2);
  CHECK(count(result.out, "no kernels are compiled: ") == 1);
  CHECK(result.out.find(why) != std::string::npos);
}

/// A cache in which a run has compiled its kernels.
std::string filled_cache(const RunFolder& folder) {
  const std::string cache = folder / "cache";
  REQUIRE(compiled(folder, {{"TESSERA_KERNEL_CACHE", cache}}).code == 0);
  REQUIRE(!files_of(cache, ".so").empty());
  return cache;
}

void replace_by_pipes(const std::string& cache, const std::string& extension) {
  for (const fs::path& file : files_of(cache, extension)) {
    fs::remove(file);
    REQUIRE(mkfifo(file.c_str(), 0600) == 0);
  }
}

}  // namespace

TEST_CASE("compiled kernels: a stopped process that holds the lock is named, and not waited for") {
  const RunFolder folder;
  const std::string cache = filled_cache(folder);
  // It has the lock of every library, and has been stopped.
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t holder = fork();
  if (holder == 0) {
    for (const fs::path& file : files_of(cache, ".lock")) {
      flock(open(file.c_str(), O_RDWR), LOCK_EX);
    }
    [[maybe_unused]] const ssize_t written = write(ends[1], "x", 1);
    raise(SIGSTOP);
    _exit(0);
  }
  char byte = 0;
  REQUIRE(read(ends[0], &byte, 1) == 1);
  const Result result =
      compiled(folder, {{"TESSERA_KERNEL_CACHE", cache}, {"TESSERA_TIMEOUT", "3"}});
  kill(holder, SIGKILL);
  waitpid(holder, nullptr, 0);
  is_planned(result, "has had the lock ");
  CHECK(count(result.error, " has the lock " + cache) == 1);
  CHECK(result.error.find("(waited for 2 s; the executor is planned after 3 s)") !=
        std::string::npos);
}

TEST_CASE("compiled kernels: a compiler that hangs is ended, and the run goes on") {
  const RunFolder folder;
  const std::string cache = folder / "cache";
  const std::string hangs = folder.write("clang",
                                         "#!/bin/sh\n"
                                         "[ \"$1\" = --version ] || exec sleep 1000\n"
                                         "echo clang version 19.0.0\n");
  fs::permissions(hangs, fs::perms::owner_all);
  const std::map<std::string, std::string> environment = {
      {"TESSERA_CXX", hangs}, {"TESSERA_KERNEL_CACHE", cache}, {"TESSERA_TIMEOUT", "3"}};
  const Result result = compiled(folder, environment);
  is_planned(result, hangs + " did not compile them within 3 s");
  CHECK(count(result.error, "compiled kernels: " + hangs + " compiles (waited for 2 s; ") == 1);
  CHECK(result.left_running == 0);
  for (const fs::directory_entry& entry : fs::directory_iterator(cache)) {
    CHECK(entry.path().extension() == ".lock");  // nothing else is left
  }
  folder.write("clang", "#!/bin/sh\nexec sleep 1000\n");
  is_planned(compiled(folder, environment), hangs + " does not say its version");
}

TEST_CASE("compiled kernels: pipes and links in the cache block nobody") {
  const RunFolder folder;
  const std::string cache = filled_cache(folder);
  const std::map<std::string, std::string> environment = {{"TESSERA_KERNEL_CACHE", cache},
                                                          {"TESSERA_TIMEOUT", "30"}};
  const std::size_t libraries = files_of(cache, ".so").size();
  replace_by_pipes(cache, ".lock");
  is_planned(compiled(folder, environment), "(it is not a plain file)");
  const std::string target = folder.write("target", "kept");
  for (const fs::path& file : files_of(cache, ".lock")) {
    fs::remove(file);
    fs::create_symlink(target, file);
  }
  is_planned(compiled(folder, environment), "(it is a symbolic link)");
  CHECK(read_file(target) == "kept");
  for (const fs::path& file : files_of(cache, ".lock")) {
    fs::remove(file);
  }
  for (const char* kind : {".sum", ".so"}) {
    replace_by_pipes(cache, kind);
    const Result result = compiled(folder, environment);
    INFO(kind << result.out << result.error);
    CHECK(result.code == 0);
    CHECK(result.out.find(" compiled kernels for ") != std::string::npos);
    for (const fs::path& file : files_of(cache, kind)) {
      CHECK(fs::is_regular_file(file));
    }
  }
  CHECK(files_of(cache, ".so").size() == libraries);
}

TEST_CASE("compiled kernels: a cache on a file system without execution is not used", "[.root]") {
  const RunFolder folder;
  const std::string cache = folder / "cache";
  fs::create_directory(cache);
  if (unshare(CLONE_NEWNS) != 0 ||
      mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("tmpfs", cache.c_str(), "tmpfs", MS_NOEXEC, "mode=700") != 0) {
    tessera::testing::skip("it cannot mount a file system");
    return;
  }
  const Result result = compiled(folder, {{"TESSERA_KERNEL_CACHE", cache}});
  const bool unused = fs::is_empty(cache);
  umount(cache.c_str());
  is_planned(result, cache + " is on a file system from which no code is loaded (noexec)");
  CHECK(unused);
}

TEST_CASE(
    "compiled kernels: code that others can change is not run, and nothing is written there") {
  const RunFolder folder;
  const std::string fresh = folder / "fresh";
  fs::create_directory(fresh);
  fs::permissions(fresh, fs::perms::all);
  const Result first = compiled(folder, {{"TESSERA_KERNEL_CACHE", fresh}});
  INFO(first.out << first.error);
  CHECK(first.code == 2);
  CHECK(first.error.find("chmod go-w " + fresh) != std::string::npos);
  CHECK(fs::is_empty(fresh));
  const Result below = compiled(folder, {{"TESSERA_KERNEL_CACHE", fresh + "/cache"}});
  CHECK(below.code == 2);
  CHECK(fs::is_empty(fresh));

  const std::string cache = folder / "cache";
  REQUIRE(compiled(folder, {{"TESSERA_KERNEL_CACHE", cache}}).code == 0);
  fs::permissions(cache, fs::perms::all);
  const Result result = compiled(folder, {{"TESSERA_KERNEL_CACHE", cache}});
  INFO(result.out << result.error);
  CHECK(result.code == 2);
  CHECK(count(result.error, "can be written by others") == 1);
  CHECK(result.error.find("chmod go-w " + cache) != std::string::npos);
  fs::permissions(cache, fs::perms::owner_all);
  for (const fs::path& file : files_of(cache, ".so")) {
    fs::permissions(file, fs::perms::all);
  }
  const Result library = compiled(folder, {{"TESSERA_KERNEL_CACHE", cache}});
  INFO(library.out << library.error);
  CHECK(library.code == 2);
  CHECK(count(library.error, "can be written by others") == 1);
}
