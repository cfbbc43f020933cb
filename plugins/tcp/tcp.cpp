// tcp: messages between machines by TCP. Ranks meet at an address, TESSERA_MEET=HOST:PORT, at which
// rank 0 listens. A connection has one direction: the sender makes it with its first message, both
// ends prove that they have the run's key, and each message is a header, the head and their
// checksum, and the parts with theirs. Nothing is encrypted.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

import tessera.base;
import tessera.plugin;
import tessera.collective;
import tessera.meeting;

#include "links.hpp"

namespace {

using namespace tessera::collective;
using namespace tcp;

constexpr std::size_t most_parts = 32;           // of one system call
constexpr std::size_t most_at_once = 16 << 20;   // bytes from one rank, before others have a turn
constexpr std::size_t sealed_ahead = 128 << 10;  // bytes of parts in a checksum before they leave
constexpr std::size_t largest_head = std::size_t{1} << 30;
/// Seconds from the end of a connection to the report: a launcher that has lost a rank knows more.
constexpr double report_after = 0.5;
constexpr std::int64_t look_at_strangers = 100'000'000;  // nanoseconds

/// Begins a connection.
struct Hello {
  std::int32_t from = -1;
  std::int32_t to = -1;
};
constexpr std::string_view changed = "what it sent was changed on the way: a checksum is wrong";

class Tcp final : public MessageTransport {
 public:
  std::vector<std::string> exchange(int rank, int size, std::string_view text) override {
    rank_ = rank;
    RunRanks met =
        meet_ranks({.transport = "tcp", .version = 2, .rank = rank, .size = size, .text = text});
    out_ = std::vector<OutLink>(static_cast<std::size_t>(size));
    key_ = met.key;
    purpose_ = std::move(met.purpose);
    purpose_number_ = met.purpose_number;
    gate_ = std::move(met.gate);
    addresses_ = std::move(met.addresses);
    poll_ = Socket(epoll_create1(EPOLL_CLOEXEC));
    watch(gate_.descriptor(), EPOLLIN, EPOLL_CTL_ADD);
    return std::move(met.texts);
  }

  void send(int to, std::vector<std::byte> head, std::span<const Part> parts,
            std::uint64_t token) override {
    OutLink& out = out_[static_cast<std::size_t>(to)];
    std::uint64_t part_bytes = 0;
    for (const Part& part : parts) {
      part_bytes += part.bytes;
    }
    tessera::require(!head.empty() && head.size() <= largest_head,
                     "transport tcp: a message has no head, or one of more than 1 GiB");
    out.queue.push_back({.token = token,
                         .header = {head.size(), part_bytes},
                         .head = std::move(head),
                         .parts = {parts.begin(), parts.end()}});
    if (is_lost(to)) {
      return;  // as is reported
    }
    if (!out.open()) {
      std::string why;
      Socket socket = begin_connect(addresses_[static_cast<std::size_t>(to)], why);
      if (!socket.open()) {
        lose(to, why);
        return;
      }
      of_descriptor_[socket.descriptor()] = {true, to};
      out.waits = true;
      watch(socket.descriptor(), EPOLLIN | EPOLLOUT, EPOLL_CTL_ADD);
      out.proof.emplace(std::move(socket), *key_, purpose_);
    } else if (!out.waits) {
      begun_ = true;  // the next progress sends it
    }
  }

