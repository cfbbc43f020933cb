// Who listens lets in those who prove that they have the run's key.
module;
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.machines;

import tessera.base;
import :run_key;
import :proof;
import :proof_bytes;
import :sockets;

namespace tessera::collective {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t asked_bytes = ProofBytes::magic.size() + RunKey::size;
constexpr int most_accepted = 64;  // in one call: those who are there have a turn

/// A connection that has not proven anything yet.
struct UnprovenPeer {
  Socket socket;
  std::string host;
  Clock::time_point since = Clock::now();
  ProofBytes::Nonces nonces{};
  bool asked = false;  // it has sent its random number
  std::array<char, std::max(asked_bytes, RunKey::size)> room{};
  std::size_t got = 0;
};

/// What has come, up to `bytes` in all. Whether it is all; the connection may have ended.
bool receive(UnprovenPeer& stranger, std::size_t bytes, bool& ended) {
  const ssize_t got = recv(stranger.socket.descriptor(), stranger.room.data() + stranger.got,
                           bytes - stranger.got, 0);
  if (got > 0) {
    stranger.got += static_cast<std::size_t>(got);
  } else {
    ended = got == 0 || (errno != EAGAIN && errno != EINTR);
  }
  return stranger.got == bytes;
}

}  // namespace

struct Gate::Work {
  std::vector<Socket> listeners;
  ProofBytes bytes;
  std::vector<std::string> purposes;
  Socket poll;
  std::list<UnprovenPeer> strangers{};  // the oldest first
  std::uint64_t refused = 0;
  std::uint64_t told = 1;  // the number of refusals that is logged next

  void watch(const Socket& socket) const {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = socket.descriptor();
    epoll_ctl(poll.descriptor(), EPOLL_CTL_ADD, socket.descriptor(), &event);
  }

  /// Counts a connection that has proven nothing: the first, the tenth, ... are logged. `says`: it
  /// is told so.
  void turn_away(const UnprovenPeer& stranger, bool says) {
    if (says) {
      const int socket = stranger.socket.descriptor();
      ::send(socket, ProofBytes::refused.data(), ProofBytes::refused.size(), MSG_NOSIGNAL);
      shutdown(socket, SHUT_WR);
      // What is left unread would end the connection before the other end has read the answer.
      std::array<char, 1024> rest{};
      for (int i = 0; i < 16 && recv(socket, rest.data(), rest.size(), 0) > 0; ++i) {
      }
    }
    if (++refused == told) {
      log(LogLevel::warning,
          fmt::format(
              "port {}: {} refused, without a proof of the run's key (the last one from {})",
              listeners.front().own_end().port,
              refused == 1 ? "a connection was" : fmt::format("{} connections were", refused),
              stranger.host));
      told *= 10;
    }
  }

  /// Makes room for another one: the oldest of the address that has most goes.
  void evict() {
    std::map<std::string_view, int> of_host;
    for (const UnprovenPeer& stranger : strangers) {
      ++of_host[stranger.host];
    }
    const auto most = std::ranges::max_element(of_host, {}, [](const auto& e) { return e.second; });
    const auto oldest = std::ranges::find(strangers, most->first, &UnprovenPeer::host);
    turn_away(*oldest, false);
    strangers.erase(oldest);
  }

  /// Whether anybody has come.
  bool accept_some() {
    bool any = false;
    for (const Socket& listener : listeners) {
      for (int i = 0; i < most_accepted; ++i) {
        Socket socket = accept_from(listener);
        if (!socket.open()) {
          break;
        }
        if (strangers.size() == most_unproven) {
          evict();
        }
        watch(socket);
        std::string host = socket.other_end().host;
        strangers.push_back({.socket = std::move(socket), .host = std::move(host)});
        any = true;
      }
    }
    return any;
  }

  enum class ReceivedState { waits, proven, ended, refused };

