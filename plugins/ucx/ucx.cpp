// ucx: messages between machines by UCX, which chooses RDMA, TCP or shared memory, and the network
// devices. Ranks meet and know each other as with the transport tcp: a proven connection is made by
// the first message to a rank, by which the two exchange their UCX addresses and a key; when it
// ends, the rank is lost. A message is an active message with its head, and one for each part. They
// have numbers and checksums, so that none can be made by others, changed, left out or repeated;
// the contents of parts have none, as network devices move them between the memories of machines.
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "worker.hpp"

import tessera.base;
import tessera.plugin;
import tessera.collective;
import tessera.meeting;

namespace {

using namespace tessera::collective;
using tessera::Stopwatch;
using ucx::ActiveMessage;
using ucx::Operation;
using ucx::Worker;

constexpr std::size_t largest_head = std::size_t{1} << 30;
constexpr std::size_t largest_head_at_once = std::size_t{64} << 10;
constexpr std::size_t most_ahead = 1 << 16;  // messages of a rank that wait for one before them
constexpr double longest_end = 2;            // seconds in which ranks that end in order say so
constexpr std::int64_t look_at_links = 1'000'000;  // nanoseconds
constexpr std::string_view changed =
    "what it sent was changed on the protocol: a checksum is wrong";

enum Kind : unsigned { head_kind, part_kind };

/// With the head of a message.
struct HeadHeader {
  std::int32_t from = -1;
  std::uint32_t parts = 0;  // with bytes
  std::uint64_t number = 0;
  std::uint64_t head_bytes = 0;
  std::uint64_t part_bytes = 0;
  Checksum::Tag large{};  // of a head that is announced
  Checksum::Tag tag{};    // of what is before it, and of another head
};

/// With a part of a message.
struct PartHeader {
  std::int32_t from = -1;
  std::uint32_t index = 0;
  std::uint64_t number = 0;
  Checksum::Tag tag{};  // of the message's number
};

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

Checksum::Tag tag_of(ChecksumSequence& seals, std::span<const std::byte> first,
                     std::span<const std::byte> second = {}) {
  Checksum checksum = seals.next();
  checksum.add(first.data(), first.size());
  checksum.add(second.data(), second.size());
  return checksum.tag();
}

std::span<const std::byte> before_tag(const HeadHeader& header) {
  return bytes_of(header).first(offsetof(HeadHeader, tag));
}

/// A message that leaves.
struct OutMessage {
  std::uint64_t token = 0;
  std::vector<std::byte> head{};
  std::vector<MessageTransport::Part> parts{};
  HeadHeader header{};
  std::vector<PartHeader> part_headers{};
  Operation operation{};
};

/// Messages to one rank.
struct ToRank {
  RunKey key = RunKey::random();
  std::optional<ChecksumSequence> seals{};
  bool asked = false;  // for its address
  ucp_ep_h endpoint = nullptr;
  std::uint64_t next = 0;
  std::deque<OutMessage> waiting{};  // for the endpoint
  std::function<void(std::string)> failed{};
};

/// A head or a part that has come from UCX.
struct HeldPart {
  HeadHeader header{};
  Checksum::Tag tag{};
  std::vector<std::byte> bytes{};
  void* kept = nullptr;  // by UCX
  std::size_t size = 0;
  bool announced = false;
};

/// A message whose parts come.
struct InMessage {
  std::uint64_t token = 0;
  Checksum::Tag tag{};
  std::vector<MessageTransport::Part> places{};
  std::vector<bool> began{};
  std::size_t left = 0;  // parts that have not come
  Operation operation{};
};

/// A head that was announced, and comes.
struct HeadTransfer {
  Checksum checksum;
  Operation operation{};
};

/// Messages from one rank.
struct FromRank {
  std::optional<ChecksumSequence> seals{};
  std::uint64_t next = 0;
  std::map<std::uint64_t, HeldPart> heads{};
  std::map<std::pair<std::uint64_t, std::uint32_t>, HeldPart> parts{};  // without their message yet
  std::optional<HeadTransfer> large{};                                  // the next head
  std::map<std::uint64_t, InMessage> awaited{};
};

/// The ports of RDMA devices, as UCX names them.
std::set<std::string> rdma_ports() {
  namespace fs = std::filesystem;
  std::set<std::string> names;
  std::error_code error;
  for (const fs::path& device : fs::directory_iterator("/sys/class/infiniband", error)) {
    for (const fs::path& port : fs::directory_iterator(device / "ports", error)) {
      names.insert(device.filename().string() + ":" + port.filename().string());
    }
  }
  return names;
}

std::string numeric_address(const sockaddr& address) {
  std::array<char, NI_MAXHOST> host{};
  const auto size = static_cast<socklen_t>(address.sa_family == AF_INET ? sizeof(sockaddr_in)
                                                                        : sizeof(sockaddr_in6));
  const int error =
      getnameinfo(&address, size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? host.data() : "";
}

/// The network devices that UCX may use, as UCX_NET_DEVICES: that of the run's interface; where all
/// ranks are on this machine, loopback; otherwise all others. UCX itself would use loopback between
/// two containers of one machine.
std::string devices_of(const RunRanks& met) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) {
    return "";
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> held(all, &freeifaddrs);
  std::string chosen = announced_address();
  if (chosen == "0.0.0.0" || chosen == "::") {
    chosen.clear();
  }
  std::set<std::string> names;
  if (chosen.empty() && !met.all_here) {
    names = rdma_ports();
  }
  for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    const int family = at->ifa_addr == nullptr ? AF_UNSPEC : at->ifa_addr->sa_family;
    const bool is_up = (at->ifa_flags & IFF_UP) != 0;
    const bool is_loopback = (at->ifa_flags & IFF_LOOPBACK) != 0;
    if ((family == AF_INET || family == AF_INET6) && is_up &&
        (chosen.empty() ? is_loopback == met.all_here : numeric_address(*at->ifa_addr) == chosen)) {
      names.insert(at->ifa_name);
    }
  }
  std::string list;
  for (const std::string& name : names) {
    list += (list.empty() ? "" : ",") + name;
  }
  return list;
}

