module;
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <tessera/limits.hpp>
#include <utility>
#include <vector>
module tessera.text;

import tessera.base;
import tessera.collective;

namespace tessera::text {
namespace {

constexpr std::int64_t longest_message = std::int64_t{1} << 32;  // numbers

std::pair<int, int> socket_pair() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    fail({.thing = "ranks", .wrong = "no socket can be made: " + reason_of(errno)});
  }
  return {ends[0], ends[1]};
}

/// Calls `transfer(bytes, count)` until all bytes are through. False: the other end has gone.
template <class Transfer>
bool transfer_all(char* bytes, std::size_t count, const Transfer& transfer) {
  while (count > 0) {
    const ssize_t done = transfer(bytes, count);
    if (done < 0 && errno == EINTR) {
      continue;
    }
    if (done <= 0) {
      return false;
    }
    bytes += done;
    count -= static_cast<std::size_t>(done);
  }
  return true;
}

/// Room for one descriptor beside a message of one byte.
struct DescriptorMessage {
  DescriptorMessage() {
    part.iov_base = &byte;
    part.iov_len = 1;
    head.msg_iov = &part;
    head.msg_iovlen = 1;
    head.msg_control = room.data();
    head.msg_controllen = room.size();
  }
  char byte = 0;
  iovec part = {};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room = {};
  msghdr head = {};
};

bool send_descriptor(int control, int descriptor) {
  DescriptorMessage message;
  cmsghdr* const own = CMSG_FIRSTHDR(&message.head);
  own->cmsg_level = SOL_SOCKET;
  own->cmsg_type = SCM_RIGHTS;
  own->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(own), &descriptor, sizeof(int));
  ssize_t sent = -1;
  do {
    sent = sendmsg(control, &message.head, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == 1;
}

/// -1: the other end has gone.
int receive_descriptor(int control) {
  DescriptorMessage message;
  ssize_t received = -1;
  do {
    received = recvmsg(control, &message.head, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  const cmsghdr* const own = received == 1 ? CMSG_FIRSTHDR(&message.head) : nullptr;
  int descriptor = -1;
  if (own != nullptr && own->cmsg_type == SCM_RIGHTS) {
    std::memcpy(&descriptor, CMSG_DATA(own), sizeof(int));
  }
  return descriptor;
}

/// Whether ranks that have ended are started again: not too often.
class StartPolicy {
 public:
  bool operator()(const collective::FailedAttempt& attempt) {
    constexpr std::size_t most = 20;
    constexpr std::chrono::hours within{1};
    const auto now = std::chrono::steady_clock::now();
    while (!deaths_.empty() && now - deaths_.front() > within) {
      deaths_.pop_front();
    }
    deaths_.push_back(now);
    if (deaths_.size() > most) {
      return false;
    }
    fmt::print(stderr, "warning: {}\nwarning: the server heals ({}): its ranks start again\n",
               attempt.error.text, attempt.number);
    return true;
  }

 private:
  std::deque<std::chrono::steady_clock::time_point> deaths_;
};

}  // namespace

MessageSocket::~MessageSocket() {
  if (descriptor_ >= 0) {
    close(descriptor_);
  }
}

MessageSocket::MessageSocket(MessageSocket&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)) {}

MessageSocket& MessageSocket::operator=(MessageSocket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

bool MessageSocket::send(std::span<const std::int64_t> message) const {
  std::vector<std::int64_t> all = {std::ssize(message)};
  all.insert(all.end(), message.begin(), message.end());
  return transfer_all(reinterpret_cast<char*>(all.data()), all.size() * sizeof(std::int64_t),
                      [this](const char* bytes, std::size_t count) {
                        return ::send(descriptor_, bytes, count, MSG_NOSIGNAL);
                      });
}

std::optional<std::vector<std::int64_t>> MessageSocket::receive() const {
  const auto read = [this](char* bytes, std::size_t count) {
    return recv(descriptor_, bytes, count, 0);
  };
  std::int64_t size = 0;
  if (!transfer_all(reinterpret_cast<char*>(&size), sizeof(size), read) || size < 0 ||
      size > longest_message) {
    return std::nullopt;
  }
  std::vector<std::int64_t> message(static_cast<std::size_t>(size));
  const bool whole = transfer_all(reinterpret_cast<char*>(message.data()),
                                  message.size() * sizeof(std::int64_t), read);
  return whole ? std::optional(std::move(message)) : std::nullopt;
}

RankProcess::RankProcess(collective::LaunchOptions options, const Run& run) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    fail({.thing = "ranks", .wrong = "no socket can be made: " + reason_of(errno)});
  }
  control_ = ends[0];
  const pid_t parent = getpid();
  std::fflush(nullptr);
  process_ = fork();
  if (process_ < 0) {
    fail({.thing = "ranks", .wrong = "no process can be started: " + reason_of(errno)});
  }
  if (process_ == 0) {
    close(ends[0]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
      _exit(1);
    }
    options.restart = StartPolicy();
    const int code =
        collective::launch(options, [&](collective::World& world) { return run(world, ends[1]); });
    std::fflush(nullptr);
    _exit(code);
  }
  close(ends[1]);
}

