module;
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tessera/limits.hpp>
#include <utility>
#include <vector>
module tessera.launch;

import tessera.base;
import tessera.machines;
import :second_home;
import :start;

namespace tessera::collective {
namespace {

constexpr std::uint64_t most_entries = std::uint64_t{1} << 24;

/// What a connection of a machine to its second home is for.
std::string copies_of(int machine) { return fmt::format("copies of machine {}", machine); }
std::string fetch_by(int machine) { return fmt::format("states for machine {}", machine); }

/// The start of a state; its entries, then its blocks follow.
struct Header {
  std::int64_t step = -1;
  std::uint64_t entries = 0;
};

/// As receive_sealed; what was changed on the way ends the connection, and is sent again by
/// another.
bool receive(ProvenLink& link, std::span<const std::span<std::byte>> places, const GoOn& go_on) {
  try {
    return receive_sealed(link, places, go_on);
  } catch (const Error& error) {
    log(LogLevel::warning, fmt::format("second home, the link with {}: {}; it is sent again",
                                       link.socket.other_end().host, error.what()));
    return false;
  }
}

template <class T>
bool send_value(ProvenLink& link, const T& value, const GoOn& go_on) {
  const std::array places = {std::as_bytes(std::span(&value, 1))};
  return send_sealed(link, places, go_on);
}

template <class T>
bool receive_value(ProvenLink& link, T& value, const GoOn& go_on) {
  const std::array places = {std::as_writable_bytes(std::span(&value, 1))};
  return receive(link, places, go_on);
}

bool send_state(ProvenLink& link, const StateGeneration& state, const GoOn& go_on) {
  const Header header{state.step, state.head.size()};
  const std::array head = {std::as_bytes(std::span(state.head))};
  return send_value(link, header, go_on) && send_sealed(link, head, go_on) &&
         send_sealed(link, state.blocks, go_on);
}

/// The step of the state that has come; -1: none. Error: the memory does not take it.
std::int64_t receive_state(ProvenLink& link, StateStore& into, const GoOn& go_on) {
  Header header;
  if (!receive_value(link, header, go_on) || header.step < 0 || header.entries > most_entries) {
    return -1;
  }
  std::vector<std::uint64_t> head(static_cast<std::size_t>(header.entries));
  const std::array places = {std::as_writable_bytes(std::span(head))};
  if (!receive(link, places, go_on) || !receive(link, into.begin_copy(head), go_on)) {
    return -1;
  }
  into.end_copy(header.step);
  return header.step;
}

bool readable(const Socket& socket) {
  pollfd waiting{socket.descriptor(), POLLIN, 0};
  return poll(&waiting, 1, 0) > 0;
}

}  // namespace

bool fetch_state(StateStore& into, std::int64_t step, const HomeLink& link, const GoOn& go_on) {
  Patience patience;
  bool in_time = true;
  const GoOn within = [&] {
    in_time = patience.look(
        [&] { return fmt::format("launch: the state of step {} has not come yet", step); });
    return in_time && go_on();
  };
  while (within()) {
    ProofFailure failure;
    auto from = connect_proven(link.next, link.key.value(), fetch_by(link.machine), 1, failure);
    if (from && send_value(*from, step, within) && receive_state(*from, into, within) == step) {
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
  Work(const LaunchOptions& options, const HomeLink& link, std::vector<Socket> listeners)
      : own_(*options.kept),
        other_(*options.kept_of_other),
        link_(link),
        gate_(std::move(listeners), link.key.value(), purposes(link)) {
    try {
      threads_.start("launch", [this] { guarded([this] { send_copies(); }); });
      threads_.start("launch", [this] { guarded([this] { receive_copies(); }); });
    } catch (...) {
      ended_ = true;  // the first one may run
      throw;
    }
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  ~Work() {
    ended_ = true;
    threads_.join();
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
      ProofFailure failure;
      auto to = connect_proven(link_.next, link_.key.value(), copies_of(link_.machine), 1, failure);
      for (std::int64_t sent = -1; to && !ended_;) {
        const std::int64_t step = own_.wait_for_newer(sent, 0.05);
        const std::optional<StateGeneration> state =
            step < 0 ? std::nullopt : own_.generation(step);
        if (!state) {
          if (readable(to->socket)) {
            break;  // nothing was asked: it has ended
          }
          continue;
        }
        std::int64_t received = -1;
        if (!send_state(*to, *state, go_on) || !receive_value(*to, received, go_on) ||
            received != step) {
          break;
        }
        own_.set_copied(step);
        sent = step;
      }
      poll(nullptr, 0, 50);
    }
  }

  /// What connections to this machine may be for, by the machine before it.
  static std::vector<std::string> purposes(const HomeLink& link) {
    const int before = (link.machine + link.machines - 1) % link.machines;
    return {copies_of(before), fetch_by(before)};
  }

  /// Lets in who proves that it is the machine before; strangers are beside what is being received.
  void admit() {
    for (ProvenLink& link : gate_.admit()) {
      next_ = std::move(link);
    }
  }

  void receive_copies() {
    while (!ended_) {
      pollfd waiting{gate_.descriptor(), POLLIN, 0};
      poll(&waiting, 1, 50);
      admit();
      while (next_ && !ended_) {
        ProvenLink link = *std::exchange(next_, std::nullopt);
        serve(link);
      }
    }
  }

  /// One connection, until it ends or that machine has made another one.
  void serve(ProvenLink& link) {
    const GoOn go_on = [this] {
      admit();
      return !ended_ && !next_;
    };
    std::int64_t step = 0;
    if (link.purpose == 1) {
      const auto state = receive_value(link, step, go_on) ? other_.generation(step) : std::nullopt;
      if (state) {
        send_state(link, *state, go_on);
      }
      return;
    }
    while (step >= 0) {
      step = receive_state(link, other_, go_on);
      if (step >= 0 && !send_value(link, step, go_on)) {
        return;
      }
    }
  }

  StateStore& own_;
  StateStore& other_;
  HomeLink link_;
  Gate gate_;                         // of the receiver
  std::optional<ProvenLink> next_{};  // that waits for it
  std::atomic<bool> ended_{false};
  mutable std::mutex mutex_;
  std::string failure_;
  Threads threads_;
};

SecondHome::SecondHome(const LaunchOptions& options, const HomeLink& link,
                       std::vector<Socket> listeners)
    : work_(std::make_unique<Work>(options, link, std::move(listeners))) {}

SecondHome::~SecondHome() = default;

std::string SecondHome::failure() const { return work_->failure(); }

}  // namespace tessera::collective