class Ucx final : public MessageTransport {
 public:
  Ucx() = default;
  Ucx(const Ucx&) = delete;
  Ucx& operator=(const Ucx&) = delete;
  ~Ucx() override = default;

  std::vector<std::string> exchange(int rank, int size, std::string_view text) override {
    rank_ = rank;
    RunRanks met = meet_ranks({.transport = "ucx", .rank = rank, .size = size, .text = text});
    std::vector<std::string> texts = met.texts;
    const auto handler = [this](unsigned kind) {
      return [this, kind](const ActiveMessage& message) { return take(kind, message); };
    };
    try {
      worker_ = std::make_unique<Worker>(
          devices_of(met),
          std::array<Worker::Handler, Worker::kinds>{handler(head_kind), handler(part_kind)});
    } catch (const std::runtime_error& error) {
      tessera::fail_input({.thing = "transport ucx",
                           .wrong = std::string("UCX cannot start: ") + error.what(),
                           .advice =
                               "see what its variables (UCX_TLS, UCX_NET_DEVICES) say, or set "
                               "`mesh.transport` to \"tcp\""});
    }
    key_ = met.key;
    out_ = std::vector<ToRank>(static_cast<std::size_t>(size));
    in_ = std::vector<FromRank>(static_cast<std::size_t>(size));
    links_ = RankLinks(std::move(met));
    return texts;
  }

  void send(int to, std::vector<std::byte> head, std::span<const Part> parts,
            std::uint64_t token) override {
    tessera::require(!head.empty() && head.size() <= largest_head,
                     "transport ucx: a message has no head, or one of more than 1 GiB");
    if (links_.is_lost(to)) {
      return;  // as is reported
    }
    OutMessage message{.token = token, .head = std::move(head)};
    std::ranges::copy_if(parts, std::back_inserter(message.parts),
                         [](const Part& part) { return part.bytes > 0; });
    ToRank& out = out_[static_cast<std::size_t>(to)];
    if (out.endpoint != nullptr) {
      start(out, std::move(message));
      return;
    }
    out.waiting.push_back(std::move(message));
    if (!out.asked) {
      out.asked = true;
      Writer writer;
      writer.put(std::string_view(out.key.text()));
      links_.send(to, writer.text());
      connecting_ = true;
    }
  }

