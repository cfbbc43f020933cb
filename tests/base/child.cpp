// Code that runs in a child process: its report, and every way in which it can end.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <string>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;

using namespace tessera;
using namespace std::chrono_literals;

namespace {

std::ptrdiff_t open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

}  // namespace

TEST_CASE("a child reports what it sends, whatever it contains and however long it is") {
  const std::string large(1 << 20, 'x');
  const ChildResult result = run_in_child("test", 20s, [&](const SendReport& send) {
    send("first\n");
    send("");
    std::printf("not a part of the report");
    std::fflush(stdout);
    send({"a\0b", 3});  // the end mark is dropped
    send(large);
  });
  CHECK(result.problem.empty());
  CHECK_FALSE(result.late);
  CHECK(result.report == "first\nab" + large);
}

TEST_CASE("what a child sent before it ended is kept, and the text says how it ended") {
  const auto after = [](auto body) {
    return run_in_child("test", 20s, [&](const SendReport& send) {
      send("begun");
      body();
    });
  };
  for (const ChildResult& result : {after([] { _exit(3); }), after([] { raise(SIGKILL); }),
                                    after([] { throw std::runtime_error("nobody catches it"); })}) {
    CHECK(result.report == "begun");
    CHECK_FALSE(result.problem.empty());
    CHECK_FALSE(result.late);
  }
  CHECK(after([] { _exit(3); }).problem == "ended its process (exit code 3)");
  CHECK(after([] { raise(SIGKILL); }).problem == "killed its process (signal 9, Killed)");
}

TEST_CASE("a child that never returns is killed at its limit, with what it has started") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const ChildResult result = run_in_child("test", 300ms, [](const SendReport& send) {
    send("begun");
    fork();  // both keep the pipe open
    for (;;) {
      pause();
    }
  });
  close(ends[1]);
  CHECK(result.late);
  CHECK(result.problem == "did not end within 300 ms");
  CHECK(result.report == "begun");
  char byte = 0;
  CHECK(read(ends[0], &byte, 1) == 0);  // nobody is left who could write
  close(ends[0]);
}

TEST_CASE("a child that has returned is not waited for longer, though a process of its own lives") {
  const auto start = std::chrono::steady_clock::now();
  const ChildResult result = run_in_child("test", 20s, [](const SendReport& send) {
    if (fork() == 0) {
      for (;;) {
        pause();
      }
    }
    send("done");
  });
  CHECK(result.report == "done");
  CHECK(result.problem.empty());
  CHECK(std::chrono::steady_clock::now() - start < 10s);
}

TEST_CASE("no file stays open, and what cannot be started is an error that names who asked") {
  const std::ptrdiff_t before = open_files();
  for (int i = 0; i < 3; ++i) {
    run_in_child("test", 20s, [](const SendReport&) {});
    run_in_child("test", 20s, [](const SendReport&) { _exit(1); });
  }
  CHECK(open_files() == before);
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  rlimit none = limit;
  none.rlim_cur = 3;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  std::exception_ptr caught;
  try {
    run_in_child("somebody", 20s, [](const SendReport&) {});
  } catch (...) {
    caught = std::current_exception();  // sanitizers need a file to look at an object
  }
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  REQUIRE(caught != nullptr);
  CHECK(testing::error_of([&] { std::rethrow_exception(caught); }) ==
        "somebody: cannot create a pipe: Too many open files; the limit on open files of a "
        "process (`ulimit -n`) is 3");
}
