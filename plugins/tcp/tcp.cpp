// tcp: messages between machines by TCP. Ranks meet at an address, TESSERA_MEET=HOST:PORT, at which
// rank 0 listens. A connection has one direction: the sender makes it with its first message, says
// who it is and the run's key, and sends each message as a header, the head and the parts. Nothing
// is encrypted.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
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

namespace {

using namespace tessera::collective;
using tessera::environment_variable;
using tessera::fail;
using tessera::fail_input;

constexpr std::string_view thing = "transport tcp";
constexpr std::size_t most_parts = 32;          // of one system call
constexpr std::size_t room_bytes = 128 << 10;   // for headers and heads that arrive
constexpr std::size_t most_at_once = 16 << 20;  // bytes from one rank, before others have a turn
/// Seconds from the end of a connection to the report: a launcher that has lost a rank knows more.
constexpr double report_after = 0.5;

/// Begins each message. A message without a head is the last one: the rank has ended in order.
struct Header {
  std::uint64_t head_bytes = 0;
  std::uint64_t part_bytes = 0;
};

/// Begins a connection.
struct Hello {
  std::array<char, 16> magic{};
  std::array<char, 48> key{};
  std::int32_t from = -1;
  std::int32_t to = -1;
};
constexpr std::string_view magic = "tessera tcp 1";

template <std::size_t N>
void set_text(std::array<char, N>& to, std::string_view text) {
  text.copy(to.data(), N - 1);
}

std::string key_of_run() {
  return environment_variable("TESSERA_MEET_KEY")
      .value_or(environment_variable("TESSERA_JOB").value_or(""));
}

/// Messages to one rank.
struct OutLink {
  struct Message {
    std::uint64_t token = 0;
    Header header{};
    std::vector<std::byte> head{};
    std::vector<MessageTransport::Part> parts{};
    std::size_t sent = 0;  // bytes of all
    std::size_t all = 0;
  };
  Socket socket;
  std::size_t greeted = 0;  // bytes of the hello that have left
  bool waits = false;       // for room to send
  bool ended = false;       // the other rank says that it has ended in order
  std::deque<Message> queue;
};

/// Messages from one rank.
struct InLink {
  Socket socket;
  int from = -1;  // -1: it has not said yet
  bool ended = false;
  std::vector<std::byte> room = std::vector<std::byte>(room_bytes);
  std::size_t begin = 0;  // of what has arrived in it
  std::size_t end = 0;
  std::vector<MessageTransport::Part> parts{};  // that are awaited, what has come cut off
  std::uint64_t token = 0;
  bool in_parts = false;
};

class Tcp final : public MessageTransport {
 public:
  std::vector<std::string> exchange(int rank, int size, std::string_view text) override {
    rank_ = rank;
    const std::optional<std::string> meet = environment_variable("TESSERA_MEET");
    if (!meet) {
      fail_input({.thing = std::string(thing),
                  .wrong = "nothing says where the ranks meet",
                  .advice =
                      "set TESSERA_MEET to HOST:PORT on all machines, with the host of rank 0 "
                      "and a free port of it"});
    }
    const Endpoint at = parse_endpoint("TESSERA_MEET", *meet);
    out_.resize(static_cast<std::size_t>(size));
    std::vector<std::string> texts = rank == 0 ? meet_all(at, size, text) : join(at, size, text);
    poll_ = Socket(epoll_create1(EPOLL_CLOEXEC));
    watch(listener_.descriptor(), EPOLLIN, EPOLL_CTL_ADD);
    return texts;
  }

