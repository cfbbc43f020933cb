// Calls whose sources and destinations are in shared memory, where peers read them in place.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
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

TEST_CASE("a source in a shared buffer is read by the peers and may be reused after wait") {
  on_ranks(3, [](World& world) {
    Communicator& c = world.everyone();
    for (const std::int64_t count : {100, 300'001}) {
      SharedBuffer buffer = c.allocate(static_cast<std::size_t>(count) * 4 * 3);
      auto* data = reinterpret_cast<float*>(buffer.data());
      const auto n = static_cast<std::size_t>(count);
      for (int round = 0; round < 20; ++round) {
        std::fill_n(data, n, static_cast<float>(c.rank() + round));
        std::vector<float> out(n);
        c.all_reduce(data, out.data(), count, DType::f32);
        std::fill_n(data, n, -1.0F);  // must disturb no peer
        expect(out == std::vector<float>(n, static_cast<float>(3 + 3 * round)),
               "all_reduce from a shared buffer");
        std::fill_n(data, n, static_cast<float>(c.rank() * round));
        c.all_reduce(data, data, count, DType::f32);
        expect(data[0] == static_cast<float>(3 * round) && data[n - 1] == data[0],
               "all_reduce in place in a shared buffer");
        std::fill_n(data + n * static_cast<std::size_t>(c.rank()), n,
                    static_cast<float>(c.rank() + round));
        c.all_gather(data + n * static_cast<std::size_t>(c.rank()), data, count, DType::f32);
        for (std::size_t r = 0; r < 3; ++r) {
          expect(data[r * n] == static_cast<float>(r) + static_cast<float>(round) &&
                     data[r * n + n - 1] == data[r * n],
                 "all_gather in place in a shared buffer");
        }
      }
    }
  });
}

TEST_CASE(
    "a rank that waits late reads what the others gave, not what they have computed in place") {
  constexpr int count = 100;
  std::atomic<bool> first_is_done{false};
  run_threads(2, [&](World& world) {
    Communicator& c = world.everyone();
    SharedBuffer buffer = c.allocate(count * sizeof(float));  // peers read it where it is
    auto* data = reinterpret_cast<float*>(buffer.data());
    std::fill_n(data, count, world.rank() == 0 ? 1.0F : 10.0F);
    Work work = c.all_reduce_async(data, data, count, DType::f32);
    // A second at most: a rank that lets others read what it computes in waits for them.
    for (int i = 0; i < 100 && world.rank() == 1 && !first_is_done; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    work.wait();
    first_is_done = true;
    expect(std::all_of(data, data + count, [](float x) { return x == 11.0F; }), "1 + 10");
  });
}