  bool progress(Receiver& receiver) override {
    bool moved = worker_->progress();
    if (connecting_ || steady_nanoseconds() > next_look_) {
      hear();
    }
    for (const int from : std::exchange(arrived_, {})) {
      take_messages(from, receiver);
      moved = true;
    }
    moved |= std::erase_if(sending_, [&](const OutMessage& message) {
               if (message.operation.pending > 0) {
                 return false;
               }
               if (message.operation.status == UCS_OK) {
                 receiver.sent(message.token);
               }
               return true;
             }) != 0;
    for (std::size_t from = 0; receiving_ > 0 && from < in_.size(); ++from) {
      moved |= complete(static_cast<int>(from), receiver);
    }
    for (const RankLinks::LostRank& lost : links_.newly_lost()) {
      receiver.lost(lost.rank, lost.why);
    }
    return moved;
  }

  void finish(bool orderly) override {
    if (!orderly) {
      // The process ends without: others may be gone, and devices may still write here.
      static_cast<void>(worker_.release());
      links_.close();
      return;
    }
    Operation flushed;
    worker_->flush(flushed);
    wait_while([&] { return flushed.pending > 0; });
    links_.end();
    wait_while([&] { return !links_.all_have_ended(); });
    if (flushed.pending > 0) {
      static_cast<void>(worker_.release());  // it would wait
    }
    worker_.reset();
    links_.close();
  }

 private:
  /// Of ranks that end in order.
  template <class Condition>
  void wait_while(const Condition& condition) {
    Stopwatch watch;
    while (condition() && watch.waited() < longest_end) {
      worker_->progress();
      links_.progress();
    }
  }

  // Connections.

  RunKey key_for(const std::string& nonce, int from, int to) const {
    return key_->derived("ucx messages of rank " + std::to_string(from) + " to rank " +
                         std::to_string(to) + ", " + nonce);
  }

  /// What comes by the proven connections.
  void hear() {
    next_look_ = steady_nanoseconds() + look_at_links;
    for (const RankLinks::RankMessage& heard : links_.progress()) {
      try {
        Reader reader(heard.message);
        if (heard.is_answer) {
          connect(heard.from, reader.text());
        } else {
          open(heard.from, reader.text());
        }
      } catch (const tessera::Error&) {  // it has too few bytes
        links_.lose(heard.from, changed);
      }
    }
    connecting_ = std::ranges::any_of(
        out_, [](const ToRank& out) { return out.asked && out.endpoint == nullptr; });
  }

  /// A rank will send messages.
  void open(int from, const std::string& nonce) {
    FromRank& in = in_[static_cast<std::size_t>(from)];
    tessera::require(!in.seals, "transport ucx: a rank asks twice");
    in.seals.emplace(key_for(nonce, from, rank_));
    Writer writer;
    writer.put(std::string_view(worker_->address()));
    links_.answer(from, writer.text());
  }

  /// A rank takes messages.
  void connect(int to, const std::string& address) {
    ToRank& out = out_[static_cast<std::size_t>(to)];
    tessera::require(out.asked && out.endpoint == nullptr, "transport ucx: a rank answers twice");
    out.failed = [this, to](const std::string& why) { links_.lose(to, why); };
    std::string why;
    out.endpoint = worker_->connect(address, &out.failed, why);
    if (out.endpoint == nullptr) {
      links_.lose(to, "UCX: " + why);
      return;
    }
    out.seals.emplace(key_for(out.key.text(), rank_, to));
    for (OutMessage& message : std::exchange(out.waiting, {})) {
      start(out, std::move(message));
    }
  }

  // Messages that leave.

  void start(ToRank& out, OutMessage&& leaving) {
    OutMessage& message = sending_.emplace_back(std::move(leaving));
    HeadHeader& header = message.header;
    header.from = rank_;
    header.parts = static_cast<std::uint32_t>(message.parts.size());
    header.number = out.next++;
    header.head_bytes = message.head.size();
    for (const Part& part : message.parts) {
      header.part_bytes += part.bytes;
    }
    const bool is_large = message.head.size() > largest_head_at_once;
    if (is_large) {
      header.large = tag_of(*out.seals, message.head);
    }
    header.tag = tag_of(*out.seals, before_tag(header),
                        is_large ? std::span<const std::byte>() : std::span(message.head));
    worker_->send(out.endpoint, head_kind, bytes_of(header), message.head,
                  is_large ? Worker::Protocol::announced : Worker::Protocol::at_once,
                  message.operation);
    if (message.parts.empty()) {
      return;
    }
    const Checksum::Tag tag = tag_of(*out.seals, bytes_of(header.number));
    message.part_headers.reserve(message.parts.size());
    for (const Part& part : message.parts) {
      const auto index = static_cast<std::uint32_t>(message.part_headers.size());
      const PartHeader& own = message.part_headers.emplace_back(
          PartHeader{.from = rank_, .index = index, .number = header.number, .tag = tag});
      worker_->send(out.endpoint, part_kind, bytes_of(own), {part.data, part.bytes},
                    Worker::Protocol::any, message.operation);
    }
  }

