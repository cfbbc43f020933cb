module;
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>
module tessera.launch;

import tessera.base;
import tessera.machines;
import :second_home;
import :start;

namespace tessera::collective {
namespace {

constexpr double longest_opening = 2;  // seconds
constexpr std::uint64_t most_entries = std::uint64_t{1} << 24;

/// The start of a connection to a second home.
struct Opening {
  std::array<char, 32> key{};
  std::int32_t machine = -1;
  std::int32_t fetches = 0;  // 1: the state of `step`, which comes back; 0: copies follow
  std::int64_t step = -1;
};

/// The start of a state; its entries, then its blocks follow.
struct Header {
  std::int64_t step = -1;
  std::uint64_t entries = 0;
};

/// Asked after every piece and at least every twentieth of a second: whether to go on.
using GoOn = std::function<bool()>;

/// Moves all bytes, by `some(at, bytes)` as send() and recv(). False: the connection or the caller
/// has ended it.
template <class Byte, class Some>
bool move_all(const Socket& socket, std::span<Byte> bytes, short event, const Some& some,
              const GoOn& go_on) {
  constexpr std::size_t piece = std::size_t{1} << 20;
  while (!bytes.empty()) {
    const ssize_t moved = some(bytes.data(), std::min(bytes.size(), piece));
    if (moved > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(moved));
    } else if (moved == 0 || (errno != EAGAIN && errno != EINTR)) {
      return false;
    } else {
      pollfd waiting{socket.descriptor(), event, 0};
      poll(&waiting, 1, 50);
    }
    if (!go_on()) {
      return false;
    }
  }
  return true;
}

bool send_bytes(const Socket& socket, std::span<const std::byte> bytes, const GoOn& go_on) {
  const auto some = [&](const std::byte* at, std::size_t size) {
    return ::send(socket.descriptor(), at, size, MSG_NOSIGNAL);
  };
  return move_all(socket, bytes, POLLOUT, some, go_on);
}

bool receive_bytes(const Socket& socket, std::span<std::byte> bytes, const GoOn& go_on) {
  const auto some = [&](std::byte* at, std::size_t size) {
    return ::recv(socket.descriptor(), at, size, 0);
  };
  return move_all(socket, bytes, POLLIN, some, go_on);
}

template <class T>
bool send_value(const Socket& socket, const T& value, const GoOn& go_on) {
  return send_bytes(socket, std::as_bytes(std::span(&value, 1)), go_on);
}

template <class T>
bool receive_value(const Socket& socket, T& value, const GoOn& go_on) {
  return receive_bytes(socket, std::as_writable_bytes(std::span(&value, 1)), go_on);
}

bool send_state(const Socket& socket, const KeptGeneration& state, const GoOn& go_on) {
  const Header header{state.step, state.head.size()};
  bool sent = send_value(socket, header, go_on) &&
              send_bytes(socket, std::as_bytes(std::span(state.head)), go_on);
  for (const std::span<const std::byte> block : state.blocks) {
    sent = sent && send_bytes(socket, block, go_on);
  }
  return sent;
}

/// The step of the state that has come; -1: none. Error: the memory does not take it.
std::int64_t receive_state(const Socket& socket, KeptMemory& into, const GoOn& go_on) {
  Header header;
  if (!receive_value(socket, header, go_on) || header.step < 0 || header.entries > most_entries) {
    return -1;
  }
  std::vector<std::uint64_t> head(static_cast<std::size_t>(header.entries));
  if (!receive_bytes(socket, std::as_writable_bytes(std::span(head)), go_on)) {
    return -1;
  }
  for (const std::span<std::byte> block : into.begin_copy(head)) {
    if (!receive_bytes(socket, block, go_on)) {
      return -1;
    }
  }
  into.end_copy(header.step);
  return header.step;
}

/// A connection to the second home, opened. Not open: there is none yet.
Socket open_link(const HomeLink& link, bool fetches, std::int64_t step, const GoOn& go_on) {
  std::string why;
  Socket socket = connect_within(link.next, 1, why);
  Opening opening{.machine = link.machine, .fetches = fetches ? 1 : 0, .step = step};
  std::copy_n(link.key.begin(), std::min(link.key.size(), opening.key.size()), opening.key.begin());
  if (socket.open() && !send_value(socket, opening, go_on)) {
    socket.close();
  }
  return socket;
}

bool readable(const Socket& socket) {
  pollfd waiting{socket.descriptor(), POLLIN, 0};
  return poll(&waiting, 1, 0) > 0;
}

}  // namespace