  /// `purpose`: the number of the one that was proven.
  ReceivedState hear(UnprovenPeer& stranger, std::size_t& purpose) {
    bool ended = false;
    if (!stranger.asked) {
      const bool all = receive(stranger, asked_bytes, ended);
      const std::size_t known = std::min(stranger.got, ProofBytes::magic.size());
      if (std::string_view(stranger.room.data(), known) != ProofBytes::magic.substr(0, known)) {
        return ReceivedState::refused;
      }
      if (!all) {
        return ended ? ReceivedState::ended : ReceivedState::waits;
      }
      std::memcpy(stranger.nonces.connects.data(), stranger.room.data() + ProofBytes::magic.size(),
                  RunKey::size);
      stranger.nonces.listens = ProofBytes::fresh();
      stranger.asked = true;
      stranger.got = 0;
      if (!send(stranger, stranger.nonces.listens)) {
        return ReceivedState::ended;
      }
    }
    if (!receive(stranger, RunKey::size, ended)) {
      return ended ? ReceivedState::ended : ReceivedState::waits;
    }
    ProofBytes::Hash hash{};
    std::memcpy(hash.data(), stranger.room.data(), hash.size());
    for (purpose = 0; purpose < purposes.size(); ++purpose) {
      if (ProofBytes::same(hash,
                           bytes.hash(ProofBytes::connects, purposes[purpose], stranger.nonces))) {
        return send(stranger, bytes.hash(ProofBytes::listens, purposes[purpose], stranger.nonces))
                   ? ReceivedState::proven
                   : ReceivedState::ended;
      }
    }
    return ReceivedState::refused;
  }

  static bool send(const UnprovenPeer& stranger, const ProofBytes::Hash& hash) {
    return ::send(stranger.socket.descriptor(), hash.data(), hash.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(hash.size());
  }

  void hear_all(std::vector<ProvenLink>& proven) {
    const auto longest = std::chrono::duration<double>(longest_proof);
    for (auto at = strangers.begin(); at != strangers.end();) {
      std::size_t purpose = 0;
      ReceivedState heard = hear(*at, purpose);
      if (heard == ReceivedState::waits && Clock::now() - at->since > longest) {
        heard = ReceivedState::refused;
      }
      if (heard == ReceivedState::waits) {
        ++at;
        continue;
      }
      if (heard == ReceivedState::proven) {
        epoll_ctl(poll.descriptor(), EPOLL_CTL_DEL, at->socket.descriptor(), nullptr);
        proven.push_back(
            bytes.link(std::move(at->socket), ProofBytes::listens, purposes[purpose], at->nonces));
        proven.back().purpose = purpose;
      } else {
        turn_away(*at, heard == ReceivedState::refused);
      }
      at = strangers.erase(at);
    }
  }

  std::vector<ProvenLink> admit() {
    std::vector<ProvenLink> proven;
    hear_all(proven);  // before others can take their room
    if (accept_some()) {
      hear_all(proven);
    }
    return proven;
  }
};

Gate::Gate() = default;
Gate::Gate(Gate&&) noexcept = default;
Gate& Gate::operator=(Gate&&) noexcept = default;
Gate::~Gate() = default;

Gate::Gate(std::vector<Socket> listeners, const RunKey& key, std::vector<std::string> purposes)
    : work_(std::make_unique<Work>(Work{.listeners = std::move(listeners),
                                        .bytes = {key},
                                        .purposes = std::move(purposes),
                                        .poll = Socket(epoll_create1(EPOLL_CLOEXEC))})) {
  for (const Socket& listener : work_->listeners) {
    work_->watch(listener);
  }
}

std::vector<ProvenLink> Gate::admit() { return work_->admit(); }

int Gate::descriptor() const { return work_->poll.descriptor(); }

int Gate::port() const { return work_->listeners.front().own_end().port; }

std::size_t Gate::unproven() const { return work_->strangers.size(); }

void Gate::close() { work_.reset(); }

}  // namespace tessera::collective
