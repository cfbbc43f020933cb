// Calls whose sources and destinations are in shared memory, where peers read them in place.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.collective;

#include "ranks.hpp"

using namespace tessera;
using namespace tessera::collective;
using namespace collective_test;

TEST_CASE("a source in a shared buffer is read by the peers and may be reused after wait") {
  on_all_kinds_of_ranks(3, [](World& world) {
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
        check(out == std::vector<float>(n, static_cast<float>(3 + 3 * round)),
              "all_reduce from a shared buffer");
        std::fill_n(data, n, static_cast<float>(c.rank() * round));
        c.all_reduce(data, data, count, DType::f32);
        check(data[0] == static_cast<float>(3 * round) && data[n - 1] == data[0],
              "all_reduce in place in a shared buffer");
        std::fill_n(data + n * static_cast<std::size_t>(c.rank()), n,
                    static_cast<float>(c.rank() + round));
        c.all_gather(data + n * static_cast<std::size_t>(c.rank()), data, count, DType::f32);
        for (std::size_t r = 0; r < 3; ++r) {
          check(data[r * n] == static_cast<float>(r) + static_cast<float>(round) &&
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
    check(std::all_of(data, data + count, [](float x) { return x == 11.0F; }), "1 + 10");
  });
}

TEST_CASE("memory for peers is reached by them, cached, and freed after the world") {
  on_all_kinds_of_ranks(2, [](World& world) {
    Communicator& c = world.everyone();
    constexpr std::int64_t count = 100'000;
    const void* first = nullptr;
    for (int round = 0; round < 10; ++round) {
      const std::shared_ptr<void> memory = world.allocate_for_peers(count * sizeof(float));
      check(memory != nullptr && world.peers_reach(memory.get()), "memory that peers reach");
      first = round == 0 ? memory.get() : first;
      check(memory.get() == first, "the same block again");
      auto* const data = static_cast<float*>(memory.get());
      std::fill_n(data, count, static_cast<float>(world.rank() + round));
      c.all_reduce(data, data, count, DType::f32);
      check(data[0] == static_cast<float>(1 + 2 * round) && data[count - 1] == data[0], "sum");
    }
    float own = 0;
    check(!world.peers_reach(&own), "a private variable");
  });
  std::shared_ptr<void> left;
  run_threads(2, [&](World& world) {
    auto memory = world.allocate_for_peers(1 << 20);
    if (world.rank() == 0) {
      left = std::move(memory);
    }
  });
  *static_cast<float*>(left.get()) = 1;  // the region lives as long
  left.reset();
  CHECK(World::single()->allocate_for_peers(1 << 20) == nullptr);
}

TEST_CASE("a source that is dropped stays until the peers have read it") {
  // Rank 1 reads the source of rank 0 long after that rank has ended its part and dropped it.
  constexpr std::int64_t count = 100'000;
  std::atomic<bool> looked{false};
  std::atomic<bool> gone{false};
  run_threads(2, [&](World& world) {
    Communicator& c = world.everyone();
    std::vector<float> piece(count / 2);
    auto memory = world.allocate_for_peers(count * sizeof(float));
    auto* const data = static_cast<float*>(memory.get());
    std::fill_n(data, count, world.rank() == 0 ? 1.0F : 2.0F);
    const Segment segment{data, piece.data(), count / 2, count};
    Work work = c.reduce_scatter_async({&segment, 1}, DType::f32);
    if (world.rank() == 0) {
      work.wait();
      std::shared_ptr<void> watched(data, [&, memory](void*) { gone = true; });
      memory.reset();
      c.keep_until_read(std::move(watched));
      // What would overwrite it, were it free.
      const auto other = world.allocate_for_peers(count * sizeof(float));
      std::fill_n(static_cast<float*>(other.get()), count, -1.0F);
      c.drop_read();
      check(!gone, "rank 1 has not read it yet");
      looked = true;
      c.barrier();
      c.wait_sources_free();
      c.drop_read();
      check(gone, "nobody reads it any more");
    } else {
      while (!looked && !world.failed()) {
        std::this_thread::yield();
      }
      work.wait();
      c.barrier();
    }
    check(std::ranges::all_of(piece, [](float x) { return x == 3.0F; }), "1 + 2");
  });
}

TEST_CASE("a source may be overwritten when a call that was issued after its own is complete") {
  // Rank 1 publishes both calls, and reads the sources of rank 0 much later.
  constexpr std::int64_t count = 100'000;
  std::atomic<bool> reads{false};
  run_threads(2, [&](World& world) {
    Communicator& c = world.everyone();
    std::vector<float> pieces[2] = {std::vector<float>(count / 2), std::vector<float>(count / 2)};
    std::shared_ptr<void> sources[2];
    Segment segments[2];
    for (int i = 0; i < 2; ++i) {
      sources[i] = world.allocate_for_peers(count * sizeof(float));
      auto* const data = static_cast<float*>(sources[i].get());
      std::fill_n(data, count, world.rank() == 0 ? 1.0F : 2.0F);
      segments[i] = {data, pieces[i].data(), count / 2, count};
    }
    Work first = c.reduce_scatter_async({&segments[0], 1}, DType::f32);
    if (world.rank() == 0) {
      first.wait();
    }
    Work second = c.reduce_scatter_async({&segments[1], 1}, DType::f32);
    if (world.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      reads = true;
      first.wait();
    }
    second.wait();
    check(reads, "rank 1 has read the first source");
    std::fill_n(static_cast<float*>(sources[0].get()), count, -1.0F);
    for (const std::vector<float>& piece : pieces) {
      check(std::ranges::all_of(piece, [](float x) { return x == 3.0F; }), "1 + 2");
    }
    c.barrier();
    c.wait_sources_free();
  });
}

TEST_CASE("a sum of segments that is not in place is refused") {
  run_threads(2, [](World& world) {
    float from = 1;
    float to = 0;
    const Segment segment{&from, &to, 0, 1};
    std::string text;
    try {
      world.everyone().all_reduce_async(std::span(&segment, 1), DType::f32).wait();
    } catch (const Error& error) {
      text = error.what();
    }
    check(text.find("in place") != std::string::npos, text);
  });
}
