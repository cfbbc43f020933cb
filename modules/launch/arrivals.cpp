module;
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>
module tessera.launch;

import tessera.base;
import tessera.machines;
import tessera.ranks;
import :arrivals;
import :introduction;
import :start;

namespace tessera::collective {
namespace {

constexpr std::size_t longest_message = std::size_t{16} << 20;

Writer refusal(const std::string& text, ErrorKind kind) {
  Writer writer = message(Word::refused);
  writer.put(kind);
  writer.put(std::string_view(text));
  return writer;
}

/// Sends the last message to a launcher; waits until it has left, for at most two seconds.
void tell(LauncherPeer& peer, const Writer& last) {
  constexpr double longest = 2;
  Stopwatch watch;
  peer.stream.send(last.text());
  while (peer.stream.progress() && !peer.stream.flushed() && watch.waited() < longest) {
    poll(nullptr, 0, 10);
  }
}

bool has_machine(const LauncherPeers& peers, int machine) {
  return std::ranges::any_of(peers, [&](const auto& p) { return p->machine == machine; });
}

}  // namespace

LauncherPeer::LauncherPeer(ProvenLink link) : stream(std::move(link), longest_message) {}

Arrivals::Arrivals(Introduction own, const Endpoint& meet, const RunKey& key)
    : own_(std::move(own)) {
  const std::vector<std::string> addresses = meeting_addresses(meet.host);
  if (addresses.empty()) {
    log(LogLevel::warning,
        fmt::format("'{}' leads to loopback here: machine 0 listens at all of its addresses, and "
                    "takes who has the run's key (mesh.interface names one)",
                    meet.host));
  }
  gate_ = Gate(listen_at(addresses, meet.port), key, {std::string(launchers_meet)});
}

void Arrivals::replace_only(std::vector<int> ranks) { ranks_ = std::move(ranks); }

std::string Arrivals::objection(const Introduction& theirs, const LauncherPeers& there) const {
  const bool replaces = !ranks_.empty();
  const bool begun = replaces || theirs.attempts > 0 ||
                     std::ranges::any_of(peers_, [](const auto& p) { return p->attempts > 0; });
  if (const std::string why = own_.objection(theirs, begun); !why.empty()) {
    return why;
  }
  const int machine = theirs.place.machine;
  if (machine <= 0 || machine >= own_.place.machines || has_machine(there, machine) ||
      has_machine(peers_, machine)) {
    return fmt::format(
        "two launchers were started with --machine {}; give each its own number, "
        "0 to {}",
        machine, own_.place.machines - 1);
  }
  const int ranks = replaces ? ranks_[static_cast<std::size_t>(machine)] : theirs.here;
  return theirs.here == ranks ? ""
                              : fmt::format(
                                    "machine {} starts {} ranks, and the machine that is "
                                    "lost started {}",
                                    theirs.name, theirs.here, ranks);
}

bool Arrivals::hear_one(LauncherPeer& peer, const LauncherPeers& there) {
  peer.stream.progress();
  const std::optional<std::string> text = peer.stream.receive();
  if (!text) {
    return peer.stream.socket().open();
  }
  if (peer.machine >= 0 || peer.spare) {
    return true;  // a beat
  }
  if (const auto why = objection_to_spare(*text, peer.stream.host())) {
    peer.spare = why->empty();
    if (!peer.spare) {
      tell(peer, refusal("launch: " + *why, ErrorKind::input));
      log(LogLevel::warning, *why);
    }
    return peer.spare;
  }
  const std::optional<Introduction> theirs = Introduction::read(*text, peer.stream.host());
  if (!theirs) {
    log(LogLevel::warning, fmt::format("what {} says first is not of a launcher: it is sent away",
                                       peer.stream.host()));
    return false;
  }
  if (const std::string why = objection(*theirs, there); !why.empty()) {
    fail_input("launch: " + why);
  }
  peer.machine = theirs->place.machine;
  peer.ranks = theirs->here;
  peer.name = theirs->name;
  peer.attempts = theirs->attempts;
  peer.held = theirs->held;
  return true;
}

void Arrivals::hear(const LauncherPeers& there) {
  const bool replaces = !ranks_.empty();
  std::vector<pollfd> sockets{{gate_.descriptor(), POLLIN, 0}};
  for (const auto& peer : peers_) {
    sockets.push_back({peer->stream.socket().descriptor(), POLLIN, 0});
  }
  poll(sockets.data(), sockets.size(), replaces ? 0 : 100);
  admit();
  // One that has gone may come again, with what was wrong corrected.
  for (std::size_t i = 0; i < peers_.size();) {
    bool stays = false;
    try {
      stays = hear_one(*peers_[i], there);
    } catch (const Error& error) {
      if (!replaces) {
        refuse(error.what(), error.kind());
        throw;
      }
      tell(*peers_[i], refusal(error.what(), error.kind()));
      log(LogLevel::warning, error.what());
    }
    if (stays) {
      ++i;
    } else {
      peers_.erase(peers_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

std::vector<int> Arrivals::missing(const LauncherPeers& there) const {
  std::vector<int> numbers;
  for (int machine = 1; machine < own_.place.machines; ++machine) {
    if (!has_machine(there, machine) && !has_machine(peers_, machine)) {
      numbers.push_back(machine);
    }
  }
  return numbers;
}

std::string Arrivals::in_words(const std::vector<int>& machines) const {
  return fmt::format("{} of {}", numbers_text("machine", machines), own_.place.machines);
}

void Arrivals::send_spares(const LauncherPeers& there) {
  constexpr double patience = 60;  // seconds for a spare machine to come in its place
  for (const int machine : missing(there)) {
    const auto spare = std::ranges::find_if(peers_, [](const auto& p) { return p->spare; });
    const auto given = given_.find(machine);
    if (spare == peers_.end() || (given != given_.end() && given->second.waited() < patience)) {
      continue;
    }
    Writer writer = message(Word::place);
    writer.put(machine);
    log(LogLevel::warning, fmt::format("the spare machine {} takes the place of machine {}",
                                       (*spare)->stream.host(), machine));
    tell(**spare, writer);
    peers_.erase(spare);
    given_.insert_or_assign(machine, Stopwatch());
  }
}

std::vector<const LauncherPeer*> Arrivals::introduced() const {
  std::vector<const LauncherPeer*> introduced;
  for (const auto& peer : peers_) {
    if (peer->machine >= 0) {
      introduced.push_back(peer.get());
    }
  }
  return introduced;
}

LauncherPeers Arrivals::take() {
  given_.clear();
  LauncherPeers taken;
  for (auto& peer : std::exchange(peers_, {})) {
    if (peer->spare) {
      peers_.push_back(std::move(peer));
    } else if (peer->machine >= 0) {
      taken.push_back(std::move(peer));
    }
  }
  std::ranges::sort(taken, {}, [](const auto& peer) { return peer->machine; });
  return taken;
}

void Arrivals::refuse(const std::string& text, ErrorKind kind) {
  std::erase_if(peers_, [&](const auto& peer) {
    if (!peer->spare) {
      tell(*peer, refusal(text, kind));
    }
    return !peer->spare;
  });
}

void Arrivals::dismiss() {
  constexpr double longest = 0.3;  // seconds for those who are proving themselves
  Stopwatch watch;
  do {
    hear({});
  } while (gate_.unproven() > 0 && watch.waited() < longest);
  for (const auto& peer : peers_) {
    tell(*peer, peer->spare ? message(Word::over)
                            : refusal("launch: the run has ended meanwhile", ErrorKind::run));
  }
  peers_.clear();
}

void Arrivals::admit() {
  for (ProvenLink& link : gate_.admit()) {
    peers_.push_back(std::make_unique<LauncherPeer>(std::move(link)));
  }
}

}  // namespace tessera::collective
