// Strangers in numbers, beside those who have the key.
#include "includes.hpp"
#include "resident.hpp"

import tessera.base;
import tessera.collective;

#include "ends.hpp"

using namespace tessera::collective;
using namespace run_keys;
using tessera::testing::resident_kib;

TEST_CASE("a thousand silent connections take no room, and one with the key comes in beside them") {
  const RunKey key = RunKey::random();
  Gate gate = gate_with(key);
  std::vector<std::unique_ptr<Raw>> silent;
  const std::size_t before = resident_kib();
  for (int i = 0; i < 1000; ++i) {
    silent.push_back(std::make_unique<Raw>(gate.port()));
    if (i % 100 == 99) {
      CHECK(gate.admit().empty());
      CHECK(gate.unproven() <= Gate::most_unproven);
    }
  }
  CHECK(gate.unproven() == Gate::most_unproven);
  Proof proof = proof_at(gate.port(), key);
  std::vector<ProvenLink> in;
  CHECK(prove(proof, gate, in) == Proof::State::proven);
  CHECK(until(5, [&] { return !in.empty() || !(in = gate.admit()).empty(); }));
  CHECK(resident_kib() < before + 4096);
}

TEST_CASE("who comes from another address than most strangers keeps its place") {
  const RunKey key = RunKey::random();
  Gate gate = gate_with(key);
  const Raw slow(gate.port(), "127.0.0.2");
  REQUIRE(until(5, [&] {
    gate.admit();
    return gate.unproven() == 1;
  }));
  std::vector<std::unique_ptr<Raw>> many;
  for (std::size_t i = 0; i < 3 * Gate::most_unproven; ++i) {
    many.push_back(std::make_unique<Raw>(gate.port()));
    gate.admit();
  }
  bool ended = false;
  CHECK(slow.received(&ended).empty());
  CHECK_FALSE(ended);
  CHECK(gate.unproven() == Gate::most_unproven);
}

TEST_CASE("a connection that has proven itself is not replaced by others") {
  const RunKey key = RunKey::random();
  Gate gate = gate_with(key);
  Proof proof = proof_at(gate.port(), key);
  std::vector<ProvenLink> in;
  REQUIRE(prove(proof, gate, in) == Proof::State::proven);
  REQUIRE(until(5, [&] { return !in.empty() || !(in = gate.admit()).empty(); }));
  std::vector<std::unique_ptr<Raw>> many;
  for (std::size_t i = 0; i < 2 * Gate::most_unproven; ++i) {
    many.push_back(std::make_unique<Raw>(gate.port()));
    CHECK(gate.admit().empty());
  }
  MessageStream one(proof.take());
  MessageStream other(std::move(in.front()));
  one.send("still here");
  std::optional<std::string> got;
  CHECK(until(5, [&] {
    one.progress();
    other.progress();
    return (got = other.receive()).has_value();
  }));
  CHECK(got == "still here");
}

TEST_CASE("a socket listens at the addresses that it was told, and at no other") {
  const auto at = GENERATE(table<std::vector<std::string>, std::string>(
      {{{"127.0.0.1"}, "127.0.0.1"}, {{"127.0.0.1", "::1"}, "127.0.0.1"}, {{}, "::"}}));
  const std::vector<Socket> sockets = listen_at(std::get<0>(at), 0);
  REQUIRE_FALSE(sockets.empty());
  const std::string first = sockets.front().own_end().host;
  CHECK((first == std::get<1>(at) || (std::get<0>(at).empty() && first == "0.0.0.0")));
  for (const Socket& socket : sockets) {
    CHECK(socket.own_end().port == sockets.front().own_end().port);
    CHECK(is_loopback(socket.own_end()) == !std::get<0>(at).empty());
  }
  CHECK(meeting_addresses("localhost") == std::vector<std::string>{"127.0.0.1", "::1"});
  CHECK(meeting_addresses("127.0.0.3") == std::vector<std::string>{"127.0.0.3"});
  CHECK(meeting_addresses("0.0.0.0").empty());
  CHECK(addresses_beside("10.1.2.3", "alpha") == std::vector<std::string>{"10.1.2.3"});
  CHECK(addresses_beside("127.0.0.1", "localhost") == std::vector<std::string>{"127.0.0.1", "::1"});
  CHECK(addresses_beside("127.0.1.1", "alpha").empty());
  CHECK_THROWS_WITH(listen_at({"203.0.113.77"}, 0),
                    Catch::Contains("the address must be one of this machine's"));
}

TEST_CASE("an interface is named with those that exist") {
  CHECK_NOTHROW(check_interface("mesh.interface", "lo"));
  CHECK_NOTHROW(check_interface("mesh.interface", "127.0.0.1"));
  CHECK_NOTHROW(check_interface("mesh.interface", "0.0.0.0"));
  CHECK_THROWS_WITH(check_interface("mesh.interface", "ib7"),
                    Catch::Contains("mesh.interface: this machine has no interface or address "
                                    "'ib7' (expected one of ") &&
                        Catch::Contains("lo (127.0.0.1)"));
  setenv("TESSERA_INTERFACE", "lo", 1);
  CHECK(addresses_beside("10.1.2.3", "alpha").front() == "127.0.0.1");
  CHECK(announced_address() == "127.0.0.1");
  unsetenv("TESSERA_INTERFACE");
  CHECK(announced_address().empty());
}
