// Every collective against brute force, on ranks that are threads and on ranks that are processes.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.collective;

#include "brute_force.hpp"
#include "ranks.hpp"

using namespace tessera;
using namespace tessera::collective;
using namespace collective_test;

TEST_CASE("collectives equal brute force for every type, size and count") {
  const int ranks = GENERATE(1, 2, 3, 4, 5);
  on_all_kinds_of_ranks(ranks, [](World& world) { check_all(world.everyone()); });
}

TEST_CASE("segments with short and empty pieces are gathered and reduced") {
  const int ranks = GENERATE(1, 2, 3, 4);
  on_all_kinds_of_ranks(ranks, [](World& world) {
    for (int round = 0; round < 5; ++round) {
      check_segments(world.everyone(), true);
      check_segments(world.everyone(), false);
    }
  });
}

TEST_CASE("segments are summed in place on every rank") {
  const int ranks = GENERATE(1, 2, 3, 4);
  on_all_kinds_of_ranks(ranks, [](World& world) {
    for (int round = 0; round < 3; ++round) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f64, DType::i32}) {
        for (const int memory : {0, 1, 2}) {
          check_in_place(world.everyone(), dtype, memory);
        }
      }
    }
  });
}

TEST_CASE("the terms of a reduction may be a part of the ranks") {
  const int ranks = GENERATE(1, 2, 3, 5);
  on_all_kinds_of_ranks(ranks, [](World& world) {
    check_terms(world.everyone(), false);
    check_terms(world.everyone(), true);
  });
  const auto world = World::single();
  float x = 1;
  const Segment segment{&x, &x, 1, 1};
  const auto refused = [&](const MemberRange& terms) {
    return tessera::testing::error_of([&] {
      world->everyone()
          .all_reduce_async(std::span(&segment, 1), DType::f32, {.terms = terms})
          .wait();
    });
  };
  CHECK(refused({0, 2}) ==
        "all_reduce of segments: no such members in the group (expected some of 0 to 0, got 2 from "
        "0 on)");
  CHECK(!refused({1, 1}).empty());
  CHECK(!refused({-1, 1}).empty());
}

TEST_CASE("ranks that reduce different terms are told so") {
  CHECK(tessera::testing::error_of([] {
          run_threads(2, [](World& world) {
            float x = 1;
            const Segment segment{&x, &x, 1, 1};
            Communicator& c = world.everyone();
            c.all_reduce_async(std::span(&segment, 1), DType::f32,
                               {.terms = {.first = c.rank(), .count = 1}})
                .wait();
          });
        }).find("all_reduce of segments") != std::string::npos);
}

TEST_CASE("bf16 gradients are summed in f32 and can be kept in f32") {
  on_all_kinds_of_ranks(3, [](World& world) {
    Communicator& c = world.everyone();
    // 256 + 1 + 1: in bf16 steps each 1 would be lost, the sum in f32 is 258.
    const auto bits = static_cast<std::uint16_t>(c.rank() == 0 ? 0x4380 : 0x3f80);
    const std::vector<std::uint16_t> source(3, bits);
    std::vector<std::uint16_t> out(3);
    c.all_reduce(source.data(), out.data(), 3, DType::bf16);
    check(out[0] == 0x4381, "258 rounds once");
    // 256 + 1 + 2 is between 258 and 260, whose last bit is even.
    const auto tie = static_cast<std::uint16_t>(c.rank() == 0   ? 0x4380
                                                : c.rank() == 1 ? 0x3f80
                                                                : 0x4000);
    c.all_reduce(&tie, out.data(), 1, DType::bf16);
    check(out[0] == 0x4382, "259 rounds to even");
    float result = 0;
    const Segment segment{source.data(), &result, 1, 3};
    c.reduce_scatter(std::span(&segment, 1), DType::bf16, {.destination_f32 = true});
    check(result == 258.0F, "f32 destination");
  });
}