  bool progress(Receiver& receiver) override {
    bool moved = false;
    if (std::exchange(begun_, false)) {
      for (std::size_t to = 0; to < out_.size(); ++to) {
        if (out_[to].link && !out_[to].waits && !out_[to].queue.empty()) {
          moved |= flush(static_cast<int>(to), receiver);
        }
      }
    }
    std::array<epoll_event, 64> events{};
    const int count = epoll_wait(poll_.descriptor(), events.data(), events.size(), 0);
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      const int descriptor = event.data.fd;
      if (descriptor == gate_.descriptor()) {
        admit();
        continue;
      }
      const auto at = of_descriptor_.find(descriptor);
      if (at == of_descriptor_.end()) {
        continue;  // closed by an event before this one
      }
      if (!at->second.first) {
        moved |= read(*in_.at(descriptor), receiver);
        continue;
      }
      const int to = at->second.second;
      OutLink& out = out_[static_cast<std::size_t>(to)];
      if (out.proof) {
        prove(to);
      } else if ((event.events & ~static_cast<unsigned>(EPOLLOUT)) != 0) {
        hear_end(to);
      }
      if (out.link && (out.waits || !out.hello.empty())) {
        moved |= flush(to, receiver);
      }
    }
    if (gate_.unproven() > 0 && steady_nanoseconds() > next_look_) {
      admit();
    }
    report_lost(receiver);
    return moved;
  }

  void finish(bool orderly) override {
    // The kernel sends what it has after the process has ended, too.
    for (OutLink& out : out_) {
      if (orderly && out.link) {
        const Header last;
        std::vector<std::byte> bytes(sizeof(last));
        std::memcpy(bytes.data(), &last, sizeof(last));
        const Checksum::Tag tag = sealed(out.link->out, bytes);
        bytes.insert(bytes.end(), tag.begin(), tag.end());
        ::send(out.descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      }
    }
    for (const auto& [descriptor, in] : in_) {
      if (orderly) {
        const Checksum::Tag tag = sealed(in->link.out, std::as_bytes(std::span(ended_in_order)));
        ::send(descriptor, tag.data(), tag.size(), MSG_NOSIGNAL);
      }
    }
    in_.clear();
    out_.clear();
    gate_.close();
  }

 private:
  // Messages.

  void watch(int descriptor, std::uint32_t events, int how) const {
    epoll_event event{};
    event.events = events;
    event.data.fd = descriptor;
    epoll_ctl(poll_.descriptor(), how, descriptor, &event);
  }

  /// Lets in those who have the run's key, and ends others that have had their time.
  void admit() {
    next_look_ = steady_nanoseconds() + look_at_strangers;
    for (ProvenLink& link : gate_.admit()) {
      if (link.purpose == purpose_number_) {
        const int descriptor = link.socket.descriptor();
        of_descriptor_[descriptor] = {false, -1};
        in_[descriptor] = std::make_unique<InLink>(std::move(link));
        watch(descriptor, EPOLLIN, EPOLL_CTL_ADD);
      }
    }
  }

  /// A connection that this rank has made proves itself; then it says who it is.
  void prove(int to) {
    OutLink& out = out_[static_cast<std::size_t>(to)];
    const Proof::State state = out.proof->progress();
    if (state == Proof::State::going) {
      const bool sends = (out.proof->event() & POLLOUT) != 0;
      watch(out.descriptor(), sends ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD);
    } else if (state == Proof::State::proven) {
      out.link.emplace(out.proof->take());
      out.proof.reset();
      watch(out.descriptor(), EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);  // it waits to send
      const Hello hello{rank_, to};
      const auto bytes = bytes_of(hello);
      out.hello.assign(bytes.begin(), bytes.end());
      const Checksum::Tag tag = sealed(out.link->out, bytes);
      out.hello.insert(out.hello.end(), tag.begin(), tag.end());
    } else {
      const std::string why = out.proof->why();
      std::erase_if(of_descriptor_,
                    [&](const auto& known) { return known.second == std::pair{true, to}; });
      out.proof.reset();
      lose(to, why);
    }
  }

  bool is_lost(int rank) const { return lost_.contains(rank); }

  void lose(int rank, std::string_view why) {
    lost_.try_emplace(rank, LostConnection{std::string(why)});
  }

  void report_lost(Receiver& receiver) {
    for (auto& [rank, lost] : lost_) {
      if (!lost.reported && lost.since.waited() > report_after) {
        lost.reported = true;
        receiver.lost(rank, lost.why);
      }
    }
  }

  void drop(int descriptor) { of_descriptor_.erase(descriptor); }

  /// A rank sends nothing against the direction of a connection, but that it ends in order.
  void hear_end(int to) {
    OutLink& out = out_[static_cast<std::size_t>(to)];
    std::array<std::byte, Checksum::size + 1> bytes{};
    const ssize_t got = recv(out.descriptor(), bytes.data(), bytes.size(), 0);
    if (got <= 0) {
      if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        end_out(to, got == 0 ? "it closed the connection" : std::strerror(errno));
      }
      return;
    }
    out.heard.insert(out.heard.end(), bytes.begin(), bytes.begin() + got);
    if (out.heard.size() < Checksum::size) {
      return;
    }
    Checksum expected = out.link->in.next();
    expected.add(ended_in_order.data(), ended_in_order.size());
    Checksum::Tag tag{};
    std::memcpy(tag.data(), out.heard.data(), tag.size());
    out.ended = out.heard.size() == tag.size() && expected.is(tag);
    out.heard.clear();
    if (!out.ended) {
      end_out(to, changed);
    }
  }