  void send(int to, std::vector<std::byte> head, std::span<const Part> parts,
            std::uint64_t token) override {
    OutLink& out = out_[static_cast<std::size_t>(to)];
    std::uint64_t part_bytes = 0;
    for (const Part& part : parts) {
      part_bytes += part.bytes;
    }
    const Header header{head.size(), part_bytes};
    const std::size_t all = sizeof(header) + head.size() + part_bytes;
    out.queue.push_back({token, header, std::move(head), {parts.begin(), parts.end()}, 0, all});
    if (is_lost(to)) {
      return;  // as is reported
    }
    if (!out.socket.open()) {
      std::string why;
      out.socket = begin_connect(addresses_[static_cast<std::size_t>(to)], why);
      if (!out.socket.open()) {
        lose(to, why);
        return;
      }
      of_descriptor_[out.socket.descriptor()] = {true, to};
      out.waits = true;
      watch(out.socket.descriptor(), EPOLLIN | EPOLLOUT, EPOLL_CTL_ADD);
    } else if (!out.waits) {
      begun_ = true;  // the next progress sends it
    }
  }

  bool progress(Receiver& receiver) override {
    bool moved = false;
    if (std::exchange(begun_, false)) {
      for (std::size_t to = 0; to < out_.size(); ++to) {
        if (out_[to].socket.open() && !out_[to].waits && !out_[to].queue.empty()) {
          moved |= flush(static_cast<int>(to), receiver);
        }
      }
    }
    std::array<epoll_event, 64> events{};
    const int count = epoll_wait(poll_.descriptor(), events.data(), events.size(), 0);
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      const int descriptor = event.data.fd;
      if (descriptor == listener_.descriptor()) {
        accept_all();
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
      if ((event.events & ~static_cast<unsigned>(EPOLLOUT)) != 0) {
        hear_end(to);
      }
      if ((event.events & EPOLLOUT) != 0 && out_[static_cast<std::size_t>(to)].socket.open()) {
        moved |= flush(to, receiver);
      }
    }
    report_lost(receiver);
    return moved;
  }

  void finish(bool orderly) override {
    // The kernel sends what it has after the process has ended, too.
    for (std::size_t to = 0; orderly && to < out_.size(); ++to) {
      if (out_[to].socket.open()) {
        const Header last;
        ::send(out_[to].socket.descriptor(), &last, sizeof(last), MSG_NOSIGNAL);
      }
    }
    for (const auto& [descriptor, in] : in_) {
      if (orderly) {
        ::send(descriptor, "", 1, MSG_NOSIGNAL);
      }
    }
    in_.clear();
    out_.clear();
    listener_.close();
  }

 private:
  // The ranks meet.

  void take_listener(int port) {
    if (const auto given = environment_variable("TESSERA_MEET_LISTENER")) {
      int descriptor = -1;
      std::from_chars(given->data(), given->data() + given->size(), descriptor);
      listener_ = Socket(descriptor);
    } else {
      listener_ = listen_at(port);
    }
  }

  struct Guest {
    MessageStream stream;
    int rank = -1;
    std::string text{};
    Endpoint address{};
  };