bool fetch_state(KeptMemory& into, std::int64_t step, const HomeLink& link, const GoOn& go_on) {
  Patience patience;
  bool in_time = true;
  const GoOn within = [&] {
    in_time = patience.look(
        [&] { return fmt::format("launch: the state of step {} has not come yet", step); });
    return in_time && go_on();
  };
  while (within()) {
    const Socket from = open_link(link, true, step, within);
    if (from.open() && receive_state(from, into, within) == step) {
      return true;
    }
    poll(nullptr, 0, 50);
  }
  if (in_time) {
    return false;
  }
  fail({.thing = "launch",
        .wrong = fmt::format("the state of step {} did not come from {} within {:.4g} s", step,
                             to_string(link.next), patience.limit()),
        .advice = "start the same command again; machines must reach each other at all ports "
                  "above 1024"});
}

class SecondHome::Work {
 public:
  Work(const LaunchOptions& options, HomeLink link, const Socket& listener)
      : own_(*options.kept),
        other_(*options.kept_of_other),
        link_(std::move(link)),
        listener_(listener),
        sender_([this] { guarded([this] { send_copies(); }); }),
        receiver_([this] { guarded([this] { receive_copies(); }); }) {}
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  ~Work() {
    ended_ = true;
    sender_.join();
    receiver_.join();
  }

  std::string failure() const {
    const std::scoped_lock lock(mutex_);
    return failure_;
  }

 private:
  void guarded(const std::function<void()>& work) {
    try {
      work();
    } catch (const std::exception& error) {
      const std::scoped_lock lock(mutex_);
      failure_ = error.what();
    }
  }

  void send_copies() {
    const GoOn go_on = [this] { return !ended_; };
    while (!ended_) {
      const Socket to = open_link(link_, false, -1, go_on);
      for (std::int64_t sent = -1; to.open() && !ended_;) {
        const std::int64_t step = own_.wait_for_newer(sent, 0.05);
        const std::optional<KeptGeneration> state = step < 0 ? std::nullopt : own_.generation(step);
        if (!state) {
          if (readable(to)) {
            break;  // nothing was asked: it has ended
          }
          continue;
        }
        std::int64_t received = -1;
        if (!send_state(to, *state, go_on) || !receive_value(to, received, go_on) ||
            received != step) {
          break;
        }
        own_.set_copied(step);
        sent = step;
      }
      poll(nullptr, 0, 50);
    }
  }

  void receive_copies() {
    while (!ended_) {
      pollfd waiting{listener_.descriptor(), POLLIN, 0};
      poll(&waiting, 1, 50);
      if (const Socket from = accept_from(listener_); from.open()) {
        serve(from);
      }
    }
  }

  /// One connection, until it ends or there is another one.
  void serve(const Socket& from) {
    Stopwatch watch;
    Opening opening;
    const int before = (link_.machine + link_.machines - 1) % link_.machines;
    if (!receive_value(from, opening,
                       [&] { return !ended_ && watch.waited() < longest_opening; }) ||
        std::string(opening.key.data(), opening.key.size()) != link_.key ||
        opening.machine != before) {
      return;
    }
    if (opening.fetches != 0) {
      if (const std::optional<KeptGeneration> state = other_.generation(opening.step)) {
        send_state(from, *state, [this] { return !ended_; });
      }
      return;
    }
    const GoOn go_on = [this] { return !ended_ && !readable(listener_); };
    for (std::int64_t step = 0; step >= 0;) {
      step = receive_state(from, other_, go_on);
      if (step >= 0 && !send_value(from, step, go_on)) {
        return;
      }
    }
  }

  KeptMemory& own_;
  KeptMemory& other_;
  HomeLink link_;
  const Socket& listener_;
  std::atomic<bool> ended_{false};
  mutable std::mutex mutex_;
  std::string failure_;
  std::thread sender_;
  std::thread receiver_;
};

SecondHome::SecondHome(const LaunchOptions& options, HomeLink link, const Socket& listener)
    : work_(std::make_unique<Work>(options, std::move(link), listener)) {}

SecondHome::~SecondHome() = default;

std::string SecondHome::failure() const { return work_->failure(); }

}  // namespace tessera::collective
