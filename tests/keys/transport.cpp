// The transport tcp against a rank that is played here, through a connection that changes bytes.
#include <cstdlib>
#include <thread>

#include "free_port.hpp"
#include "includes.hpp"

import tessera.base;
import tessera.plugin;
import tessera.collective;

#include "ends.hpp"

using namespace tessera;
using namespace tessera::collective;
using namespace run_keys;

namespace {

/// Receives messages with one part of this size.
class Receives final : public MessageTransport::Receiver {
 public:
  explicit Receives(std::size_t bytes) : part(bytes) {}
  std::vector<MessageTransport::Part> arrive(int from, std::span<const std::byte> head,
                                             std::uint64_t& token) override {
    CHECK(from == 1);
    ++heads;
    text.assign(reinterpret_cast<const char*>(head.data()), head.size());
    token = 9;
    return {{part.data(), part.size()}};
  }
  void arrived(std::uint64_t token) override {
    CHECK(token == 9);
    ++whole;
  }
  void sent(std::uint64_t) override {}
  void lost(int rank, std::string_view why) override {
    CHECK(rank == 1);
    reason = why;
  }

  std::vector<std::byte> part;
  std::string text;
  std::string reason;
  int heads = 0;
  int whole = 0;
};

constexpr std::size_t part_bytes = 200'000;
const std::string head = "a head";

/// The bytes of a message of rank 1, after those of the rank itself: see plugins/tcp.
std::string sealed(ChecksumSequence& seals, const std::string& text) {
  Checksum checksum = seals.next();
  checksum.add(text.data(), text.size());
  const Checksum::Tag tag = checksum.tag();
  return text + std::string(reinterpret_cast<const char*>(tag.data()), tag.size());
}

std::string bytes_of_message(ChecksumSequence& seals) {
  const std::array<std::uint64_t, 2> header = {head.size(), part_bytes};
  return sealed(seals,
                std::string(reinterpret_cast<const char*>(header.data()), sizeof(header)) + head) +
         sealed(seals, std::string(part_bytes, 'p'));
}

/// Rank 1 meets rank 0 at this port; where rank 0 listens for messages.
Endpoint meet_first(const RunKey& key, int port) {
  ProofFailure failure;
  std::optional<ProvenLink> link;
  REQUIRE(until(10, [&] {
    link = connect_proven({"localhost", port}, key, "ranks meet, job keys", 1, failure);
    return link.has_value();
  }));
  MessageStream first(std::move(*link));
  Writer writer;
  writer.put(std::string_view("tessera tcp 2"));
  writer.put(1);
  writer.put(2);
  writer.put(std::string_view("rank 1"));
  writer.put(std::string_view(""));
  writer.put(1);
  first.send(writer.text());
  std::optional<std::string> answer;
  REQUIRE(until(10, [&] {
    first.progress();
    return (answer = first.receive()).has_value();
  }));
  Reader reader(*answer);
  CHECK(reader.get<ErrorKind>() == ErrorKind::run);
  CHECK(reader.text().empty());
  CHECK(reader.text() == "rank 0");
  CHECK(reader.text().empty());
  return {"127.0.0.1", reader.get<int>()};
}

}  // namespace