  /// Rank 0: gives all ranks the texts and addresses of all.
  std::vector<std::string> meet_all(const Endpoint& at, int size, std::string_view own) {
    take_listener(at.port);
    std::vector<std::unique_ptr<Guest>> guests;
    const auto refuse = [&](const std::string& why,
                            tessera::ErrorKind kind = tessera::ErrorKind::input) {
      Writer writer;
      writer.put(kind);
      writer.put(std::string_view(why));
      for (const auto& guest : guests) {
        guest->stream.send(writer.text());
        guest->stream.progress();
      }
      usleep(200'000);  // let it arrive
      throw tessera::Error(why, kind);
    };
    const auto known = [&] {
      return std::ranges::count_if(guests, [](const auto& guest) { return guest->rank > 0; });
    };
    while (known() < size - 1) {
      for (Socket socket; (socket = accept_from(listener_)).open();) {
        guests.push_back(std::make_unique<Guest>(MessageStream(std::move(socket))));
      }
      for (const auto& guest : guests) {
        const bool alive = guest->stream.progress();
        if (const auto message = guest->stream.receive(); message && guest->rank < 0) {
          if (const std::string why = introduce(*guest, *message, size); !why.empty()) {
            refuse(why);
          }
          const bool twice = std::ranges::count_if(guests, [&](const auto& other) {
                               return other->rank == guest->rank;
                             }) > 1;
          if (guest->rank >= 0 && twice) {
            refuse(std::string(thing) + ": two processes are rank " + std::to_string(guest->rank) +
                   " of the run; give each run its own TESSERA_MEET");
          }
        } else if (!alive && guest->rank > 0) {
          usleep(static_cast<unsigned>(1e6 * report_after));  // whoever started it knows more
          refuse(std::string(thing) + ": rank " + std::to_string(guest->rank) +
                     " ended before all ranks had met",
                 tessera::ErrorKind::run);
        }
      }
      std::erase_if(guests, [](const auto& guest) { return !guest->stream.socket().open(); });
      usleep(1000);
    }
    std::vector<std::string> texts(static_cast<std::size_t>(size), std::string(own));
    addresses_.assign(static_cast<std::size_t>(size), Endpoint{"", listener_.own_end().port});
    std::erase_if(guests, [](const auto& guest) { return guest->rank < 0; });
    for (const auto& guest : guests) {
      texts[static_cast<std::size_t>(guest->rank)] = guest->text;
      addresses_[static_cast<std::size_t>(guest->rank)] = guest->address;
    }
    Writer writer;
    writer.put(tessera::ErrorKind::run);
    writer.put(std::string_view(""));  // nothing is wrong
    for (int rank = 0; rank < size; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      writer.put(std::string_view(texts[r]));
      // A rank that has reached this one by a loopback address is on its machine.
      writer.put(std::string_view(is_loopback(addresses_[r]) ? "" : addresses_[r].host));
      writer.put(addresses_[r].port);
    }
    for (const auto& guest : guests) {
      guest->stream.send(writer.text());
    }
    while (std::ranges::any_of(guests, [](const auto& guest) {
      return guest->stream.progress() && !guest->stream.flushed();
    })) {
      usleep(1000);
    }
    return texts;
  }

  /// Why the run cannot start; empty: it can. The rank stays -1 where it was something else.
  std::string introduce(Guest& guest, const std::string& message, int size) {
    try {
      Reader reader(message);
      if (reader.text() != magic || reader.text() != key_of_run()) {
        return "";
      }
      guest.rank = reader.get<int>();
      const int theirs = reader.get<int>();
      guest.text = reader.text();
      guest.address = {guest.stream.host(), reader.get<int>()};
      if (theirs != size || guest.rank <= 0 || guest.rank >= size) {
        return std::string(thing) + ": the runs of two ranks differ: rank " +
               std::to_string(guest.rank) + " of " + std::to_string(theirs) +
               " came to rank 0 of " + std::to_string(size);
      }
    } catch (const tessera::Error&) {
      guest.rank = -1;
    }
    return "";
  }

  std::vector<std::string> join(const Endpoint& at, int size, std::string_view own) {
    listener_ = listen_at(0);
    std::string why;
    Socket socket;
    tessera::Pause pause;
    while (!(socket = connect_within(at, 1, why)).open()) {
      pause.sleep();  // whoever called has the limit
    }
    MessageStream first(std::move(socket), std::size_t{1} << 30);
    Writer writer;
    writer.put(magic);
    writer.put(std::string_view(key_of_run()));
    writer.put(rank_);
    writer.put(size);
    writer.put(own);
    writer.put(listener_.own_end().port);
    first.send(writer.text());
    std::optional<std::string> answer;
    while (!answer) {
      const bool alive = first.progress();
      answer = first.receive();
      if (!answer && !alive) {
        fail({.thing = std::string(thing),
              .wrong =
                  "rank 0 ended before all ranks had met, or has another key (" + first.why() + ")",
              .advice = "start all ranks with the same TESSERA_MEET and TESSERA_JOB"});
      }
      usleep(1000);
    }
    Reader reader(*answer);
    const auto kind = reader.get<tessera::ErrorKind>();
    if (const std::string refused = reader.text(); !refused.empty()) {
      throw tessera::Error(refused, kind);
    }
    std::vector<std::string> texts;
    for (int rank = 0; rank < size; ++rank) {
      texts.push_back(reader.text());
      const std::string host = reader.text();
      const int port = reader.get<int>();
      addresses_.push_back({host.empty() ? first.host() : host, port});
    }
    return texts;
  }

  // Messages.

  void watch(int descriptor, std::uint32_t events, int how) const {
    epoll_event event{};
    event.events = events;
    event.data.fd = descriptor;
    epoll_ctl(poll_.descriptor(), how, descriptor, &event);
  }

  void accept_all() {
    for (Socket socket; (socket = accept_from(listener_)).open();) {
      const int descriptor = socket.descriptor();
      of_descriptor_[descriptor] = {false, -1};
      auto in = std::make_unique<InLink>();
      in->socket = std::move(socket);
      in_[descriptor] = std::move(in);
      watch(descriptor, EPOLLIN, EPOLL_CTL_ADD);
    }
  }

  Hello hello_to(int to) const {
    Hello hello;
    set_text(hello.magic, magic);
    set_text(hello.key, key_of_run());
    hello.from = rank_;
    hello.to = to;
    return hello;
  }

  bool is_lost(int rank) const { return lost_.contains(rank); }

  void lose(int rank, std::string_view why) { lost_.try_emplace(rank, Lost{std::string(why)}); }

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
    std::array<char, 16> bytes{};
    const ssize_t got = recv(out.socket.descriptor(), bytes.data(), bytes.size(), 0);
    if (got > 0) {
      out.ended = true;
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      end_out(to, got == 0 ? "it closed the connection" : std::strerror(errno));
    }
  }