  void end_out(int to, std::string_view why) {
    OutLink& out = out_[static_cast<std::size_t>(to)];
    drop(out.descriptor());
    out.link.reset();
    if (!out.ended) {
      lose(to, why);
    }
  }

  /// Pieces of what can leave next; the parts are sealed a little ahead of that.
  static void put_next(OutLink& out, std::vector<iovec>& pieces) {
    pieces.clear();
    if (!out.hello.empty()) {
      pieces.push_back({out.hello.data(), out.hello.size()});
      return;
    }
    std::size_t room = sealed_ahead;
    for (auto at = out.queue.begin(); at != out.queue.end() && pieces.size() < most_parts; ++at) {
      const std::size_t parts_sent =
          std::min(at->sent - std::min(at->sent, at->before_parts()), at->header.part_bytes);
      const std::size_t before = at->sealed;
      at->seal(out.link->out, room - std::min(room, before - std::min(before, parts_sent)));
      room -= std::min(room, at->sealed - before);
      at->put_pieces(pieces);
      if (!at->is_sealed()) {
        break;
      }
    }
  }

  /// So many bytes have left.
  static void note_sent(OutLink& out, std::size_t bytes, Receiver& receiver) {
    if (!out.hello.empty()) {
      out.hello.erase(out.hello.begin(), out.hello.begin() + static_cast<std::ptrdiff_t>(bytes));
      return;
    }
    while (bytes > 0) {
      OutMessage& first = out.queue.front();
      const std::size_t of_first = std::min(bytes, first.all() - first.sent);
      first.sent += of_first;
      bytes -= of_first;
      if (first.sent == first.all()) {
        const std::uint64_t token = first.token;
        out.queue.pop_front();
        receiver.sent(token);
      }
    }
  }

  /// Sends what the connection takes. Whether anything has left.
  bool flush(int to, Receiver& receiver) {
    OutLink& out = out_[static_cast<std::size_t>(to)];
    bool moved = false;
    bool full = false;
    std::vector<iovec> pieces;
    while (!full && (!out.hello.empty() || !out.queue.empty())) {
      put_next(out, pieces);
      msghdr message{};
      message.msg_iov = pieces.data();
      message.msg_iovlen = std::min<std::size_t>(pieces.size(), 512);
      const ssize_t sent = sendmsg(out.descriptor(), &message, MSG_NOSIGNAL);
      if (sent < 0) {
        full = errno == EAGAIN || errno == EINTR;
        if (!full) {
          end_out(to, std::strerror(errno));
          return moved;
        }
        break;
      }
      moved = true;
      note_sent(out, static_cast<std::size_t>(sent), receiver);
    }
    if (full != out.waits) {
      out.waits = full;
      watch(out.descriptor(), full ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD);
    }
    return moved;
  }

