#include "link.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace faults {
namespace {

/// A process in a new network that waits for its end; 0: it cannot be had.
pid_t keep_network() {
  int ready[2];
  if (pipe(ready) != 0) {
    return 0;
  }
  const pid_t process = fork();
  if (process == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const char made = unshare(CLONE_NEWNET) == 0 ? 1 : 0;
    if (write(ready[1], &made, 1) == 1 && made != 0) {
      pause();
    }
    _exit(1);
  }
  char made = 0;
  close(ready[1]);
  const bool told = read(ready[0], &made, 1) == 1;
  close(ready[0]);
  if (told && made != 0) {
    return process;
  }
  waitpid(process, nullptr, 0);
  return 0;
}

/// The network device of a machine.
std::string device(std::size_t machine) { return "link" + std::to_string(machine); }

}  // namespace

Link::Link() {
  for (pid_t& keeper : keepers_) {
    keeper = keep_network();
    if (keeper == 0) {
      return;
    }
  }
  made_ = run(0, "ip link add " + device(0) + " type veth peer name " + device(1) + " netns " +
                     std::to_string(keepers_[1]));
  for (const std::size_t machine : {0, 1}) {
    made_ = made_ && run(machine, "ip link set lo up") &&
            run(machine, "ip address add " + address(machine) + "/24 dev " + device(machine)) &&
            run(machine, "ip link set " + device(machine) + " up");
  }
}

Link::~Link() {
  for (const pid_t keeper : keepers_) {
    if (keeper != 0) {
      kill(keeper, SIGKILL);
      waitpid(keeper, nullptr, 0);
    }
  }
}

bool Link::run(std::size_t machine, const std::string& command) const {
  std::string all;
  for (const std::string& word : launcher(machine)) {
    all += word + " ";
  }
  return std::system((all + command + " > /dev/null 2>&1").c_str()) == 0;
}

std::vector<std::string> Link::launcher(std::size_t machine) const {
  return {"nsenter", "--target", std::to_string(keepers_[machine]), "--net"};
}

std::string Link::address(std::size_t machine) const {
  return "10.77.0." + std::to_string(machine + 1);
}

void Link::cut() const { run(1, "ip link set " + device(1) + " down"); }

void Link::mend() const { run(1, "ip link set " + device(1) + " up"); }

bool Link::limit(int megabytes) const {
  bool limited = true;
  for (const std::size_t machine : {0, 1}) {
    limited = limited && run(machine, "tc qdisc replace dev " + device(machine) +
                                          " root tbf burst 256kb latency 50ms rate " +
                                          std::to_string(8 * megabytes) + "mbit");
  }
  return limited;
}

}  // namespace faults
