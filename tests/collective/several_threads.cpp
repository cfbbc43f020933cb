// Several threads of one rank, each with a communicator of its own.
#include <atomic>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.collective;

#include "ranks.hpp"

using namespace tessera;
using namespace tessera::collective;
using namespace collective_test;

namespace {

/// Runs the body for two communicators of all ranks, in two threads at the same time.
void in_two_threads(World& world, const std::string& names,
                    const std::function<void(Communicator&)>& body) {
  std::vector<int> all(static_cast<std::size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  std::atomic<int> ready{0};
  const auto work = [&](const std::string& name) {
    for (++ready; ready < 2;) {  // both begin together
      std::this_thread::yield();
    }
    try {
      body(world.communicator(all, name));
    } catch (const Error& error) {
      world.publish_error(error.what());  // ends the waits of the other thread
    }
  };
  std::thread other(work, names + " a");
  work(names + " b");
  other.join();
  world.throw_if_failed();
}

}  // namespace

TEST_CASE("two threads of a rank use two communicators at the same time") {
  REQUIRE_NOTHROW(run_threads(2, [](World& world) {
    in_two_threads(world, "thread", [](Communicator& c) {
      for (int i = 0; i < 300; ++i) {
        const SharedBuffer buffer = c.allocate(4096);  // freed while the other thread calls
        auto* data = reinterpret_cast<std::int64_t*>(buffer.data());
        *data = i + c.rank();
        std::vector<std::int64_t> out(2);
        c.all_gather(data, out.data(), 1, DType::i64);
        check(out == std::vector<std::int64_t>{i, i + 1}, "call " + std::to_string(i));
      }
    });
  }));
}

TEST_CASE("the flight recorder keeps the calls of all threads of a rank") {
  REQUIRE_NOTHROW(run_threads(1, [](World& world) {
    constexpr int calls = 32;  // of each of two threads: as many as the recorder keeps
    for (int round = 0; round < 1000; ++round) {
      in_two_threads(world, "thread", [](Communicator& c) {
        for (int i = 0; i < calls; ++i) {
          c.barrier();
        }
      });
      const std::string recorded = world.recent_calls(2 * calls);
      for (int i = calls * round; i < calls * (round + 1); ++i) {
        for (const std::string name : {"thread a", "thread b"}) {
          const std::string call =
              "barrier(), call " + std::to_string(i) + " of group " + name + " [0]\n";
          check(recorded.find(call) != std::string::npos, "no " + call + recorded);
        }
      }
    }
  }));
}
