// The files of a run's data while the run reads them.
#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.data;

using tessera::data::Tokens;
using trainer_test::Folder;
using trainer_test::has;
using trainer_test::Ids;
using trainer_test::input_error;

TEST_CASE("a file that changes while a run reads it is an error that names the file") {
  const Folder folder;
  const auto rewrite = [](const std::string& file, const std::string& text) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << text;
    std::filesystem::last_write_time(
        file, std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  };
  const std::string old = "a text of some length";
  const std::pair<std::string, std::function<void(const std::string&)>> changes[] = {
      {"truncated (expected 21 bytes, got 5) while the run read it",
       [](const std::string& file) { std::filesystem::resize_file(file, 5); }},
      {"truncated", [](const std::string& file) { std::filesystem::resize_file(file, 0); }},
      {"modified", [&](const std::string& file) { rewrite(file, old + " and more"); }},
      {"modified", [&](const std::string& file) { rewrite(file, "A TEXT OF SOME LENGTH"); }},
      {"replaced",
       [&](const std::string& file) {
         rewrite(file + ".new", old);
         std::filesystem::rename(file + ".new", file);
       }},
      {"cannot be read: No such file",
       [](const std::string& file) { std::filesystem::remove(file); }},
  };
  for (const auto& [expected, change] : changes) {
    const std::vector<std::string> files = {folder.write("a.txt", old), folder.write("b.txt", old)};
    const Tokens tokens = Tokens::from_bytes(files);
    Ids ids(21);
    tokens.read(0, ids);
    tokens.read(21, ids);  // now the second file is open
    change(files[0]);
    tokens.read(21, ids);
    const std::string error = input_error([&] { tokens.read(0, ids); });
    has(error, expected);
    has(error, files[0]);
    change(files[1]);
    if (expected != "replaced" && !expected.starts_with("cannot")) {  // the open one is still there
      has(input_error([&] { tokens.read(21, ids); }), files[1]);
    }
  }
}

TEST_CASE("a run reads more files than a process may have open") {
  const Folder folder;
  std::vector<std::string> files;
  for (int i = 0; i < 100; ++i) {
    files.push_back(
        folder.write("file" + std::to_string(i), std::string(3, static_cast<char>(i + 1))));
  }
  struct rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const struct rlimit few = {.rlim_cur = 50, .rlim_max = before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  Ids ids(300);
  const std::string error = input_error([&] { Tokens::from_bytes(files).read(0, ids); });
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(error.empty());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    CHECK(ids[i] == static_cast<std::int64_t>(i / 3 + 1));
  }
}
