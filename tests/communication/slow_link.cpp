// The link that tests slow down (TESSERA_LINK): data arrives when such a link would have moved it,
// whether a rank waits for it or not.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.collective;

using namespace tessera;
using tessera::collective::Work;
using tessera::collective::World;
using tessera::testing::check;
using tessera::testing::error_of;

namespace {

class Link {
 public:
  explicit Link(const char* speed) { setenv("TESSERA_LINK", speed, 1); }
  ~Link() { unsetenv("TESSERA_LINK"); }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
};

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

constexpr std::int64_t count = 250'000;  // 1 MB of f32: 10 ms at 0.1 GB/s

}  // namespace

TEST_CASE("a slow link takes its latency and its time for the bytes, one call after the other") {
  const Link link("latency_us=5000,bandwidth_gb=0.1");
  collective::run_threads(2, [](World& world) {
    const std::vector<float> mine(count, static_cast<float>(world.rank() + 1));
    std::vector<float> first(2 * count);
    std::vector<float> second(2 * count);
    const auto begin = std::chrono::steady_clock::now();
    Work one = world.everyone().all_gather_async(mine.data(), first.data(), count, DType::f32);
    Work two = world.everyone().all_gather_async(mine.data(), second.data(), count, DType::f32);
    one.wait();
    check(milliseconds_since(begin) >= 15, "milliseconds_since(begin) >= 15");
    two.wait();
    check(milliseconds_since(begin) >= 30, "milliseconds_since(begin) >= 30");
    check(first[0] == 1, "first[0] == 1");
    check(second[2 * count - 1] == 2, "second[2 * count - 1] == 2");
  });
}

TEST_CASE("a slow link moves data while the ranks compute") {
  const Link link("latency_us=5000,bandwidth_gb=0.1");
  collective::run_threads(2, [](World& world) {
    const std::vector<float> mine(count, 1);
    std::vector<float> all(2 * count);
    Work work = world.everyone().all_gather_async(mine.data(), all.data(), count, DType::f32);
    const auto issued = std::chrono::steady_clock::now();
    check(!work.done(), "work.done()");
    for (int tries = 0; tries < 10000 && !work.done(); ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    check(work.done(), "work.done()");
    check(milliseconds_since(issued) >= 14,
          "milliseconds_since(issued) >= 14");  // not before the link has moved it
    work.wait();
    check(all[2 * count - 1] == 1, "all[2 * count - 1] == 1");
  });
}

TEST_CASE("a speed that is none is refused") {
  for (const char* text :
       {"fast", "latency_us=1", "latency_us=1,bandwidth_gb=0", "latency_us=-1,bandwidth_gb=1",
        "latency_us=1,bandwidth=1", "latency_us=1x,bandwidth_gb=1", "latency_us,bandwidth_gb=1"}) {
    const Link link(text);
    CHECK(error_of([] { World::single(); }) ==
          "TESSERA_LINK: it is not the speed of a link (expected "
          "'latency_us=100,bandwidth_gb=0.5', with numbers above 0, got '" +
              std::string(text) + "')");
  }
}