  // Messages that arrive.

  /// Called by UCX, within progress: keeps what has come. Whether UCX keeps the data meanwhile.
  bool take(unsigned kind, const ActiveMessage& message) noexcept {
    return kind == head_kind ? take_head(message) : take_part(message);
  }

  /// Who has sent a message, as it says itself; null: nobody from whom messages are expected.
  FromRank* sender(std::int32_t from) {
    const bool is_rank = from >= 0 && from < static_cast<std::int32_t>(in_.size());
    FromRank* const in = is_rank ? &in_[static_cast<std::size_t>(from)] : nullptr;
    if (in == nullptr || !in->seals || links_.is_lost(from)) {
      return nullptr;
    }
    return in;
  }

  static bool hold(HeldPart& held, const ActiveMessage& message) {
    held.size = message.bytes;
    held.announced = message.announced;
    if (message.can_be_kept) {
      held.kept = message.data;
      return true;
    }
    const auto* const bytes = static_cast<const std::byte*>(message.data);
    held.bytes.assign(bytes, bytes + message.bytes);
    return false;
  }

  bool take_head(const ActiveMessage& message) {
    HeadHeader header;
    if (message.header.size() != sizeof(header)) {
      return false;
    }
    std::memcpy(&header, message.header.data(), sizeof(header));
    FromRank* const in = sender(header.from);
    if (in == nullptr) {
      return false;
    }
    if (header.number < in->next || header.number - in->next > most_ahead ||
        in->heads.contains(header.number)) {
      links_.lose(header.from, changed);
      return false;
    }
    HeldPart& held = in->heads[header.number];
    held.header = header;
    arrived_.push_back(header.from);
    return hold(held, message);
  }

  bool take_part(const ActiveMessage& message) {
    PartHeader header;
    if (message.header.size() != sizeof(header)) {
      return false;
    }
    std::memcpy(&header, message.header.data(), sizeof(header));
    FromRank* const in = sender(header.from);
    if (in == nullptr) {
      return false;
    }
    if (const auto at = in->awaited.find(header.number); at != in->awaited.end()) {
      HeldPart held{.tag = header.tag, .size = message.bytes, .announced = message.announced};
      held.kept = message.data;
      return place(header.from, at->second, header.index, held) && message.announced;
    }
    const std::pair key{header.number, header.index};
    if (header.number < in->next || header.number - in->next > most_ahead ||
        in->parts.size() > most_ahead || in->parts.contains(key)) {
      links_.lose(header.from, changed);
      return false;
    }
    HeldPart& held = in->parts[key];
    held.tag = header.tag;
    return hold(held, message);
  }

  /// The data of a part goes where it belongs. False: it belongs nowhere.
  bool place(int from, InMessage& message, std::uint32_t index, const HeldPart& held) {
    if (held.tag != message.tag || index >= message.places.size() || message.began[index] ||
        held.size != message.places[index].bytes) {
      links_.lose(from, changed);
      return false;
    }
    const Part& to = message.places[index];
    message.began[index] = true;
    --message.left;
    if (held.announced) {
      worker_->receive(held.kept, {to.data, to.bytes}, message.operation);
    } else {
      std::memcpy(to.data, held.kept != nullptr ? held.kept : held.bytes.data(), to.bytes);
    }
    return true;
  }

  void let_go(const HeldPart& held) {
    if (held.kept != nullptr) {
      worker_->release(held.kept);
    }
  }

  /// Hands over the heads of a rank, in their order.
  void take_messages(int from, Receiver& receiver) {
    FromRank& in = in_[static_cast<std::size_t>(from)];
    while (!links_.is_lost(from)) {
      const auto at = in.heads.find(in.next);
      if (at == in.heads.end()) {
        return;
      }
      HeldPart& held = at->second;
      if (!in.large && !check_head(in, held)) {
        let_go(held);
        links_.lose(from, changed);
        return;
      }
      if (in.large) {
        if (in.large->operation.pending > 0) {
          return;
        }
        const bool whole = in.large->operation.status == UCS_OK;
        in.large->checksum.add(held.bytes.data(), held.bytes.size());
        if (!whole || !in.large->checksum.is(held.header.large)) {
          links_.lose(from, whole ? changed : "a message of it did not arrive");
          return;
        }
        in.large.reset();
        --receiving_;
      }
      hand_over(from, in, held, receiver);
      let_go(held);
      in.heads.erase(at);
    }
  }