RankProcess::~RankProcess() {
  // Its ranks end with it: they have nothing to keep.
  kill(process_, SIGKILL);
  while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
  close(control_);
}

std::vector<std::int64_t> RankProcess::connect() {
  while (true) {
    const int descriptor = receive_descriptor(control_);
    if (descriptor < 0) {
      ended_ = true;
      fail({.thing = "ranks",
            .wrong = "the ranks of the model have ended, and are not started again"});
    }
    first_ = MessageSocket(descriptor);
    if (auto facts = first_.receive()) {
      return std::move(*facts);
    }
  }
}

bool RankProcess::ended() const {
  // Without waiting for it, so that its number stays its own.
  siginfo_t about{};
  return ended_ ||
         (waitid(P_PID, static_cast<id_t>(process_), &about, WEXITED | WNOHANG | WNOWAIT) == 0 &&
          about.si_pid == process_);
}

std::optional<std::vector<std::int64_t>> RankProcess::call(std::span<const std::int64_t> message) {
  return first_.send(message) ? first_.receive() : std::nullopt;
}

MessageSocket connect_first(int control) {
  const auto [own, other] = socket_pair();
  MessageSocket socket(own);
  const bool sent = send_descriptor(control, other);
  close(other);
  if (!sent) {
    fail({.thing = "ranks", .wrong = "the process that uses them has ended"});
  }
  return socket;
}

void MessageWriter::add(double value) { add(std::bit_cast<std::int64_t>(value)); }

void MessageWriter::add(const std::string& text) {
  add(std::ssize(text));
  for (const char c : text) {
    add(static_cast<std::int64_t>(c));
  }
}

void MessageWriter::add(std::span<const float> values) {
  add(std::ssize(values));
  for (std::size_t i = 0; i < values.size(); i += 2) {
    std::int64_t two = 0;
    const auto count = std::min<std::size_t>(2, values.size() - i);
    std::memcpy(&two, values.data() + i, count * sizeof(float));
    add(two);
  }
}

std::span<const std::int64_t> MessageReader::take(std::size_t count) {
  require(count <= left_.size(), "message: it is too short");
  const auto taken = left_.first(count);
  left_ = left_.subspan(count);
  return taken;
}

std::int64_t MessageReader::number() { return take(1)[0]; }

double MessageReader::real() { return std::bit_cast<double>(number()); }

std::string MessageReader::text() {
  std::string text;
  for (const std::int64_t c : take(static_cast<std::size_t>(number()))) {
    text += static_cast<char>(c);
  }
  return text;
}

std::vector<float> MessageReader::floats() {
  std::vector<float> values(static_cast<std::size_t>(number()));
  const auto from = take((values.size() + 1) / 2);
  std::memcpy(values.data(), from.data(), values.size() * sizeof(float));
  return values;
}

}  // namespace tessera::text