  void end_in(InLink& in, std::string_view why) {
    const int descriptor = in.link.socket.descriptor();
    if (in.from >= 0 && !in.ended) {
      lose(in.from, why);
    }
    drop(descriptor);
    in_.erase(descriptor);
  }

  /// Takes what has arrived. Whether that was anything.
  bool read(InLink& in, Receiver& receiver) {
    bool moved = false;
    for (std::size_t taken = 0; taken < most_at_once;) {
      std::vector<iovec> pieces;
      for (const Part& part : std::span(in.parts).first(std::min(in.parts.size(), most_parts))) {
        pieces.push_back({part.data, part.bytes});
      }
      if (in.parts.size() <= most_parts) {
        pieces.push_back({in.room.data() + in.end, in.room.size() - in.end});
      }
      const ssize_t got =
          readv(in.link.socket.descriptor(), pieces.data(), static_cast<int>(pieces.size()));
      if (got <= 0) {
        if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
          end_in(in, got == 0 ? "it closed the connection" : std::strerror(errno));
          return true;
        }
        return moved;
      }
      moved = true;
      taken += static_cast<std::size_t>(got);
      auto left = static_cast<std::size_t>(got);
      left -= take_parts(in, left, nullptr);
      in.end += left;
      if (!parse(in, receiver)) {
        return true;
      }
    }
    return moved;
  }

  /// `bytes` of the awaited parts are there, or are copied from `from`. Returns how many were
  /// needed.
  static std::size_t take_parts(InLink& in, std::size_t bytes, const std::byte* from) {
    std::size_t used = 0;
    std::size_t done = 0;
    while (done < in.parts.size() && (used < bytes || in.parts[done].bytes == 0)) {
      Part& part = in.parts[done];
      const std::size_t of_part = std::min(bytes - used, part.bytes);
      if (from != nullptr && of_part > 0) {
        std::memcpy(part.data, from + used, of_part);
      }
      if (of_part > 0) {
        in.checksum->add(part.data, of_part);
      }
      part.data += of_part;
      part.bytes -= of_part;
      used += of_part;
      done += part.bytes == 0 ? 1 : 0;
    }
    in.parts.erase(in.parts.begin(), in.parts.begin() + static_cast<std::ptrdiff_t>(done));
    return used;
  }

  /// Takes the next checksum from the room. Whether it is that.
  static bool take_tag(InLink& in, Checksum& checksum) {
    Checksum::Tag tag{};
    std::memcpy(tag.data(), in.room.data() + in.begin, tag.size());
    in.begin += tag.size();
    return checksum.is(tag);
  }

  /// What is sealed at the begin of the room, before its checksum, of so many bytes. Whether it is
  /// what was sent.
  static bool take_sealed(InLink& in, std::size_t bytes) {
    Checksum checksum = in.link.in.next();
    checksum.add(in.room.data() + in.begin, bytes);
    in.begin += bytes;
    return take_tag(in, checksum);
  }

  enum class ParseResult { some, needs_more, damaged };

  /// Handles what is in the room. False: the connection was ended.
  bool parse(InLink& in, Receiver& receiver) {
    ParseResult parsed = ParseResult::some;
    while (parsed == ParseResult::some) {
      parsed = in.in_parts   ? parse_parts(in, receiver)
               : in.from < 0 ? parse_hello(in)
                             : parse_head(in, receiver);
    }
    if (parsed == ParseResult::damaged) {
      tessera::log(tessera::LogLevel::warning,
                   "the link with rank " + std::to_string(in.from) + ": " + std::string(changed));
      end_in(in, changed);
      return false;
    }
    return true;
  }

  static ParseResult parse_parts(InLink& in, Receiver& receiver) {
    in.begin += take_parts(in, in.end - in.begin, in.room.data() + in.begin);
    if (in.parts.empty() && !in.checksum) {
      in.in_parts = false;
      receiver.arrived(in.token);
      return ParseResult::some;
    }
    if (!in.parts.empty() || in.end - in.begin < Checksum::size) {
      make_room(in, Checksum::size);
      return ParseResult::needs_more;
    }
    if (!take_tag(in, *in.checksum)) {
      return ParseResult::damaged;
    }
    in.checksum.reset();
    in.in_parts = false;
    receiver.arrived(in.token);
    return ParseResult::some;
  }

  ParseResult parse_hello(InLink& in) const {
    Hello hello;
    if (in.end - in.begin < sizeof(hello) + Checksum::size) {
      make_room(in, sizeof(hello) + Checksum::size);
      return ParseResult::needs_more;
    }
    std::memcpy(&hello, in.room.data() + in.begin, sizeof(hello));
    const bool twice = std::ranges::any_of(
        in_, [&](const auto& other) { return other.second->from == hello.from; });
    if (!take_sealed(in, sizeof(hello)) || hello.to != rank_ || hello.from < 0 ||
        hello.from >= static_cast<int>(out_.size()) || twice) {
      return ParseResult::damaged;
    }
    in.from = hello.from;
    return ParseResult::some;
  }

  static ParseResult parse_head(InLink& in, Receiver& receiver) {
    const std::size_t there = in.end - in.begin;
    Header header;
    if (there < sizeof(header)) {
      make_room(in, sizeof(header));
      return ParseResult::needs_more;
    }
    std::memcpy(&header, in.room.data() + in.begin, sizeof(header));
    if (header.head_bytes > largest_head) {
      return ParseResult::damaged;
    }
    const std::size_t sealed_bytes = sizeof(header) + header.head_bytes;
    if (there < sealed_bytes + Checksum::size) {
      // The length is not proven yet: there is room for as much again as has come.
      make_room(in, std::min(sealed_bytes + Checksum::size, 2 * std::max(there, room_bytes)));
      return ParseResult::needs_more;
    }
    const std::byte* const head = in.room.data() + in.begin + sizeof(header);
    if (!take_sealed(in, sealed_bytes)) {
      return ParseResult::damaged;
    }
    if (header.head_bytes == 0) {
      in.ended = true;
      return ParseResult::some;
    }
    in.parts = receiver.arrive(in.from, {head, header.head_bytes}, in.token);
    in.in_parts = true;
    std::uint64_t awaited = 0;
    for (const Part& part : in.parts) {
      awaited += part.bytes;
    }
    tessera::require(awaited == header.part_bytes,
                     "transport tcp: a message has other parts than were announced");
    if (awaited > 0) {
      in.checksum.emplace(in.link.in.next());
    }
    return ParseResult::some;
  }

  /// What is in the room moves to its begin, where so many bytes must fit.
  static void make_room(InLink& in, std::size_t bytes) {
    if (in.begin == in.end) {
      in.begin = in.end = 0;
    } else if (in.begin > 0) {
      std::memmove(in.room.data(), in.room.data() + in.begin, in.end - in.begin);
      in.end -= in.begin;
      in.begin = 0;
    }
    in.room.resize(std::max(in.room.size(), bytes));
  }

  struct LostConnection {
    std::string why;
    tessera::Stopwatch since{};
    bool reported = false;
  };

  int rank_ = -1;
  std::optional<RunKey> key_;
  std::string purpose_;
  std::size_t purpose_number_ = 0;
  Gate gate_;
  std::int64_t next_look_ = 0;
  Socket poll_;
  std::vector<Endpoint> addresses_;                    // by rank
  std::vector<OutLink> out_;                           // by rank
  std::map<int, std::unique_ptr<InLink>> in_;          // by descriptor
  std::map<int, std::pair<bool, int>> of_descriptor_;  // outgoing, to which rank
  std::map<int, LostConnection> lost_;
  bool begun_ = false;
};

}  // namespace

void register_plugin(tessera::plugin::Registrar& registrar) {
  registrar.add<MessageTransport>("tcp", [] { return std::make_unique<Tcp>(); });
}
