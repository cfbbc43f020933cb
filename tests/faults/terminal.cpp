// The program on a terminal of its own.
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>

#include "catch.hpp"
#include "program.hpp"

using namespace faults;

TEST_CASE("after an interrupt the live line is not written again") {
  const RunFolder folder;
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  REQUIRE(child >= 0);
  if (child == 0) {
    setenv("TERM", "xterm", 1);
    if (chdir(folder.path().c_str()) == 0) {
      execl(TESSERA_PROGRAM, "tessera", "train", "run.toml", "train.steps=100000000",
            "mesh.axes=[]", "mesh.shape=[]", "parallel=[]", nullptr);
    }
    _exit(127);
  }
  std::string shown;
  bool interrupted = false;
  const bool ended = within(60, [&] {
    pollfd waiting = {terminal, POLLIN, 0};
    std::array<char, 4096> bytes;
    if (poll(&waiting, 1, 10) > 0) {
      const ssize_t got = read(terminal, bytes.data(), bytes.size());
      if (got <= 0) {
        return true;  // the other end is closed
      }
      shown.append(bytes.data(), static_cast<std::size_t>(got));
    }
    if (!interrupted && shown.find(" 5/100000000") != std::string::npos) {
      interrupted = true;
      kill(child, SIGINT);
    }
    return false;
  });
  if (!ended) {
    kill(child, SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  close(terminal);
  INFO(shown);
  REQUIRE(ended);
  CHECK(WEXITSTATUS(status) == 130);
  const std::size_t saved = shown.find("checkpoint saved");
  REQUIRE(saved != std::string::npos);
  CHECK(shown.find("interrupted after step") != std::string::npos);
  CHECK(shown.find("tokens/s", saved) == std::string::npos);
}