TEST_CASE("the sum has the same bits on every rank and along a binary tree") {
  on_all_kinds_of_ranks(7, [](World& world) {
    Communicator& c = world.everyone();
    for (const std::int64_t count : {1000, 100'000}) {
      const auto n = static_cast<std::size_t>(count);
      const auto value = [](int rank, std::size_t i) {
        return std::sin(static_cast<float>(i * 7 + static_cast<std::size_t>(rank))) * 1e3F;
      };
      std::vector<float> own(n);
      std::vector<float> out(n);
      for (std::size_t i = 0; i < n; ++i) {
        own[i] = value(c.rank(), i);
      }
      c.all_reduce(own.data(), out.data(), count, DType::f32);
      for (std::size_t i = 0; i < n; ++i) {
        const float four = (value(0, i) + value(1, i)) + (value(2, i) + value(3, i));
        const float wanted = four + ((value(4, i) + value(5, i)) + value(6, i));
        check(out[i] == wanted, "((0 1) (2 3)) ((4 5) 6)");
      }
    }
  });
}

TEST_CASE("many calls are in flight and complete in order") {
  on_all_kinds_of_ranks(3, [](World& world) {
    Communicator& c = world.everyone();
    constexpr int calls = 200;  // more than the ring of publications holds
    std::vector<std::vector<float>> out(calls, std::vector<float>(100'000));
    std::vector<Work> works;
    for (int i = 0; i < calls; ++i) {
      auto& data = out[static_cast<std::size_t>(i)];
      std::fill(data.begin(), data.end(), static_cast<float>(c.rank() + i));
      const std::int64_t count = i % 3 == 0 ? 100'000 : 10 * i;
      works.push_back(c.all_reduce_async(data.data(), data.data(), count, DType::f32));
    }
    works.back().wait();
    for (int i = calls - 1; i >= 0; --i) {
      works[static_cast<std::size_t>(i)].wait();
      check(i == 0 || out[static_cast<std::size_t>(i)][0] == static_cast<float>(3 + 3 * i),
            "call " + std::to_string(i));
    }
  });
}

TEST_CASE("groups work side by side and do not wait in a circle") {
  on_all_kinds_of_ranks(4, [](World& world) {
    const std::vector<int> row = world.rank() < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
    const std::vector<int> column =
        world.rank() % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{3, 1};
    Communicator& a = world.communicator(row);
    Communicator& b = world.communicator(column);
    Communicator& named = world.communicator(row, "other");
    check(&a == &world.communicator(row) && &a != &named, "one communicator a list and name");
    check(std::ranges::equal(b.global_ranks(), column) &&
              b.global_ranks()[static_cast<std::size_t>(b.rank())] == world.rank(),
          "rank order as given");
    for (int i = 0; i < 300; ++i) {
      // Ranks wait in different orders; large sums need two steps of every rank.
      std::vector<float> x(100'000, static_cast<float>(world.rank()));
      std::vector<float> y = x;
      Work first = a.all_reduce_async(x.data(), x.data(), 100'000, DType::f32);
      Work second = b.all_reduce_async(y.data(), y.data(), 100'000, DType::f32);
      if (world.rank() == 0 || world.rank() == 3) {
        first.wait();
        second.wait();
      } else {
        second.wait();
        first.wait();
      }
      check(x[99'999] == static_cast<float>(world.rank() < 2 ? 1 : 5), "row");
      check(y[99'999] == static_cast<float>(world.rank() % 2 == 0 ? 2 : 4), "column");
    }
  });
}

TEST_CASE("ranks tell for how long they have waited for others") {
  on_all_kinds_of_ranks(4, [](World& world) {
    check(world.waits_of(world.rank()).step == -1, "nothing is told before");
    world.everyone().barrier();
    constexpr int steps = 4;
    for (int step = 1; step <= steps; ++step) {
      if (world.rank() == 3) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
      world.everyone().barrier();
      world.tell_waits(step);
      world.everyone().barrier();
    }
    // Ranks of this machine are known at once, others a little later.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    std::array<double, 4> waited{};
    for (int rank = 0; rank < 4; ++rank) {
      RankWaits told = world.waits_of(rank);
      while (told.step < steps && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        told = world.waits_of(rank);
      }
      check(told.step == steps, "it has told the last step");
      waited[static_cast<std::size_t>(rank)] = told.seconds;
    }
    const double least = *std::min_element(waited.begin(), waited.end() - 1);
    check(waited[3] >= 0 && least > waited[3] + 0.1 && least < 10, "all have waited for the last");
    check(world.machine_of(0).empty() == world.machine_of(3).empty(), "machines have names");
    world.everyone().barrier();
  });
}

TEST_CASE("messages of equal tags arrive in order, of different tags in any") {
  on_all_kinds_of_ranks(3, [](World& world) {
    Communicator& c = world.everyone();
    const int next = (c.rank() + 1) % 3;
    const int previous = (c.rank() + 2) % 3;
    for (int i = 0; i < 100; ++i) {
      std::vector<int> a(static_cast<std::size_t>(i), c.rank());
      const int b = c.rank() + i;
      c.send(a.data(), i, DType::i32, next, 1);
      c.send(&b, 1, DType::i32, next, 2);
      const int second = b + 1;
      c.send(&second, 1, DType::i32, next, 2);
      int x = -1;
      int y = -1;
      std::vector<int> z(static_cast<std::size_t>(i));
      Work first = c.receive_async(&x, 1, DType::i32, previous, 2);
      Work other = c.receive_async(&y, 1, DType::i32, previous, 2);
      other.wait();
      first.wait();
      c.receive(z.data(), i, DType::i32, previous, 1);
      check(x == previous + i && y == x + 1, "order within a tag");
      check(z == std::vector<int>(static_cast<std::size_t>(i), previous), "another tag");
    }
  });
}

TEST_CASE("ten thousand small calls in a row") {
  on_all_kinds_of_ranks(2, [](World& world) {
    Communicator& c = world.everyone();
    for (int i = 0; i < 10'000; ++i) {
      float x = static_cast<float>(i);
      c.all_reduce(&x, &x, 1, DType::f32);
      check(x == static_cast<float>(2 * i), "call " + std::to_string(i));
    }
  });
}

TEST_CASE("shared buffers are zero, and their memory is used again") {
  on_all_kinds_of_ranks(2, [](World& world) {
    Communicator& c = world.everyone();
    for (int i = 0; i < 200; ++i) {
      SharedBuffer buffer = world.allocate(std::size_t{64} << 20);  // 25 GiB in all
      auto* data = reinterpret_cast<std::int64_t*>(buffer.data());
      check(data[0] == 0 && data[1000] == 0, "zero-filled");
      data[0] = data[1000] = c.rank() + 1;
      std::vector<std::int64_t> out(2);
      c.all_gather(data + 1000, out.data(), 1, DType::i64);
      check(out == std::vector<std::int64_t>{1, 2}, "read by the peer");
    }
  });
}

TEST_CASE("a simulated world has a size and moves nothing") {
  const auto world = World::fake(5, 1000);
  Communicator& c = world->everyone();
  CHECK(c.size() == 1000);
  CHECK(c.rank() == 5);
  float x = 3;
  c.all_reduce(&x, &x, 1, DType::f32);
  c.barrier();
  CHECK(x == 3);
}

TEST_CASE("without a launch the world has one rank") {
  World& world = World::current();
  CHECK(world.size() == 1);
  CHECK(world.transport() == Transport::single);
  double x = 2;
  world.everyone().all_reduce(&x, &x, 1, DType::f64, ReduceOp::avg);
  CHECK(x == 2);
  CHECK_THROWS_AS(world.communicator(std::vector<int>{1}), Error);
  CHECK_THROWS_AS(world.everyone().all_reduce(&x, &x, 1, DType::i64, ReduceOp::avg), Error);
}
