// Waits that end and say what they wait for, locks that one process has at a time, and programs
// that are run with a limit.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "folder.hpp"

import tessera.base;

using namespace tessera;
using namespace std::chrono_literals;
using State = FileLock::State;
using tessera::testing::Folder;

namespace {

namespace fs = std::filesystem;

double seconds_of(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// What `body` writes to stderr.
std::string errors_of(const Folder& folder, const std::function<void()>& body) {
  const std::string file = folder / "stderr";
  const int kept = dup(STDERR_FILENO);
  const int to = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(to, STDERR_FILENO);
  close(to);
  body();
  dup2(kept, STDERR_FILENO);
  close(kept);
  std::ifstream text(file);
  return {std::istreambuf_iterator<char>(text), {}};
}

/// A process that has the lock of a file until it is ended.
class Holder {
 public:
  explicit Holder(const std::string& file) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    process_ = fork();
    if (process_ == 0) {
      FileLock lock = FileLock::of_file(file);
      if (lock.take() == State::held && lock.sign().empty()) {
        [[maybe_unused]] const ssize_t written = write(ends[1], "x", 1);
      }
      for (;;) {
        pause();
      }
    }
    char byte = 0;
    REQUIRE(read(ends[0], &byte, 1) == 1);
    close(ends[0]);
    close(ends[1]);
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  ~Holder() { end(); }
  pid_t process() const { return process_; }
  void end() {
    if (process_ > 0) {
      kill(process_, SIGKILL);
      waitpid(process_, nullptr, 0);
      process_ = 0;
    }
  }

 private:
  pid_t process_ = 0;
};

}  // namespace

TEST_CASE("a wait is reported once, after its time, and ends at its limit") {
  const Folder folder;
  int evaluated = 0;
  double seconds = 0;
  const std::string errors = errors_of(folder, [&] {
    seconds = seconds_of([&] {
      Patience patience(0.4, 0.1);
      while (patience.look(
          [&] {
            ++evaluated;
            return std::string("the test: nobody comes");
          },
          "gives up")) {
        usleep(5000);
      }
    });
  });
  CHECK(seconds > 0.35);
  CHECK(seconds < 5);
  CHECK(evaluated == 1);
  CHECK(errors == "warning: the test: nobody comes (waited for 0 s; gives up after 0.4 s)\n");
}

TEST_CASE("a lock that another process has is waited for, and that process is named") {
  const Folder folder;
  const std::string file = folder / "lock";
  Holder holder(file);
  FileLock lock = FileLock::of_file(file);
  CHECK(lock.take() == State::busy);
  const std::string name = "process " + std::to_string(holder.process()) + " on ";
  CHECK(lock.holder().starts_with(name));
  kill(holder.process(), SIGSTOP);  // a stopped process keeps its lock
  const std::string errors = errors_of(folder, [&] {
    Patience patience(0.3, 0.1);
    CHECK(lock.take(patience, "kernels", "goes on without") == State::busy);
  });
  CHECK(testing::contains(errors, "warning: kernels: " + name));
  CHECK(testing::contains(errors, " has the lock " + file +
                                      " (waited for 0 s; goes on without "
                                      "after 0.3 s)\n"));
  std::thread later([&] {
    usleep(100'000);
    holder.end();
  });
  Patience patience(20);
  CHECK(lock.take(patience, "kernels", "fails") == State::held);
  later.join();
  CHECK(FileLock::of_file(file).take() == State::busy);
  lock.remove();
  CHECK_FALSE(fs::exists(file));
  CHECK_FALSE(lock.is_held());
}

TEST_CASE("a lock does not follow a link, wait for a pipe, or lock what is no file") {
  const Folder folder;
  const auto state = [&](const std::string& name) {
    State found = State::free;
    CHECK(seconds_of([&] { found = FileLock::of_file(folder / name).take(); }) < 5);
    return found;
  };
  std::ofstream(folder / "target") << "kept";
  fs::create_symlink(folder / "target", folder / "link");
  fs::create_symlink(folder / "nothing", folder / "dangling");
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  fs::create_directory(folder / "folder");
  for (const char* name : {"link", "dangling", "pipe", "folder", "missing/lock"}) {
    INFO(name);
    CHECK(state(name) == State::unusable);
  }
  CHECK_FALSE(fs::exists(folder / "nothing"));
  FileLock link = FileLock::of_file(folder / "link");
  link.take();
  CHECK(link.problem() == "it is a symbolic link");
  FileLock pipe = FileLock::of_file(folder / "pipe");
  pipe.take();
  CHECK(pipe.problem() == "it is not a plain file");
  FileLock of_folder = FileLock::of_folder(folder / "folder");
  CHECK(of_folder.take() == State::held);
  CHECK(FileLock::of_folder(folder / "folder").take() == State::busy);
  CHECK(FileLock::of_folder(folder / "target").take() == State::unusable);
}

TEST_CASE("a forked process does not release the lock that it leaves to its parent") {
  const Folder folder;
  FileLock lock = FileLock::of_file(folder / "lock");
  REQUIRE(lock.take() == State::held);
  const pid_t child = fork();
  if (child == 0) {
    lock.leave_to_owner();
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  CHECK(FileLock::of_file(folder / "lock").take() == State::busy);
}

TEST_CASE("a program's output and exit code are those that it has") {
  const auto run = [](const std::vector<std::string>& words) {
    return run_program(words, Patience(20), "test", "is ended");
  };
  const ProgramResult both = run({"sh", "-c", "echo out; echo err >&2; exit 3"});
  CHECK(both.code == 3);
  CHECK(both.output == "out\nerr\n");
  CHECK_FALSE(both.late);
  CHECK(run({"cat"}).output.empty());  // there is nothing to read
  CHECK(run({"sh", "-c", "kill -9 $$"}).code == 128 + SIGKILL);
  CHECK(run({"/nowhere/program"}).code == -1);
  CHECK(run({"/nowhere/program"}).output == "No such file or directory");
  CHECK(run({"sh", "-c", "echo \"$1\"", "x", "a 'b' $c"}).output == "a 'b' $c\n");
}

TEST_CASE("a program that hangs is killed with what it has started, and said to be waited for") {
  const Folder folder;
  ProgramResult result;
  double seconds = 0;
  const std::string errors = errors_of(folder, [&] {
    seconds = seconds_of([&] {
      // Both processes keep the pipe open.
      result = run_program({"sh", "-c", "echo begun; sleep 100 & sleep 100"}, Patience(0.5, 0.1),
                           "kernels: the compiler runs", "the executor is planned");
    });
  });
  CHECK(result.late);
  CHECK(result.output == "begun\n");
  CHECK(seconds < 10);
  CHECK(errors ==
        "warning: kernels: the compiler runs (waited for 0 s; the executor is planned after 0.5 "
        "s)\n");
  // One that closes its output is not waited for without end either.
  const double closed = seconds_of([&] {
    result = run_program({"sh", "-c", "exec >&- 2>&-; sleep 100"}, Patience(0.3), "test", "ends");
  });
  CHECK(result.late);
  CHECK(closed < 10);
}

TEST_CASE("a program gets no blocked and no handled signals") {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  REQUIRE(pthread_sigmask(SIG_BLOCK, &all, &before) == 0);
  const ProgramResult result =
      run_program({"grep", "SigBlk", "/proc/self/status"}, Patience(20), "test", "ends");
  REQUIRE(pthread_sigmask(SIG_SETMASK, &before, nullptr) == 0);
  CHECK(testing::contains(result.output, "0000000000000000"));
}

TEST_CASE("the limit of every wait is TESSERA_TIMEOUT") {
  setenv("TESSERA_TIMEOUT", "2.5", 1);
  CHECK(wait_limit() == 2.5);
  CHECK(Patience().limit() == 2.5);
  setenv("TESSERA_TIMEOUT", "soon", 1);
  CHECK(testing::error_of([] { wait_limit(); }) ==
        "TESSERA_TIMEOUT: must be a time (expected seconds above 0, got 'soon')");
  unsetenv("TESSERA_TIMEOUT");
  CHECK(wait_limit() == 300);
}
