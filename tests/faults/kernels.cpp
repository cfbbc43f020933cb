// Compiled kernels where there is no compiler, and where the cache is damaged, full or somebody
// else's. The run goes on with the same losses, or says what to do.
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "catch.hpp"
#include "program.hpp"

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
  check({{"TESSERA_CXX", "echo"}, {"TESSERA_KERNEL_CACHE", cache}},
        "echo is no clang of version 19 or later (it says '--version')");
  check({{"TESSERA_KERNEL_CACHE", "/proc/cache"}}, "/proc/cache");
  const std::string file = folder.write("file", "no folder");
  check({{"TESSERA_KERNEL_CACHE", file + "/cache"}}, file + "/cache");
  CHECK(!fs::exists(cache));
}

TEST_CASE("compiled kernels: code that others can change is not run") {
  const RunFolder folder;
  const std::string cache = folder / "cache";
  REQUIRE(compiled(folder, {{"TESSERA_KERNEL_CACHE", cache}}).code == 0);
  fs::permissions(cache, fs::perms::all);
  const Result result = compiled(folder, {{"TESSERA_KERNEL_CACHE", cache}});
  INFO(result.out << result.error);
  CHECK(result.code == 2);
  CHECK(count(result.error, "can be written by others") == 1);
  CHECK(result.error.find("chmod go-w " + cache) != std::string::npos);
}