  static std::span<const std::byte> head_of(const HeldPart& held) {
    return held.kept != nullptr ? std::span(static_cast<const std::byte*>(held.kept), held.size)
                                : std::span<const std::byte>(held.bytes);
  }

  /// Whether a head is what was sent; one that is announced begins to arrive.
  bool check_head(FromRank& in, HeldPart& held) {
    const HeadHeader& header = held.header;
    const bool is_large = header.head_bytes > largest_head_at_once;
    if (held.size != header.head_bytes || held.size == 0 || held.size > largest_head ||
        is_large != held.announced) {
      return false;
    }
    std::optional<Checksum> large;
    if (is_large) {
      large.emplace(in.seals->next());
    }
    Checksum checksum = in.seals->next();
    const std::span<const std::byte> sealed = before_tag(header);
    checksum.add(sealed.data(), sealed.size());
    if (!is_large) {
      checksum.add(head_of(held).data(), held.size);
    }
    if (!checksum.is(header.tag)) {
      return false;
    }
    if (is_large) {
      held.bytes.resize(held.size);
      in.large.emplace(HeadTransfer{*large});
      ++receiving_;
      worker_->receive(std::exchange(held.kept, nullptr), held.bytes, in.large->operation);
    }
    return true;
  }

  /// A head that is right, and those of its parts that have come.
  void hand_over(int from, FromRank& in, const HeldPart& held, Receiver& receiver) {
    const HeadHeader& header = held.header;
    InMessage message;
    std::uint64_t bytes = 0;
    for (const Part& part : receiver.arrive(from, head_of(held), message.token)) {
      bytes += part.bytes;
      if (part.bytes > 0) {
        message.places.push_back(part);
      }
    }
    tessera::require(message.places.size() == header.parts && bytes == header.part_bytes,
                     "transport ucx: a message has other parts than were announced");
    ++in.next;
    if (header.parts == 0) {
      receiver.arrived(message.token);
      return;
    }
    message.tag = tag_of(*in.seals, bytes_of(header.number));
    message.left = message.places.size();
    message.began.resize(message.left);
    InMessage& awaited = in.awaited.emplace(header.number, std::move(message)).first->second;
    ++receiving_;
    const auto first = in.parts.lower_bound({header.number, 0});
    auto at = first;
    for (; at != in.parts.end() && at->first.first == header.number; ++at) {
      const bool is_placed = place(from, awaited, at->first.second, at->second);
      if (!is_placed || !at->second.announced) {
        let_go(at->second);
      }
    }
    in.parts.erase(first, at);
  }

  /// Reports the messages of a rank that are whole. Whether there are any.
  bool complete(int from, Receiver& receiver) {
    FromRank& in = in_[static_cast<std::size_t>(from)];
    bool any = false;
    if (in.large && in.large->operation.pending == 0) {
      take_messages(from, receiver);
      any = true;
    }
    return std::erase_if(in.awaited,
                         [&](auto& known) {
                           const InMessage& message = known.second;
                           if (message.left > 0 || message.operation.pending > 0) {
                             return false;
                           }
                           --receiving_;
                           if (message.operation.status == UCS_OK) {
                             receiver.arrived(message.token);
                           } else {
                             links_.lose(from, "UCX: " + ucx::text_of(message.operation.status));
                           }
                           return true;
                         }) != 0 ||
           any;
  }

  int rank_ = -1;
  std::optional<RunKey> key_;
  RankLinks links_;
  std::int64_t next_look_ = 0;
  bool connecting_ = false;
  std::vector<ToRank> out_;   // by rank
  std::vector<FromRank> in_;  // by rank
  std::list<OutMessage> sending_;
  std::vector<int> arrived_;        // senders of heads
  std::size_t receiving_ = 0;       // messages and heads whose data come
  std::unique_ptr<Worker> worker_;  // the first that ends: it uses what is above
};

}  // namespace

void register_plugin(tessera::plugin::Registrar& registrar) {
  ucx::quiet();
  registrar.add<MessageTransport>("ucx", [] { return std::make_unique<Ucx>(); });
}
