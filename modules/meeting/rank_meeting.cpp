module;
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.meeting;

import tessera.base;
import tessera.machines;
import :rank_meeting;

namespace tessera::collective {
namespace {

/// What connections to a rank are for, as its gate counts them.
enum Purpose : std::size_t { for_meeting, for_messages };
std::vector<std::string> purposes() {
  const std::string job = environment_variable("TESSERA_JOB").value_or("");
  return {"ranks meet, job " + job, "messages of ranks, job " + job};
}

/// The sockets at which rank 0 listens, which its launcher may have made.
std::vector<Socket> first_listeners(const Endpoint& at) {
  const auto given = environment_variable("TESSERA_MEET_LISTENERS");
  if (!given) {
    return listen_at(meeting_addresses(at.host), at.port);
  }
  std::vector<Socket> listeners;
  std::istringstream words(*given);
  for (int descriptor = -1; words >> descriptor;) {
    listeners.emplace_back(descriptor);
  }
  return listeners;
}

struct JoiningRank {
  MessageStream stream;
  int rank = -1;
  std::string text{};
  Endpoint address{};
};

class Meeting {
 public:
  Meeting(const MeetingRank& self, const Endpoint& at)
      : self_(self),
        at_(at),
        thing_("transport " + self.transport),
        magic_(fmt::format("tessera {} {}", self.transport, self.version)),
        met_{.rank = self.rank,
             .all_here = is_local_host(at.host),
             .key = run_key({.host = at.host, .first = self.rank == 0}),
             .purpose = purposes()[for_messages],
             .purpose_number = for_messages} {}

  /// Rank 0: gives all ranks the texts and addresses of all.
  RunRanks meet_all() {
    met_.gate = Gate(first_listeners(at_), met_.key, purposes());
    while (known() < self_.size - 1) {
      for (ProvenLink& link : met_.gate.admit()) {
        if (link.purpose == for_meeting) {
          guests_.push_back(std::make_unique<JoiningRank>(MessageStream(std::move(link))));
        }
      }
      for (const auto& guest : guests_) {
        hear(*guest);
      }
      std::erase_if(guests_, [](const auto& guest) { return !guest->stream.socket().open(); });
      usleep(1000);
    }
    welcome();
    return std::move(met_);
  }

  RunRanks join() {
    ProofFailure failure;
    std::optional<ProvenLink> link;
    Pause pause;
    while (!(link = connect_proven(at_, met_.key, purposes()[for_meeting], 2, failure))) {
      refuse_other_key(at_, failure);
      pause.sleep();  // whoever called has the limit
    }
    met_.gate = Gate(listen_at(addresses_beside(link->socket.own_end().host, at_.host), 0),
                     met_.key, purposes());
    MessageStream first(std::move(*link), std::size_t{1} << 30);
    Writer writer;
    writer.put(std::string_view(magic_));
    writer.put(self_.rank);
    writer.put(self_.size);
    writer.put(self_.text);
    writer.put(std::string_view(announced_address()));
    writer.put(met_.gate.port());
    first.send(writer.text());
    take_answer(first);
    return std::move(met_);
  }

 private:
  std::ptrdiff_t known() const {
    return std::ranges::count_if(guests_, [](const auto& guest) { return guest->rank > 0; });
  }

