// What is changed on the way is noticed, and not used.
#include "includes.hpp"

import tessera.base;
import tessera.collective;

#include "ends.hpp"

using namespace tessera::collective;
using namespace run_keys;

namespace {

constexpr std::size_t frame = 4 + Checksum::size;  // what a message has besides its text

}  // namespace

TEST_CASE("a byte of a message that is changed on the way ends the connection") {
  const std::string text = "nine words";
  const std::size_t at = GENERATE(range(std::size_t{0}, std::size_t{frame + 10}));
  Relayed relay = relayed(RunKey::random());
  MessageStream one(std::move(relay.connects));
  MessageStream other(std::move(relay.listens));
  one.send(text);
  one.send("and more");
  one.progress();
  relay.pass([&](std::string& bytes) {
    REQUIRE(bytes.size() > at);
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
  });
  CHECK_FALSE(until(0.02, [&] {
    other.progress();
    return other.receive().has_value();
  }));
  if (at != 0 && at != 1 && at != 2) {  // a longer message is waited for, up to its limit
    CHECK(other.why().find("changed on the way") != std::string::npos);
  }
}

TEST_CASE("messages that are left out, repeated or moved end the connection") {
  const std::size_t size = frame + 1;
  const auto change = GENERATE(as<std::string>{}, "left out", "repeated", "moved");
  Relayed relay = relayed(RunKey::random());
  MessageStream one(std::move(relay.connects));
  MessageStream other(std::move(relay.listens));
  for (const char* text : {"a", "b", "c"}) {
    one.send(text);
  }
  one.progress();
  relay.pass([&](std::string& bytes) {
    REQUIRE(bytes.size() == 3 * size);
    const std::string a = bytes.substr(0, size);
    const std::string b = bytes.substr(size, size);
    const std::string c = bytes.substr(2 * size);
    bytes = change == "left out" ? a + c : change == "repeated" ? a + a + b : a + c + b;
  });
  std::vector<std::string> got;
  until(0.05, [&] {
    other.progress();
    while (auto message = other.receive()) {
      got.push_back(*message);
    }
    return false;
  });
  CHECK(got == std::vector<std::string>{"a"});
  CHECK(other.why() == "a message was changed on the way: its checksum is wrong");
}

TEST_CASE("a message that says it has 4 GiB ends the connection before anything is kept for it") {
  Relayed relay = relayed(RunKey::random());
  MessageStream other(std::move(relay.listens), std::size_t{16} << 20);
  relay.to_listens.send(std::string("\xff\xff\xff\xff", 4) + std::string(100, 'x'));
  CHECK(until(2, [&] {
    other.progress();
    CHECK_FALSE(other.receive());
    return !other.socket().open();
  }));
}

TEST_CASE("who does not read what is sent does not fill the memory of the sender") {
  Relayed relay = relayed(RunKey::random());
  MessageStream one(std::move(relay.connects));
  const std::string text(std::size_t{1} << 20, 'x');
  int sent = 0;
  for (; sent < 200 && one.progress(); ++sent) {
    one.send(text);
  }
  CHECK(sent < 100);
  CHECK(one.why() == "it does not read what is sent");
}

TEST_CASE("large data that is changed on the way is an error, wherever the change is") {
  const std::size_t bytes = 300'000;
  const std::size_t at = GENERATE(std::size_t{0}, std::size_t{99'999}, std::size_t{299'999},
                                  std::size_t{300'000}, std::size_t{300'015}, std::size_t{1 << 30});
  Relayed relay = relayed(RunKey::random());
  std::vector<std::byte> from(bytes, std::byte{7});
  std::vector<std::byte> to(bytes);
  const std::array sent = {std::span<const std::byte>(from).first(100'000),
                           std::span<const std::byte>(from).subspan(100'000)};
  const std::array received = {std::span(to).first(5), std::span(to).subspan(5)};
  std::size_t passed = 0;
  const auto pass = [&] {
    relay.pass([&](std::string& some) {
      if (at >= passed && at < passed + some.size()) {
        some[at - passed] = static_cast<char>(some[at - passed] ^ 0x40);
      }
      passed += some.size();
    });
    return true;
  };
  REQUIRE(send_sealed(relay.connects, sent, pass));
  if (at == std::size_t{1 << 30}) {
    CHECK(receive_sealed(relay.listens, received, pass));
    CHECK(to == from);
  } else {
    CHECK_THROWS_WITH(receive_sealed(relay.listens, received, pass),
                      Catch::Contains("changed on the way"));
  }
}

TEST_CASE("a number in a message cannot make room for more than the message has") {
  Writer writer;
  writer.put(~std::uint64_t{0});
  writer.put(std::uint32_t{7});
  Reader reader(writer.text());
  CHECK_THROWS_WITH(reader.count<std::uint64_t>(8), Catch::Contains("too short"));
  Writer fits;
  fits.put(std::uint32_t{2});
  fits.put(std::uint64_t{1});
  fits.put(std::uint64_t{2});
  Reader both(fits.text());
  CHECK(both.count<std::uint32_t>(8) == 2);
}
