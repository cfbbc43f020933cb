module;
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <tessera/limits.hpp>
module tessera.launch;

import tessera.base;
import tessera.ranks;
import :external;
import :messages;

namespace tessera::collective {
namespace {

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

}  // namespace

std::uint64_t protocol_number() {
  return Control::expected_magic + sizeof(Control) + sizeof(RankRecord) + sizeof(Hello) +
         (sizeof(Answer) << 16U);
}

Hello own_hello(const ExternalRank& self, bool refused) {
  const Process own = this_process();
  return {protocol_number(), own_pid_namespace(), own.start,      own.id,
          self.rank,         self.size,           refused ? 1 : 0};
}

Answer make_answer(Answer::State state, ErrorKind kind, std::string_view text) {
  Answer answer{};
  answer.state = state;
  answer.kind = kind;
  text.copy(answer.text, sizeof(answer.text) - 1);
  return answer;
}

int listen_for_ranks(const ExternalRank& self) {
  const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const Address address = address_of(self.job);
  const auto bound = [&] {
    return bind(socket, reinterpret_cast<const sockaddr*>(&address.address), address.bytes) == 0;
  };
  for (int tries = 0; socket >= 0 && !bound() && tries < 100; ++tries) {
    if (errno != EADDRINUSE) {
      break;
    }
    if (tries == 99) {  // what a killed job had is free at once: this one is alive
      close(socket);
      const int holder = try_connect(self);
      const bool other_user = holder >= 0 && !is_same_user(holder);
      close(holder);
      if (other_user) {
        refuse_other_user(self.job);
      }
      fail_input({.thing = "launch",
                  .wrong = fmt::format("another job named '{}' is starting", self.job),
                  .advice = "give each job a name of its own in TESSERA_JOB"});
    }
    usleep(10'000);
  }
  if (socket < 0 || listen(socket, self.size) != 0) {
    const std::string reason = reason_of(errno);
    close(socket);
    fail({.thing = "launch",
          .wrong = fmt::format("cannot listen for the other ranks ({})", reason)});
  }
  return socket;
}

int try_connect(const ExternalRank& self) {
  const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (socket < 0) {
    fail({.thing = "launch", .wrong = fmt::format("cannot make a socket ({})", reason_of(errno))});
  }
  const Address address = address_of(self.job);
  if (connect(socket, reinterpret_cast<const sockaddr*>(&address.address), address.bytes) != 0) {
    close(socket);
    return -1;
  }
  return socket;
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

void refuse_other_user(const std::string& job) {
  fail_input({.thing = "launch",
              .wrong = fmt::format("another user has the name of the job '{}'", job),
              .advice = "set TESSERA_JOB to another one"});
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

bool receive_answer(int socket, Answer& answer, int& descriptor) {
  iovec data{&answer, sizeof(answer)};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof(room);
  descriptor = -1;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != sizeof(answer)) {
    return false;
  }
  answer.text[sizeof(answer.text) - 1] = 0;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
  }
  return true;
}

}  // namespace tessera::collective
