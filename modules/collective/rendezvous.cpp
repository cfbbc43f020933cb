module;
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>
module tessera.collective;

import tessera.base;
import :control;
import :external;
import :process;
import :region;
import :rendezvous;

namespace tessera::collective {
namespace {

constexpr std::uint64_t protocol = Control::expected_magic + sizeof(Control) + sizeof(RankRecord);

/// What a rank says of itself.
struct Hello {
  std::uint64_t protocol;
  std::uint64_t pid_namespace;
  std::uint64_t start;
  std::int32_t process;
  std::int32_t rank;
  std::int32_t size;
  std::int32_t unused;
};

/// What rank 0 answers: the memory's size, and its descriptor beside it; or why not.
struct Answer {
  std::uint64_t bytes;
  char refusal[248];
};

struct Address {
  sockaddr_un address{};
  socklen_t bytes = 0;
};

/// An abstract address: it is in no folder, and is gone when its socket is closed.
Address address_of(const std::string& job) {
  std::string name = fmt::format("tessera-{}-{}", getuid(), job);
  if (name.size() > 100) {
    name = fmt::format("{}-{:016x}", name.substr(0, 80), std::hash<std::string>{}(name));
  }
  Address made;
  made.address.sun_family = AF_UNIX;
  std::memcpy(made.address.sun_path + 1, name.data(), name.size());
  made.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return made;
}

std::uint64_t own_pid_namespace() {
  struct stat status = {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

bool is_same_user(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

bool readable_within(int socket, int milliseconds) {
  pollfd waiting{socket, POLLIN, 0};
  return poll(&waiting, 1, milliseconds) > 0;
}

void send_answer(int socket, const Answer& answer, int descriptor) {
  iovec data{const_cast<Answer*>(&answer), sizeof(answer)};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = room;
    message.msg_controllen = sizeof(room);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  sendmsg(socket, &message, MSG_NOSIGNAL);  // a peer that has gone is noticed by its socket
}

/// Returns the descriptor that came with the answer; -1: none.
int receive_answer(int socket, Answer& answer) {
  iovec data{&answer, sizeof(answer)};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof(room);
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != sizeof(answer)) {
    fail("launch: rank 0 ended before all ranks had joined");
  }
  int descriptor = -1;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
  }
  return descriptor;
}

/// One wait of a rendezvous: reported once, ended by the time limit.
class Wait {
 public:
  Wait(double timeout, double report_after, const std::string& job)
      : timeout_(timeout), report_after_(report_after), job_(job) {}
  void look(const std::string& missing) {
    const double waited = watch_.waited();
    if (waited > timeout_) {
      fail(
          fmt::format("launch: {} did not join within {:.4g} s; are all ranks started, on this "
                      "machine, with the same job name ('{}')?",
                      missing, timeout_, job_));
    }
    if (waited > report_after_ && !reported_) {
      reported_ = true;
      log(LogLevel::warning,
          fmt::format("launch: has waited {:.0f} s for {} to join the job '{}'; fails after {:.4g} "
                      "s",
                      waited, missing, job_, timeout_));
    }
  }

 private:
  Stopwatch watch_;
  double timeout_;
  double report_after_;
  const std::string& job_;
  bool reported_ = false;
};

}  // namespace

Rendezvous::Rendezvous(const ExternalRank& self, double timeout, double report_after)
    : self_(self), timeout_(timeout), report_after_(report_after) {}

Rendezvous::~Rendezvous() {
  for (const Peer& peer : peers_) {
    close(peer.socket);
  }
  if (socket_ >= 0) {
    close(socket_);
  }
}

std::shared_ptr<Region> Rendezvous::memory(std::size_t bytes) {
  if (self_.rank != 0) {
    connect_to_first();
    return region_;
  }
  socket_ = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const Address address = address_of(self_.job);
  const auto bound = [&] {
    return bind(socket_, reinterpret_cast<const sockaddr*>(&address.address), address.bytes) == 0;
  };
  for (int tries = 0; socket_ >= 0 && !bound() && tries < 100; ++tries) {
    if (errno != EADDRINUSE) {
      break;
    }
    if (tries == 99) {  // what a killed job had is free at once: this one is alive
      fail_input(
          fmt::format("launch: another job named '{}' is starting; give each job a name of its own "
                      "in TESSERA_JOB",
                      self_.job));
    }
    usleep(10'000);
  }
  if (socket_ < 0 || listen(socket_, self_.size) != 0) {
    fail(fmt::format("launch: cannot listen for the other ranks ({})", std::strerror(errno)));
  }
  region_ = Region::create_shareable(bytes);
  Control* control = Control::create(*region_, self_.size);
  control->joined = 1;
  const Process own = this_process();
  control->ranks()[0].process.store(own.id);
  control->ranks()[0].process_start.store(own.start);
  return region_;
}

void Rendezvous::connect_to_first() {
  const Address address = address_of(self_.job);
  Wait wait(timeout_, report_after_, self_.job);
  while (true) {
    socket_ = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (socket_ < 0) {
      fail(fmt::format("launch: cannot make a socket ({})", std::strerror(errno)));
    }
    if (connect(socket_, reinterpret_cast<const sockaddr*>(&address.address), address.bytes) == 0) {
      break;
    }
    close(socket_);
    socket_ = -1;
    wait.look("rank 0");
    usleep(2000);
  }
  if (!is_same_user(socket_)) {
    fail(
        fmt::format("launch: another user has the name of the job '{}'; set TESSERA_JOB to "
                    "another one",
                    self_.job));
  }
  const Process own = this_process();
  const Hello hello{protocol, own_pid_namespace(), own.start, own.id, self_.rank, self_.size, 0};
  if (send(socket_, &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) {
    fail("launch: rank 0 ended before all ranks had joined");
  }
  while (!readable_within(socket_, 100)) {
    wait.look("rank 0");
  }
  Answer answer{};
  const int descriptor = receive_answer(socket_, answer);
  if (descriptor < 0) {
    fail_input(answer.refusal);
  }
  try {
    region_ = Region::map(descriptor, answer.bytes);
  } catch (...) {
    close(descriptor);
    throw;
  }
  close(descriptor);
}

void Rendezvous::accept_peer() {
  const int socket = accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
  if (socket < 0) {
    if (errno == EMFILE || errno == ENFILE) {
      fail(fmt::format("launch: cannot accept {} ranks ({}); raise `ulimit -n`", self_.size,
                       std::strerror(errno)));
    }
    return;
  }
  if (is_same_user(socket)) {
    peers_.push_back({socket, -1});
  } else {
    close(socket);
  }
}

bool Rendezvous::hear(Peer& peer) {
  Hello hello{};
  const ssize_t got = recv(peer.socket, &hello, sizeof(hello), 0);
  if (got <= 0 || peer.rank >= 0) {
    return false;
  }
  std::string refusal;
  const bool taken =
      hello.rank == 0 || std::any_of(peers_.begin(), peers_.end(),
                                     [&](const Peer& other) { return other.rank == hello.rank; });
  if (got != sizeof(hello) || hello.protocol != protocol) {
    refusal =
        "launch: rank 0 runs another version of Tessera; start the same program for all ranks";
  } else if (hello.size != self_.size) {
    refusal = fmt::format("launch: the number of ranks differs (rank 0 has {}, rank {} has {})",
                          self_.size, hello.rank, hello.size);
  } else if (hello.pid_namespace != own_pid_namespace()) {
    refusal = fmt::format(
        "launch: rank {} is in another container than rank 0; start all ranks in one", hello.rank);
  } else if (taken || hello.rank < 0 || hello.rank >= self_.size) {
    refusal = fmt::format(
        "launch: two processes are rank {} of the job '{}'; give each job a name of its own in "
        "TESSERA_JOB",
        hello.rank, self_.job);
  }
  Answer answer{region_->bytes(), {}};
  refusal.copy(answer.refusal, sizeof(answer.refusal) - 1);
  send_answer(peer.socket, answer, refusal.empty() ? region_->descriptor() : -1);
  if (!refusal.empty()) {
    fail_input(refusal);  // both jobs end: which rank belongs to which is not known
  }
  peer.rank = hello.rank;
  auto* control = reinterpret_cast<Control*>(region_->base());
  control->ranks()[hello.rank].process.store(hello.process);
  control->ranks()[hello.rank].process_start.store(hello.start);
  return true;
}

std::string Rendezvous::missing_ranks() const {
  std::vector<int> missing;
  for (int rank = 1; rank < self_.size; ++rank) {
    if (std::none_of(peers_.begin(), peers_.end(),
                     [&](const Peer& peer) { return peer.rank == rank; })) {
      missing.push_back(rank);
    }
  }
  return fmt::format("rank{} {}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
}

void Rendezvous::wait_for_all() {
  Wait wait(timeout_, report_after_, self_.job);
  char go = 1;
  if (self_.rank != 0) {
    while (!readable_within(socket_, 100)) {
      wait.look("another rank");
    }
    if (recv(socket_, &go, 1, 0) != 1) {
      fail("launch: rank 0 ended before all ranks had joined");
    }
    return;
  }
  const auto joined = [&] {
    return std::count_if(peers_.begin(), peers_.end(),
                         [](const Peer& peer) { return peer.rank > 0; });
  };
  while (joined() < self_.size - 1) {
    std::vector<pollfd> sockets{{socket_, POLLIN, 0}};
    for (const Peer& peer : peers_) {
      sockets.push_back({peer.socket, POLLIN, 0});
    }
    if (poll(sockets.data(), sockets.size(), 100) > 0) {
      for (std::size_t i = peers_.size(); i-- > 0;) {
        if (sockets[i + 1].revents == 0 || hear(peers_[i])) {
          continue;
        }
        if (peers_[i].rank >= 0) {
          fail(fmt::format("launch: rank {} ended before all ranks had joined", peers_[i].rank));
        }
        close(peers_[i].socket);  // it went before it had said who it is
        peers_.erase(peers_.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (sockets[0].revents != 0) {
        accept_peer();
      }
    }
    wait.look(missing_ranks());
  }
  for (const Peer& peer : peers_) {
    send(peer.socket, &go, 1, MSG_NOSIGNAL);
  }
}

}  // namespace tessera::collective