  void end_out(int to, std::string_view why) {
    OutLink& out = out_[static_cast<std::size_t>(to)];
    drop(out.socket.descriptor());
    out.socket.close();
    if (!out.ended) {
      lose(to, why);
    }
  }

  /// The bytes of a message from `sent` on, as pieces for a system call.
  static void put_pieces(OutLink::Message& message, std::vector<iovec>& pieces) {
    std::size_t skip = message.sent;
    const auto put = [&](const void* data, std::size_t bytes) {
      const std::size_t gone = std::min(skip, bytes);
      skip -= gone;
      if (gone < bytes) {
        pieces.push_back(
            {const_cast<std::byte*>(static_cast<const std::byte*>(data)) + gone, bytes - gone});
      }
    };
    put(&message.header, sizeof(message.header));
    put(message.head.data(), message.head.size());
    for (const Part& part : message.parts) {
      put(part.data, part.bytes);
    }
  }

  /// Sends what the connection takes. Whether anything has left.
  bool flush(int to, Receiver& receiver) {
    OutLink& out = out_[static_cast<std::size_t>(to)];
    bool moved = false;
    bool full = false;
    const Hello hello = hello_to(to);
    std::vector<iovec> pieces;
    while (!full && (out.greeted < sizeof(hello) || !out.queue.empty())) {
      pieces.clear();
      if (out.greeted < sizeof(hello)) {
        pieces.push_back({const_cast<char*>(reinterpret_cast<const char*>(&hello)) + out.greeted,
                          sizeof(hello) - out.greeted});
      } else {
        for (auto at = out.queue.begin(); at != out.queue.end() && pieces.size() < most_parts;
             ++at) {
          put_pieces(*at, pieces);
        }
      }
      msghdr message{};
      message.msg_iov = pieces.data();
      message.msg_iovlen = std::min<std::size_t>(pieces.size(), 512);
      const ssize_t sent = sendmsg(out.socket.descriptor(), &message, MSG_NOSIGNAL);
      if (sent < 0) {
        full = errno == EAGAIN || errno == EINTR;
        if (!full) {
          end_out(to, std::strerror(errno));
          return moved;
        }
        break;
      }
      moved = true;
      auto left = static_cast<std::size_t>(sent);
      if (out.greeted < sizeof(hello)) {
        out.greeted += left;
        continue;
      }
      while (left > 0) {
        OutLink::Message& first = out.queue.front();
        const std::size_t of_first = std::min(left, first.all - first.sent);
        first.sent += of_first;
        left -= of_first;
        if (first.sent == first.all) {
          const std::uint64_t token = first.token;
          out.queue.pop_front();
          receiver.sent(token);
        }
      }
    }
    if (full != out.waits) {
      out.waits = full;
      watch(out.socket.descriptor(), full ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD);
    }
    return moved;
  }