TEST_CASE("a message of a rank that is changed on the way is not used, and the rank is lost") {
  static const bool loaded = [] {
    plugin::host().load(TESSERA_TCP);
    return true;
  }();
  REQUIRE(loaded);
  // Bytes of what comes after the proof: who it is (24), then the message; -1: nothing is changed.
  const int hello = 8 + static_cast<int>(Checksum::size);
  const int parts = hello + 16 + static_cast<int>(head.size() + Checksum::size);
  const auto [at, heads] = GENERATE_COPY(table<int, int>({{-1, 1},
                                                          {2, 0},
                                                          {hello + 1, 0},
                                                          {hello + 5, 0},
                                                          {hello + 9, 0},
                                                          {hello + 18, 0},
                                                          {hello + 25, 0},
                                                          {parts + 4, 1},
                                                          {parts + 150'000, 1},
                                                          {parts + 200'001, 1}}));
  CAPTURE(at);
  const RunKey key = RunKey::random();
  hold_run_key(key);
  const int port = tessera::testing::free_port();
  setenv("TESSERA_MEET", ("localhost:" + std::to_string(port)).c_str(), 1);
  setenv("TESSERA_JOB", "keys", 1);
  const auto transport = plugin::host().find<MessageTransport>("tcp")();
  std::vector<std::string> texts;
  std::thread meeting([&] { texts = transport->exchange(0, 2, "rank 0"); });
  const Endpoint first = meet_first(key, port);
  meeting.join();
  CHECK(texts == std::vector<std::string>{"rank 0", "rank 1"});

  Receives receiver(part_bytes);
  std::optional<ProvenLink> link;
  ProofFailure failure;
  std::thread connecting(
      [&] { link = connect_proven(first, key, "messages of ranks, job keys", 5, failure); });
  until(0.3, [&] {
    transport->progress(receiver);
    return false;
  });
  connecting.join();
  REQUIRE(link);
  const std::array<std::int32_t, 2> who = {1, 0};
  std::string bytes =
      sealed(link->out, std::string(reinterpret_cast<const char*>(who.data()), sizeof(who)));
  bytes += bytes_of_message(link->out);
  if (at >= 0) {
    bytes[static_cast<std::size_t>(at)] =
        static_cast<char>(bytes[static_cast<std::size_t>(at)] ^ 2);
  }
  const Raw raw(std::move(link->socket));
  std::thread sending([&] { raw.send(bytes); });
  const bool right = at < 0;
  until(right ? 5 : 0.8, [&] {  // a rank is lost half a second after its connection
    transport->progress(receiver);
    return right ? receiver.whole == 1 : !receiver.reason.empty();
  });
  shutdown(raw.descriptor(), SHUT_RDWR);
  sending.join();
  CHECK(receiver.heads == heads);
  CHECK(receiver.whole == (right ? 1 : 0));
  if (right) {
    CHECK(receiver.text == head);
    CHECK(receiver.part == std::vector<std::byte>(part_bytes, std::byte{'p'}));
  } else if (heads == 1) {
    CHECK(receiver.reason == "what it sent was changed on the way: a checksum is wrong");
  }
  transport->finish(false);
}

TEST_CASE("a rank with another transport or version is refused by that name") {
  plugin::host().load(TESSERA_TCP);
  const auto [magic, why] = GENERATE(table<const char*, const char*>(
      {{"tessera ucx 1", "a rank uses the transport 'ucx'; name one that all machines have"},
       {"tessera tcp 1", "a rank has another version of Tessera than rank 0"},
       {"", "a rank has another version of Tessera than rank 0"}}));
  const RunKey key = RunKey::random();
  hold_run_key(key);
  const int port = tessera::testing::free_port();
  setenv("TESSERA_MEET", ("localhost:" + std::to_string(port)).c_str(), 1);
  setenv("TESSERA_JOB", "keys", 1);
  const auto transport = plugin::host().find<MessageTransport>("tcp")();
  std::string refused;
  std::thread meeting([&] {
    try {
      transport->exchange(0, 2, "rank 0");
    } catch (const Error& error) {
      refused = error.what();
    }
  });
  ProofFailure failure;
  std::optional<ProvenLink> link;
  REQUIRE(until(10, [&] {
    link = connect_proven({"localhost", port}, key, "ranks meet, job keys", 1, failure);
    return link.has_value();
  }));
  MessageStream first(std::move(*link));
  Writer writer;
  writer.put(std::string_view(magic));
  first.send(writer.text());
  std::optional<std::string> answer;
  REQUIRE(until(10, [&] {
    first.progress();
    return (answer = first.receive()).has_value();
  }));
  meeting.join();
  CHECK(refused.find(why) != std::string::npos);
  Reader reader(*answer);
  CHECK(reader.get<ErrorKind>() == ErrorKind::input);
  CHECK(reader.text() == refused);
}
