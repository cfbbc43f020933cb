module;
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tessera/limits.hpp>
#include <vector>
module tessera.launch;

import tessera.base;
import tessera.ranks;
import tessera.communication;
import :external;
import :messages;
import :rendezvous;
import :runner;

namespace tessera::collective {

void Rendezvous::look(Patience& patience, const std::function<std::string()>& missing) const {
  const auto what = [&] {
    return fmt::format("launch: {} did not join the job '{}' yet", missing(), self_.job);
  };
  if (!patience.look(what)) {
    fail(
        {.thing = "launch",
         .wrong = fmt::format("{} did not join within {:.4g} s", missing(), patience.limit()),
         .advice = fmt::format(
             "are all ranks started, on this machine, with the same job name ('{}')?", self_.job)});
  }
}

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
  allow_open_files(self_.size + 4);
  socket_ = listen_for_ranks(self_);
  region_ = Region::create_shareable(bytes);
  Control* control = Control::create(*region_, self_.world_size());
  control->joined = 1;
  const Process own = this_process();
  control->ranks()[self_.number(0)].process.store(own.id);
  control->ranks()[self_.number(0)].process_start.store(own.start);
  return region_;
}

void Rendezvous::connect_to_first() {
  Patience patience(timeout_, report_after_);
  Answer answer{};
  int descriptor = -1;
  std::optional<Stopwatch> lost;
  Pause pause;
  while (!ask_first(answer, descriptor, patience, lost.has_value())) {
    // A rank 0 that is refused while it makes the memory closes its socket, and listens once more
    // to say why.
    lost = lost ? lost : std::make_optional<Stopwatch>();
    if (lost->waited() > 1) {
      fail({.thing = "launch", .wrong = "rank 0 ended before all ranks had joined"});
    }
    pause.sleep();
  }
  if (answer.state == Answer::State::printed) {
    throw PeerFailed(fmt::format("launch: rank 0 ended before it joined: {}", answer.text),
                     answer.kind);
  }
  if (descriptor < 0) {
    fail_input(answer.text);
  }
  try {
    region_ = Region::map(descriptor, answer.bytes);
  } catch (...) {
    close(descriptor);
    throw;
  }
  close(descriptor);
}

bool Rendezvous::ask_first(Answer& answer, int& descriptor, Patience& patience, bool again) {
  if (socket_ >= 0) {
    close(socket_);
  }
  Pause pause;
  while ((socket_ = try_connect(self_)) < 0) {
    if (again) {
      return false;
    }
    look(patience, [] { return std::string("rank 0"); });
    pause.sleep();
  }
  if (!is_same_user(socket_)) {
    refuse_other_user(self_.job);
  }
  const Hello hello = own_hello(self_, false);
  if (send(socket_, &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) {
    return false;
  }
  while (!readable_within(socket_, 100)) {
    look(patience, [] { return std::string("rank 0"); });
  }
  return receive_answer(socket_, answer, descriptor);
}

void Rendezvous::accept_peer() {
  const int socket = accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
  if (socket < 0) {
    if (errno == EMFILE || errno == ENFILE) {
      fail({.thing = "launch",
            .wrong = fmt::format("cannot accept {} ranks ({})", self_.size, reason_of(errno)),
            .advice = "raise `ulimit -n`"});
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
  if (got == sizeof(hello) && hello.protocol == protocol_number() && hello.refused != 0 &&
      hello.size == self_.size) {
    // That rank prints its own reason, and the others end quietly.
    send_answer(peer.socket, make_answer(Answer::State::go_on, ErrorKind::input, ""), -1);
    reinterpret_cast<Control*>(region_->base())->printed.store(1);
    refused_ = true;
    fail_input(
        {.thing = "launch", .wrong = fmt::format("rank {} ended before it joined", hello.rank)});
  }
  std::string refusal;
  const bool taken =
      hello.rank == 0 || std::any_of(peers_.begin(), peers_.end(),
                                     [&](const Peer& other) { return other.rank == hello.rank; });
  if (got != sizeof(hello) || hello.protocol != protocol_number()) {
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
  Answer answer = make_answer(refusal.empty() ? Answer::State::memory : Answer::State::wrong,
                              ErrorKind::input, refusal);
  answer.bytes = region_->bytes();
  send_answer(peer.socket, answer, refusal.empty() ? region_->descriptor() : -1);
  if (!refusal.empty()) {
    fail_input(refusal);  // both jobs end: which rank belongs to which is not known
  }
  peer.rank = hello.rank;
  auto* control = reinterpret_cast<Control*>(region_->base());
  control->ranks()[self_.number(hello.rank)].process.store(hello.process);
  control->ranks()[self_.number(hello.rank)].process_start.store(hello.start);
  return true;
}

std::string Rendezvous::missing_ranks() const {
  std::vector<bool> here(static_cast<std::size_t>(self_.size), false);
  for (const Peer& peer : peers_) {
    if (peer.rank >= 0) {
      here[static_cast<std::size_t>(peer.rank)] = true;
    }
  }
  std::vector<int> missing;
  for (int rank = 1; rank < self_.size; ++rank) {
    if (!here[static_cast<std::size_t>(rank)]) {
      missing.push_back(self_.number(rank));
    }
  }
  return numbers_text("rank", missing);
}

int Rendezvous::joined() const {
  return static_cast<int>(
      std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.rank > 0; }));
}

void Rendezvous::wait_for_all() {
  Patience patience(timeout_, report_after_);
  char go = 1;
  if (self_.rank != 0) {
    while (!readable_within(socket_, 100)) {
      look(patience, [] { return std::string("another rank"); });
    }
    if (recv(socket_, &go, 1, 0) != 1) {
      fail({.thing = "launch", .wrong = "rank 0 ended before all ranks had joined"});
    }
    return;
  }
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
          fail({.thing = "launch",
                .wrong = fmt::format("rank {} ended before all ranks had joined",
                                     self_.number(peers_[i].rank))});
        }
        close(peers_[i].socket);  // it went before it had said who it is
        peers_.erase(peers_.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (sockets[0].revents != 0) {
        accept_peer();
      }
    }
    look(patience, [&] { return missing_ranks(); });
  }
  for (const Peer& peer : peers_) {
    send(peer.socket, &go, 1, MSG_NOSIGNAL);
  }
}

}  // namespace tessera::collective