  void end_in(InLink& in, std::string_view why) {
    const int descriptor = in.socket.descriptor();
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
          readv(in.socket.descriptor(), pieces.data(), static_cast<int>(pieces.size()));
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
      part.data += of_part;
      part.bytes -= of_part;
      used += of_part;
      done += part.bytes == 0 ? 1 : 0;
    }
    in.parts.erase(in.parts.begin(), in.parts.begin() + static_cast<std::ptrdiff_t>(done));
    return used;
  }

  /// Handles what is in the room. False: the connection was ended.
  bool parse(InLink& in, Receiver& receiver) {
    while (true) {
      if (in.in_parts) {
        in.begin += take_parts(in, in.end - in.begin, in.room.data() + in.begin);
        if (!in.parts.empty()) {
          break;
        }
        in.in_parts = false;
        receiver.arrived(in.token);
        continue;
      }
      const std::size_t there = in.end - in.begin;
      const std::byte* const data = in.room.data() + in.begin;
      if (in.from < 0) {
        Hello hello;
        if (there < sizeof(hello)) {
          break;
        }
        std::memcpy(&hello, data, sizeof(hello));
        in.begin += sizeof(hello);
        const Hello expected = hello_to(-1);
        if (hello.magic != expected.magic || hello.key != expected.key || hello.to != rank_ ||
            hello.from < 0 || hello.from >= static_cast<int>(out_.size())) {
          end_in(in, "");  // a stranger
          return false;
        }
        in.from = hello.from;
        continue;
      }
      Header header;
      if (there < sizeof(header)) {
        break;
      }
      std::memcpy(&header, data, sizeof(header));
      if (header.head_bytes == 0) {
        in.ended = true;
        in.begin += sizeof(header);
        continue;
      }
      const std::size_t whole = sizeof(header) + header.head_bytes;
      if (there < whole) {
        make_room(in, whole);
        break;
      }
      in.parts = receiver.arrive(in.from, {data + sizeof(header), header.head_bytes}, in.token);
      in.begin += whole;
      in.in_parts = true;
      std::uint64_t awaited = 0;
      for (const Part& part : in.parts) {
        awaited += part.bytes;
      }
      tessera::require(awaited == header.part_bytes,
                       "transport tcp: a message has other parts than were announced");
    }
    make_room(in, sizeof(Hello));
    return true;
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

  struct Lost {
    std::string why;
    tessera::Stopwatch since{};
    bool reported = false;
  };

  int rank_ = -1;
  Socket listener_;
  Socket poll_;
  std::vector<Endpoint> addresses_;                    // by rank
  std::vector<OutLink> out_;                           // by rank
  std::map<int, std::unique_ptr<InLink>> in_;          // by descriptor
  std::map<int, std::pair<bool, int>> of_descriptor_;  // outgoing, to which rank
  std::map<int, Lost> lost_;
  bool begun_ = false;
};

}  // namespace

void register_plugin(tessera::plugin::Registrar& registrar) {
  registrar.add<MessageTransport>("tcp", [] { return std::make_unique<Tcp>(); });
}
