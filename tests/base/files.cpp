#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "folder.hpp"

import tessera.base;

using namespace tessera;
using tessera::testing::contains;
using tessera::testing::error_of;
using tessera::testing::Folder;
using tessera::testing::read_file;

namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

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
  CHECK(write_file(folder / "new", "one").empty());
  ::umask(before);
  CHECK(mode_of(folder / "new") == 0640U);
  REQUIRE(::chmod((folder / "new").c_str(), 0604) == 0);
  fs::create_directory(folder / "far");
  fs::create_symlink("../new", folder / "far/link");
  fs::create_symlink(folder / "far/link", folder / "chain");
  const std::vector<std::string_view> parts = {"two", "", " parts"};
  CHECK(write_file(folder / "chain", parts).empty());
  CHECK(read_file(folder / "new") == "two parts");
  CHECK(mode_of(folder / "new") == 0604U);
  CHECK(output_place(folder / "chain") == folder / "far/../new");
  fs::create_symlink("far/fresh", folder / "dangling");
  CHECK(write_file(folder / "dangling", "three").empty());
  CHECK(read_file(folder / "far/fresh") == "three");
  CHECK(folder.names_below() == Names{"chain", "dangling", "far", "far/fresh", "far/link", "new"});
}

TEST_CASE("a file that cannot be written says why, and is as it was") {
  const Folder folder;
  const std::string file = folder.write("file", "old");
  CHECK(write_file(folder / "nowhere/file", "x") == "No such file or directory");
  CHECK(write_file(file + "/file", "x") == "Not a directory");
  CHECK(write_file(folder / "", "x") == "Is a directory");
  CHECK(write_file("/dev/full", "x") == "No space left on device");
  fs::create_symlink("round", folder / "round");
  CHECK(write_file(folder / "round", "x") == "Too many levels of symbolic links");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(write_file(folder / "pipe", "x") == "nobody reads it");
  CHECK(read_file(file) == "old");
  CHECK(folder.names_below() == Names{"file", "pipe", "round"});
}

TEST_CASE("streams are told from files, and are written as they are") {
  const Folder folder;
  const std::string file = folder.write("file", "old");
  const std::string pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const int opened = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
  const std::string by_number = "/proc/self/fd/" + std::to_string(opened);
  CHECK(is_stream(pipe));
  CHECK(is_stream("/dev/null"));
  CHECK(is_stream(by_number));
  CHECK_FALSE(is_stream(file));
  CHECK_FALSE(is_stream(folder / ""));
  CHECK_FALSE(is_stream(folder / "nowhere"));
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
  fs::create_hard_link(file, folder / "other");
  CHECK(write_file(file, "new").empty());
  CHECK(read_file(folder / "other") == "new");
}

TEST_CASE("a new folder is complete or absent") {
  const Folder folder;
  const std::string place = folder / "a/b/new/";
  {
    const NewFolder made(place);
    CHECK_FALSE(fs::exists(place));
    write_file(made.path() + "/one", "1");
    fs::create_directory(made.path() + "/inner");
    write_file(made.path() + "/inner/two", "2");
  }
  CHECK(folder.names_below().empty());
  {
    NewFolder made(place);
    write_file(made.path() + "/one", "1");
    made.complete();
  }
  CHECK(folder.names_below() == Names{"a", "a/b", "a/b/new", "a/b/new/one"});
  CHECK(contains(error_of([&] { const NewFolder again(place); }), "the folder is not empty"));
  CHECK(contains(error_of([&] { const NewFolder again(place + "one"); }), "it is not a folder"));
  const std::string below = error_of([&] { const NewFolder again(place + "one/two"); });
  CHECK(contains(below, place + "one/two: "));
  CHECK(folder.names_below("a/b/new") == Names{"one"});
}

TEST_CASE("an empty folder that is there is filled as one step, and keeps its mode") {
  const Folder folder;
  fs::create_directory(folder / "there");
  REQUIRE(::chmod((folder / "there").c_str(), 0705) == 0);
  fs::create_directory_symlink("there", folder / "link");
  {
    const NewFolder made(folder / "link");
    write_file(made.path() + "/one", "1");
  }
  CHECK(fs::is_empty(folder / "there"));
  {
    NewFolder made(folder / "link");
    write_file(made.path() + "/one", "1");
    write_file(made.path() + "/two", "2");
    made.complete();
  }
  CHECK(folder.names_below("there") == Names{"one", "two"});
  CHECK(mode_of(folder / "there") == 0705U);
  CHECK(fs::is_symlink(folder / "link"));
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
  CHECK(why_not_removable(folder / "old", data).empty());
  CHECK(remove_folder(folder / "old/", data).empty());
  CHECK(folder.names_below().empty());

  fill();
  folder.write("old/inner/notes", "mine");
  CHECK(remove_folder(folder / "old", data) ==
        "inner/notes is in it, which is not one of its files");
  CHECK(folder.names_below() == Names{"old", "old/inner", "old/inner/notes"});
  fs::remove_all(folder / "old");

  fill();
  folder.write("far/data", "precious");
  fs::create_directory_symlink("../far", folder / "old/link");
  fs::create_directory_symlink("old", folder / "name");
  CHECK(contains(remove_folder(folder / "name", any), "a link"));
  CHECK(remove_folder(folder / "old", any) == "link is not a regular file");
  CHECK(folder.names_below("old") == Names{"data", "inner", "inner/data", "link"});
  CHECK(read_file(folder / "far/data") == "precious");
  CHECK(remove_folder(folder / "nowhere", any) == "No such file or directory");
}

TEST_CASE("a folder that is kept open is told from another one of its name") {
  const Folder folder;
  fs::create_directory(folder / "a");
  const HeldFolder held(folder / "a");
  CHECK_FALSE(held.is_lost());
  folder.write("a/file", "x");
  CHECK_FALSE(held.is_lost());
  fs::rename(folder / "a", folder / "b");
  CHECK(held.is_lost());
  fs::create_directory(folder / "a");
  CHECK(held.is_lost());
  fs::remove(folder / "a");
  fs::create_directory_symlink("b", folder / "a");
  CHECK_FALSE(held.is_lost());  // whichever way it is reached
  CHECK(contains(error_of([&] { const HeldFolder none(folder / "none"); }), "no such folder"));
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
