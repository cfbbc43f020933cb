// Who has the key and says what makes no sense.
#include <sys/wait.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include "free_port.hpp"
#include "includes.hpp"

import tessera.base;
import tessera.plugin;
import tessera.collective;

using namespace tessera;
using namespace tessera::collective;

#include "../collective/processes.hpp"
#include "ends.hpp"

using namespace run_keys;

namespace {

/// Messages that begin as those of a launcher or a spare machine, and go on with anything.
std::string nonsense(std::mt19937& random) {
  Writer writer;
  writer.put(static_cast<std::uint8_t>(random() % 14));
  if (random() % 2 == 0) {
    writer.put(std::string_view("tessera launcher 2"));
    return std::string(writer.text()) + std::string(random() % 8, 'x');  // half a protocol number
  }
  for (std::size_t bytes = random() % 200; bytes > 0; --bytes) {
    writer.put(static_cast<std::uint8_t>(random() % 3 == 0 ? 0xff : random()));
  }
  return std::string(writer.text());
}

}  // namespace

TEST_CASE("messages without sense of who has the key neither end nor crash machine 0") {
  const RunKey key = RunKey::random();
  const int port = tessera::testing::free_port();
  std::atomic<int> sent{0};
  std::thread others([&] {
    std::mt19937 random(7);
    ProofFailure failure;
    for (int i = 0; i < 30; ++i) {
      std::optional<ProvenLink> link;
      until(10, [&] {
        link = connect_proven({"127.0.0.1", port}, key, "launchers meet", 1, failure);
        return link.has_value();
      });
      if (link) {
        MessageStream stream(std::move(*link));
        stream.send(nonsense(random));
        sent += stream.progress() ? 1 : 0;
      }
    }
  });
  setenv("TESSERA_TIMEOUT", "4", 1);
  const collective_test::Outcome outcome = collective_test::as_program([&] {
    plugin::host().load(TESSERA_TCP);
    hold_run_key(key);
    return launch(
        {.ranks = 2, .place = LauncherPlace{0, 2, "127.0.0.1:" + std::to_string(port), 1}},
        [](World&) { return 0; });
  });
  others.join();
  unsetenv("TESSERA_TIMEOUT");
  INFO(outcome.errors);
  CHECK(sent >= 10);          // as many as came while it waited
  CHECK(outcome.code == 99);  // it has thrown
  CHECK(outcome.errors.find("machine 1 of 2 did not come to 127.0.0.1") != std::string::npos);
  CHECK(outcome.errors.find("is not of a launcher: it is sent away") != std::string::npos);
}
