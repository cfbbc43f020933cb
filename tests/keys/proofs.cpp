// Both ends of a connection prove that they have the run's key.
#include "includes.hpp"

import tessera.base;
import tessera.collective;

#include "ends.hpp"

using namespace tessera::collective;
using namespace run_keys;

namespace {

constexpr std::size_t hash_bytes = RunKey::size;
const std::string magic = "tessera+";

/// What the other end of a socket says, once so many bytes are there.
std::string heard(const Raw& raw, Gate& gate, std::size_t bytes) {
  std::string all;
  until(5, [&] {
    gate.admit();
    all += raw.received();
    return all.size() >= bytes;
  });
  return all;
}

}  // namespace

TEST_CASE("ends with one key prove it to each other, and messages pass both ways in order") {
  const RunKey key = RunKey::random();
  Gate gate = gate_with(key);
  Proof proof = proof_at(gate.port(), key);
  std::vector<ProvenLink> in;
  REQUIRE(prove(proof, gate, in) == Proof::State::proven);
  REQUIRE(until(5, [&] {
    for (ProvenLink& link : gate.admit()) {
      in.push_back(std::move(link));
    }
    return in.size() == 1;
  }));
  CHECK(gate.unproven() == 0);
  MessageStream one(proof.take());
  MessageStream other(std::move(in.front()));
  for (int i = 0; i < 3; ++i) {
    one.send("to " + std::to_string(i));
    other.send("from " + std::to_string(i));
  }
  for (int i = 0; i < 3; ++i) {
    std::optional<std::string> there;
    std::optional<std::string> here;
    REQUIRE(until(5, [&] {
      one.progress();
      other.progress();
      there = there ? there : other.receive();
      here = here ? here : one.receive();
      return there && here;
    }));
    CHECK(*there == "to " + std::to_string(i));
    CHECK(*here == "from " + std::to_string(i));
  }
}

TEST_CASE("another key, and the right key for another purpose, are refused") {
  const RunKey key = RunKey::random();
  const auto [own, purpose] = GENERATE_COPY(table<RunKey, std::string>(
      {{RunKey::random(), "test"}, {key, "tes"}, {key, ""}, {key.derived("attempt 1"), "test"}}));
  Gate gate = gate_with(key);
  Proof proof = proof_at(gate.port(), own, purpose);
  std::vector<ProvenLink> in;
  CHECK(prove(proof, gate, in) == Proof::State::refused);
  CHECK(proof.why() == "refused");
  CHECK(proof.has_other_key());
  CHECK(in.empty());
}

TEST_CASE("a recorded proof does not open another connection") {
  const RunKey key = RunKey::random();
  Gate gate = gate_with(key);
  // What an honest process sends, recorded by who is between.
  std::vector<Socket> between = listen_at({"127.0.0.1"}, 0);
  Proof proof = proof_at(between.front().own_end().port, key);
  const Raw victim = accepted(between.front(), proof);
  std::string recorded;
  {
    const Raw there(gate.port());
    std::size_t admitted = 0;
    REQUIRE(until(5, [&] {
      const std::string some = victim.received();
      recorded += some;
      there.send(some);
      victim.send(there.received());
      admitted += gate.admit().size();
      return proof.progress() == Proof::State::proven && admitted == 1;
    }));
  }
  REQUIRE(recorded.size() == magic.size() + 2 * hash_bytes);
  const Raw again(gate.port());
  again.send(recorded);
  const std::string all = heard(again, gate, hash_bytes + 7);
  CHECK(all.substr(hash_bytes) == "refused");
}

TEST_CASE("a proof that is sent back to its sender proves nothing") {
  // An attacker listens, and answers with what the victim itself says.
  std::vector<Socket> listener = listen_at({"127.0.0.1"}, 0);
  Proof proof = proof_at(listener.front().own_end().port, RunKey::random());
  const Raw attacker = accepted(listener.front(), proof);
  std::string said;
  REQUIRE(until(5, [&] {
    proof.progress();
    said += attacker.received();
    return said.size() == magic.size() + hash_bytes;
  }));
  attacker.send(said.substr(magic.size()));
  said.clear();
  REQUIRE(until(5, [&] {
    proof.progress();
    said += attacker.received();
    return said.size() == hash_bytes;
  }));
  attacker.send(said);
  REQUIRE(until(5, [&] { return proof.progress() != Proof::State::going; }));
  CHECK(proof.progress() == Proof::State::refused);
  CHECK(proof.why() == "it has not proven that it has the run's key");
}

TEST_CASE("strangers get the word refused and nothing else, at once or after two seconds") {
  const RunKey key = RunKey::random();
  Gate gate = gate_with(key);
  const std::string nonce(hash_bytes, 'n');
  struct Stranger {
    const char* what;
    std::string says;
    std::size_t before = 0;  // bytes of a random number that come before the refusal
    double after = 0;        // seconds
  };
  const std::vector<Stranger> all = {
      {"a web browser", "GET / HTTP/1.1\r\nHost: alpha\r\n\r\n"},
      {"an older version", std::string("\x10\0\0\0\0\x12\0\0\0tessera launcher 1", 27)},
      {"a long message", std::string(1 << 16, 'x')},
      {"silent", "", 0, Gate::longest_proof},
      {"half a magic", magic.substr(0, 4), 0, Gate::longest_proof},
      {"half a number", magic + "half", 0, Gate::longest_proof},
      {"half a proof", magic + nonce + "half", hash_bytes, Gate::longest_proof},
      {"a wrong proof", magic + nonce + nonce, hash_bytes}};
  std::vector<std::unique_ptr<Raw>> connections;
  const auto begin = std::chrono::steady_clock::now();
  for (const Stranger& stranger : all) {
    connections.push_back(std::make_unique<Raw>(gate.port()));
    connections.back()->send(stranger.says);
  }
  std::vector<std::string> got(all.size());
  std::vector<double> seconds(all.size(), -1);
  std::size_t ended = 0;
  REQUIRE(until(10, [&] {
    CHECK(gate.admit().empty());
    for (std::size_t i = 0; i < all.size(); ++i) {
      bool is_end = false;
      got[i] += connections[i]->received(&is_end);
      if (is_end && seconds[i] < 0) {
        ++ended;
        seconds[i] =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      }
    }
    return ended == all.size();
  }));
  for (std::size_t i = 0; i < all.size(); ++i) {
    INFO(all[i].what);
    REQUIRE(got[i].size() == all[i].before + 7);
    CHECK(got[i].substr(all[i].before) == "refused");
    CHECK(seconds[i] >= all[i].after);
    CHECK(seconds[i] < all[i].after + 2);
  }
  CHECK(gate.unproven() == 0);
}
