// The cache of generated code, with code that is text: who makes it, when it is made again, and
// what the cache refuses.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "folder.hpp"

import tessera.base;
import tessera.cache;

using namespace tessera;
using tessera::testing::Folder;
using tessera::testing::read_file;

namespace {

namespace fs = std::filesystem;

/// A folder for the cache of a test, and one file in it that counts what was made.
class CacheFolder : public Folder {
 public:
  CacheFolder() { setenv("TESSERA_KERNEL_CACHE", cache().c_str(), 1); }
  std::string cache() const { return *this / "cache"; }
  std::string made_file() const { return *this / "made"; }
  /// How often something was made, by any process.
  std::size_t made() const { return fs::exists(made_file()) ? fs::file_size(made_file()) : 0; }
  std::vector<fs::path> files(const std::string& extension) const {
    std::vector<fs::path> found;
    for (const fs::directory_entry& entry : fs::directory_iterator(cache())) {
      if (entry.path().extension() == extension) found.push_back(entry.path());
    }
    return found;
  }
};

struct Used {
  std::string text;
  std::string missing;
};

/// The code of a key, which is "code of KEY"; to make it takes some time.
Used code_of(const CacheFolder& folder, const std::string& key, int milliseconds = 0) {
  Used found;
  found.missing =
      use_cached_code({.key = key,
                       .extension = "text",
                       .otherwise = "the test fails",
                       .make = [&](const std::string& file) -> CompileOutcome {
                         std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
                         std::ofstream(folder.made_file(), std::ios::app) << "x";
                         std::ofstream(file) << "code of " << key;
                         return {};
                       },
                       .use = [&](const std::string& file) -> std::string {
                         found.text = read_file(file);
                         return "";
                       }});
  return found;
}

}  // namespace

TEST_CASE("code is made once for each key, in a folder that only its user can open") {
  const CacheFolder folder;
  for (int i = 0; i < 2; ++i) {
    CHECK(code_of(folder, "a").text == "code of a");
    CHECK(code_of(folder, "b").text == "code of b");
    CHECK(folder.made() == 2);
  }
  CHECK(folder.files(".text").size() == 2);
  struct stat status{};
  REQUIRE(stat(folder.cache().c_str(), &status) == 0);
  CHECK((status.st_mode & 0777U) == 0700);
}

TEST_CASE("code that is damaged, cut short, or was not finished is made again") {
  const CacheFolder folder;
  code_of(folder, "a");
  const fs::path file = folder.files(".text").at(0);
  const auto again = [&](std::size_t made) {
    const Used found = code_of(folder, "a");
    CHECK((found.missing == "" && found.text == "code of a"));
    CHECK(read_file(file) == "code of a");
    CHECK(folder.made() == made);
  };
  std::ofstream(file) << "code of x";
  again(2);
  fs::resize_file(file, 4);
  again(3);
  fs::resize_file(file, 0);
  again(4);
  fs::remove(folder.files(".sum").at(0));  // as of a process that was killed before it
  again(5);
  std::ofstream(folder.files(".sum").at(0)) << "no hash";
  again(6);
  fs::remove(file);
  again(7);
  again(7);
}

TEST_CASE("of several processes at once, one makes the code and the others wait for it") {
  const CacheFolder folder;
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      _exit(code_of(folder, "a", 100).text == "code of a" ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  CHECK(folder.made() == 1);
}

TEST_CASE("the 200 files that were used last are kept") {
  const CacheFolder folder;
  for (int i = 0; i < 200; ++i) {
    code_of(folder, std::to_string(i));
  }
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (const fs::path& file : folder.files(".text")) {
    const bool oldest = read_file(file) == "code of 7";
    fs::last_write_time(file, oldest ? old - std::chrono::hours(1) : old);
  }
  code_of(folder, "7");  // which is thereby used
  for (int i = 200; i < 203; ++i) {
    code_of(folder, std::to_string(i));
  }
  CHECK(folder.files(".text").size() == 200);
  CHECK(folder.files(".sum").size() == 200);
  CHECK(folder.files(".lock").size() == 200);
  CHECK(folder.made() == 203);
  code_of(folder, "7");
  CHECK(folder.made() == 203);
}

TEST_CASE("why there is no code is said, and nothing is left of an attempt") {
  const CacheFolder folder;
  const auto attempt = [&](const CompileOutcome& made) {
    return use_cached_code({.key = "a",
                            .extension = "text",
                            .otherwise = "the test goes on",
                            .make = [&](const std::string&) { return made; },
                            .use = [](const std::string&) -> std::string { return "not used"; }});
  };
  CHECK(attempt({.missing = "the disk is full"}) == "the disk is full");
  CHECK(folder.files(".text").empty());
  CHECK_THROWS_WITH(use_cached_code({.key = "a",
                                     .extension = "text",
                                     .otherwise = "the test goes on",
                                     .make = [](const std::string&) -> CompileOutcome {
                                       fail({.thing = "a compiler", .wrong = "refuses the code"});
                                     },
                                     .use = [](const std::string&) -> std::string { return ""; }}),
                    Catch::Contains("a compiler: refuses the code"));
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.cache())) {
    CHECK(entry.path().extension() == ".lock");
  }
  CHECK(code_of(folder, "a").text == "code of a");

  setenv("TESSERA_KERNEL_CACHE", "/proc/cache", 1);
  CHECK_THAT(code_of(folder, "a").missing, Catch::Contains("/proc/cache cannot be written"));
  setenv("TESSERA_KERNEL_CACHE", folder.cache().c_str(), 1);
  chmod(folder.cache().c_str(), 0777);
  CHECK_THROWS_WITH(code_of(folder, "a"), Catch::Contains("the cache of compiled kernels: "));
  chmod(folder.cache().c_str(), 0700);

  // A process that has waited in vain does not wait again.
  const pid_t child = fork();
  if (child == 0) {
    fs::remove_all(folder.cache());
    const std::string late = "it takes too long";
    const bool said = attempt({.missing = late, .late = true}) == late;
    _exit(said && code_of(folder, "new").missing == late ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
}