  [[noreturn]] void refuse(const std::string& why, ErrorKind kind = ErrorKind::input) {
    Writer writer;
    writer.put(kind);
    writer.put(std::string_view(why));
    for (const auto& guest : guests_) {
      guest->stream.send(writer.text());
      guest->stream.progress();
    }
    usleep(200'000);  // let it arrive
    throw Error(why, kind);
  }

  void hear(JoiningRank& guest) {
    const bool alive = guest.stream.progress();
    if (const auto message = guest.stream.receive(); message && guest.rank < 0) {
      if (const std::string why = introduce(guest, *message); !why.empty()) {
        refuse(why);
      }
      const bool twice = std::ranges::count_if(guests_, [&](const auto& other) {
                           return other->rank == guest.rank;
                         }) > 1;
      if (guest.rank >= 0 && twice) {
        refuse(
            fmt::format("{}: two processes are rank {} of the run; give each run its own "
                        "TESSERA_MEET",
                        thing_, guest.rank));
      }
    } else if (!alive && guest.rank > 0) {
      usleep(500'000);  // whoever started it knows more
      refuse(fmt::format("{}: rank {} ended before all ranks had met", thing_, guest.rank),
             ErrorKind::run);
    }
  }

  /// Why a rank speaks otherwise than this one.
  std::string other_magic(const std::string& theirs) const {
    std::istringstream words(theirs);
    std::string tessera;
    std::string transport;
    words >> tessera >> transport;
    return tessera != "tessera" || transport == self_.transport
               ? thing_ + ": a rank has another version of Tessera than rank 0"
               : fmt::format(
                     "{}: a rank uses the transport '{}'; name one that all machines have "
                     "in `mesh.transport`",
                     thing_, terminal_line(transport));
  }

  /// Why the run cannot start; empty: it can. The rank stays -1 where it was something else.
  std::string introduce(JoiningRank& guest, const std::string& message) const {
    try {
      Reader reader(message);
      if (const std::string theirs = reader.text(); theirs != magic_) {
        return other_magic(theirs);
      }
      guest.rank = reader.get<int>();
      const int theirs = reader.get<int>();
      guest.text = reader.text();
      guest.address = get_endpoint(reader);
      if (guest.address.host.empty()) {
        guest.address.host = guest.stream.host();
      }
      if (theirs != self_.size || guest.rank <= 0 || guest.rank >= self_.size) {
        return fmt::format("{}: the runs of two ranks differ: rank {} of {} came to rank 0 of {}",
                           thing_, guest.rank, theirs, self_.size);
      }
    } catch (const Error&) {
      guest.rank = -1;
    }
    return "";
  }

  Endpoint get_endpoint(Reader& reader) const {
    Endpoint at;
    at.host = reader.text();
    at.port = reader.get<int>();
    require(at.port > 0 && at.port <= 65535, thing_ + ": a rank has no such port");
    return at;
  }

  /// All are there: each is told the texts and addresses of all.
  void welcome() {
    met_.texts.assign(static_cast<std::size_t>(self_.size), std::string(self_.text));
    met_.addresses.assign(static_cast<std::size_t>(self_.size), Endpoint{"", met_.gate.port()});
    std::erase_if(guests_, [](const auto& guest) { return guest->rank < 0; });
    for (const auto& guest : guests_) {
      met_.texts[static_cast<std::size_t>(guest->rank)] = guest->text;
      met_.addresses[static_cast<std::size_t>(guest->rank)] = guest->address;
    }
    Writer writer;
    writer.put(ErrorKind::run);
    writer.put(std::string_view(""));  // nothing is wrong
    for (std::size_t r = 0; r < met_.texts.size(); ++r) {
      const Endpoint& address = met_.addresses[r];
      writer.put(std::string_view(met_.texts[r]));
      // A rank that has reached this one by a loopback address is on its machine.
      writer.put(std::string_view(is_loopback(address) ? "" : address.host));
      writer.put(address.port);
    }
    for (const auto& guest : guests_) {
      guest->stream.send(writer.text());
    }
    while (std::ranges::any_of(guests_, [](const auto& guest) {
      return guest->stream.progress() && !guest->stream.flushed();
    })) {
      usleep(1000);
    }
  }

  void take_answer(MessageStream& first) {
    std::optional<std::string> answer;
    while (!answer) {
      const bool alive = first.progress();
      answer = first.receive();
      if (!answer && !alive) {
        fail({.thing = thing_,
              .wrong = "rank 0 ended before all ranks had met (" + first.why() + ")",
              .advice = "start all ranks with the same TESSERA_MEET and TESSERA_JOB"});
      }
      usleep(1000);
    }
    Reader reader(*answer);
    const bool is_input = reader.get<ErrorKind>() == ErrorKind::input;
    if (const std::string refused = reader.text(); !refused.empty()) {
      throw Error(refused, is_input ? ErrorKind::input : ErrorKind::run);
    }
    for (int rank = 0; rank < self_.size; ++rank) {
      met_.texts.push_back(reader.text());
      Endpoint other = get_endpoint(reader);
      if (other.host.empty()) {
        other.host = first.host();
      }
      met_.addresses.push_back(std::move(other));
    }
  }

  const MeetingRank& self_;
  Endpoint at_;
  std::string thing_;
  std::string magic_;
  RunRanks met_;
  std::vector<std::unique_ptr<JoiningRank>> guests_;
};

}  // namespace

RunRanks meet_ranks(const MeetingRank& self) {
  const std::optional<std::string> meet = environment_variable("TESSERA_MEET");
  if (!meet) {
    fail_input({.thing = "transport " + self.transport,
                .wrong = "nothing says where the ranks meet",
                .advice = "set TESSERA_MEET to HOST:PORT on all machines, with the host of rank 0 "
                          "and a free port of it"});
  }
  Meeting meeting(self, parse_endpoint("TESSERA_MEET", *meet));
  return self.rank == 0 ? meeting.meet_all() : meeting.join();
}

}  // namespace tessera::collective
