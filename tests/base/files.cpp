#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"

import tessera.base;

#include "errors.hpp"

using namespace tessera;
using tessera::testing::contains;
using tessera::testing::error_of;

namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

/// A fresh folder that goes away with the object.
class Folder {
 public:
  Folder() {
    static std::atomic<int> made{0};
    path_ = fs::temp_directory_path() /
            ("tessera_files_" + std::to_string(::getpid()) + "_" + std::to_string(made++));
    fs::create_directories(path_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { fs::remove_all(path_); }
  std::string at(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, std::string_view bytes) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return at(name);
  }
  Names names(const std::string& of = "") const {
    Names all;
    for (const auto& entry : fs::recursive_directory_iterator(path_ / of)) {
      all.push_back(entry.path().lexically_relative(of.empty() ? path_ : path_ / of).string());
    }
    std::ranges::sort(all);
    return all;
  }

 private:
  fs::path path_;
};

std::string read(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

unsigned mode_of(const std::string& path) {
  struct stat status = {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_mode & 07777U;
}

const RemovableFile any = [](const std::string&) { return true; };

}  // namespace

TEST_CASE("a file is written where its links lead, and has the mode that it had") {
  const Folder folder;
  const mode_t before = ::umask(027);
  CHECK(write_file(folder.at("new"), "one").empty());
  ::umask(before);
  CHECK(mode_of(folder.at("new")) == 0640U);
  REQUIRE(::chmod(folder.at("new").c_str(), 0604) == 0);
  fs::create_directory(folder.at("far"));
  fs::create_symlink("../new", folder.at("far/link"));
  fs::create_symlink(folder.at("far/link"), folder.at("chain"));
  const std::vector<std::string_view> parts = {"two", "", " parts"};
  CHECK(write_file(folder.at("chain"), parts).empty());
  CHECK(read(folder.at("new")) == "two parts");
  CHECK(mode_of(folder.at("new")) == 0604U);
  CHECK(output_place(folder.at("chain")) == folder.at("far/../new"));
  fs::create_symlink("far/fresh", folder.at("dangling"));
  CHECK(write_file(folder.at("dangling"), "three").empty());
  CHECK(read(folder.at("far/fresh")) == "three");
  CHECK(folder.names() == Names{"chain", "dangling", "far", "far/fresh", "far/link", "new"});
}

TEST_CASE("a file that cannot be written says why, and is as it was") {
  const Folder folder;
  const std::string file = folder.write("file", "old");
  CHECK(write_file(folder.at("nowhere/file"), "x") == "No such file or directory");
  CHECK(write_file(file + "/file", "x") == "Not a directory");
  CHECK(write_file(folder.at(""), "x") == "Is a directory");
  CHECK(write_file("/dev/full", "x") == "No space left on device");
  fs::create_symlink("round", folder.at("round"));
  CHECK(write_file(folder.at("round"), "x") == "Too many levels of symbolic links");
  REQUIRE(::mkfifo(folder.at("pipe").c_str(), 0600) == 0);
  CHECK(write_file(folder.at("pipe"), "x") == "nobody reads it");
  CHECK(read(file) == "old");
  CHECK(folder.names() == Names{"file", "pipe", "round"});
}

TEST_CASE("streams are told from files, and are written as they are") {
  const Folder folder;
  const std::string file = folder.write("file", "old");
  const std::string pipe = folder.at("pipe");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const int opened = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
  const std::string by_number = "/proc/self/fd/" + std::to_string(opened);
  CHECK(is_stream(pipe));
  CHECK(is_stream("/dev/null"));
  CHECK(is_stream(by_number));
  CHECK_FALSE(is_stream(file));
  CHECK_FALSE(is_stream(folder.at("")));
  CHECK_FALSE(is_stream(folder.at("nowhere")));
  // The file that is open gets the text, not one that takes its name.
  CHECK(write_file(by_number, "new").empty());
  char text[4] = {};
  CHECK(::pread(opened, text, 3, 0) == 3);
  CHECK(std::string(text) == "new");
  ::close(opened);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  CHECK(write_file(pipe, "abc").empty());
  CHECK(::read(reader, text, 3) == 3);
  CHECK(std::string(text) == "abc");
  ::close(reader);
}

TEST_CASE("a file with two names keeps both") {
  const Folder folder;
  const std::string file = folder.write("file", "a longer old text");
  fs::create_hard_link(file, folder.at("other"));
  CHECK(write_file(file, "new").empty());
  CHECK(read(folder.at("other")) == "new");
}

TEST_CASE("a new folder is complete or absent") {
  const Folder folder;
  const std::string place = folder.at("a/b/new/");
  {
    const NewFolder made(place);
    CHECK_FALSE(fs::exists(place));
    write_file(made.path() + "/one", "1");
    fs::create_directory(made.path() + "/inner");
    write_file(made.path() + "/inner/two", "2");
  }
  CHECK(folder.names().empty());
  {
    NewFolder made(place);
    write_file(made.path() + "/one", "1");
    made.complete();
  }
  CHECK(folder.names() == Names{"a", "a/b", "a/b/new", "a/b/new/one"});
  CHECK(contains(error_of([&] { const NewFolder again(place); }), "the folder is not empty"));
  CHECK(contains(error_of([&] { const NewFolder again(place + "one"); }), "it is not a folder"));
  const std::string below = error_of([&] { const NewFolder again(place + "one/two"); });
  CHECK(contains(below, place + "one/two: "));
  CHECK(folder.names("a/b/new") == Names{"one"});
}

TEST_CASE("an empty folder that is there is filled as one step, and keeps its mode") {
  const Folder folder;
  fs::create_directory(folder.at("there"));
  REQUIRE(::chmod(folder.at("there").c_str(), 0705) == 0);
  fs::create_directory_symlink("there", folder.at("link"));
  {
    const NewFolder made(folder.at("link"));
    write_file(made.path() + "/one", "1");
  }
  CHECK(fs::is_empty(folder.at("there")));
  {
    NewFolder made(folder.at("link"));
    write_file(made.path() + "/one", "1");
    write_file(made.path() + "/two", "2");
    made.complete();
  }
  CHECK(folder.names("there") == Names{"one", "two"});
  CHECK(mode_of(folder.at("there")) == 0705U);
  CHECK(fs::is_symlink(folder.at("link")));
}

TEST_CASE("only what may be removed is, and nothing where something is in the way") {
  const Folder folder;
  const auto fill = [&] {
    folder.write("old/data", "x");
    folder.write("old/inner/data", "x");
  };
  const RemovableFile data = [](const std::string& path) {
    return path == "data" || path == "inner/data" || path == "inner";
  };
  fill();
  CHECK(why_not_removable(folder.at("old"), data).empty());
  CHECK(remove_folder(folder.at("old/"), data).empty());
  CHECK(folder.names().empty());

  fill();
  folder.write("old/inner/notes", "mine");
  CHECK(remove_folder(folder.at("old"), data) ==
        "inner/notes is in it, which is not one of its files");
  CHECK(folder.names() == Names{"old", "old/inner", "old/inner/notes"});
  fs::remove_all(folder.at("old"));

  fill();
  folder.write("far/data", "precious");
  fs::create_directory_symlink("../far", folder.at("old/link"));
  fs::create_directory_symlink("old", folder.at("name"));
  CHECK(contains(remove_folder(folder.at("name"), any), "a link"));
  CHECK(remove_folder(folder.at("old"), any) == "link is not a regular file");
  CHECK(folder.names("old") == Names{"data", "inner", "inner/data", "link"});
  CHECK(read(folder.at("far/data")) == "precious");
  CHECK(remove_folder(folder.at("nowhere"), any) == "No such file or directory");
}

TEST_CASE("a folder that is kept open is told from another one of its name") {
  const Folder folder;
  fs::create_directory(folder.at("a"));
  const HeldFolder held(folder.at("a"));
  CHECK_FALSE(held.is_lost());
  folder.write("a/file", "x");
  CHECK_FALSE(held.is_lost());
  fs::rename(folder.at("a"), folder.at("b"));
  CHECK(held.is_lost());
  fs::create_directory(folder.at("a"));
  CHECK(held.is_lost());
  fs::remove(folder.at("a"));
  fs::create_directory_symlink("b", folder.at("a"));
  CHECK_FALSE(held.is_lost());  // whichever way it is reached
  CHECK(contains(error_of([&] { const HeldFolder none(folder.at("none")); }), "no such folder"));
}

TEST_CASE("side work that fails is noted, and only an interrupt passes") {
  const auto failing = [] { fail({.thing = "metrics", .wrong = "no room"}); };
  CHECK_FALSE(try_side_work(SideWork::output, "metrics", failing));
  CHECK_FALSE(try_side_work(SideWork::upkeep, "old", [] { throw std::bad_alloc(); }));
  CHECK(incomplete_outputs() == Names{"metrics"});
  CHECK(try_side_work(SideWork::output, "metrics", [] {}));
  CHECK(incomplete_outputs().empty());
  CHECK_THROWS_AS(try_side_work(SideWork::output, "metrics",
                                [] { throw Error("stop", ErrorKind::interrupted); }),
                  Error);
  CHECK(incomplete_outputs().empty());
}
