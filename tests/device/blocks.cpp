// The caching allocator, on a source that counts: blocks are split and joined, reuse is in the
// streams' order, a cap, trimming, and who holds what when there is none left.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.device;

using namespace tessera;
using tessera::testing::contains;
using tessera::testing::error_of;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

class Source final : public MemorySource {
 public:
  ~Source() override {
    for (const auto& [data, bytes] : held) {  // of blocks that a test has left in use
      std::free(data);
    }
  }
  void* take(std::size_t bytes) override {
    if (in_use + bytes > limit) {
      return nullptr;
    }
    void* data = std::aligned_alloc(4096, bytes);
    held[data] = bytes;
    in_use += bytes;
    ++taken;
    return data;
  }
  void give_back(void* data, std::size_t bytes) noexcept override {
    CHECK(held.at(data) == bytes);
    held.erase(data);
    in_use -= bytes;
    std::free(data);
  }
  void finish() override { ++finished; }

  std::map<void*, std::size_t> held;
  std::size_t in_use = 0;
  std::size_t limit = std::size_t{1} << 40;
  int taken = 0;
  int finished = 0;
};

/// A source, its allocator, and a way to write it short.
struct Fixture {
  Source source;
  BlockAllocator allocator{"toy:0", source};

  std::byte* get(std::size_t bytes, const Stream& stream = {},
                 MemoryCategory category = MemoryCategory::other) {
    return static_cast<std::byte*>(allocator.allocate(bytes, {.category = category}, stream));
  }
};

}  // namespace

TEST_CASE("a freed block is used again, and what is left of a segment is too") {
  Fixture f;
  std::byte* a = f.get(4 * mib);
  std::byte* b = f.get(4 * mib);
  CHECK(f.source.taken == 1);
  CHECK(b == a + 4 * mib);
  f.allocator.free(a);
  CHECK(f.get(3 * mib) == a);            // split
  CHECK(f.get(mib + 1) != a + 3 * mib);  // the rest of a is too small
  CHECK(f.get(mib) != nullptr);
  CHECK(f.source.taken == 2);  // blocks of at most 1 MiB have segments of their own
  f.allocator.free(b);
}

TEST_CASE("free neighbours join: a segment that was split serves a large block again") {
  Fixture f;
  std::vector<std::byte*> parts;
  for (int i = 0; i < 8; ++i) {
    parts.push_back(f.get(2 * mib));
  }
  CHECK(f.source.taken == 1);
  for (const int i : {1, 3, 5, 7, 0, 2, 6, 4}) {
    f.allocator.free(parts[static_cast<std::size_t>(i)]);
  }
  CHECK(f.get(16 * mib) == parts[0]);
  CHECK(f.source.taken == 1);
}

TEST_CASE("lengths that change at every step need no new segments") {
  Fixture f;
  std::mt19937 numbers(3);
  std::size_t after_warm_up = 0;
  for (int step = 0; step < 400; ++step) {
    // What a step of a model needs: layers of one length, and the length differs from step to step.
    const std::size_t length = 64 + numbers() % 193;
    std::vector<std::pair<std::byte*, std::size_t>> held;
    for (int layer = 0; layer < 12; ++layer) {
      for (const std::size_t width : {std::size_t{8192}, std::size_t{24576}, std::size_t{1000}}) {
        const std::size_t bytes = length * width + 1;
        std::byte* data = f.get(bytes);
        std::memset(data, layer, 64);
        data[bytes - 1] = std::byte{7};
        held.emplace_back(data, bytes);
      }
      if (layer % 3 == 2) {  // some are temporary
        f.allocator.free(held[held.size() - 2].first);
        held.erase(held.end() - 2);
      }
    }
    std::sort(held.begin(), held.end());
    for (std::size_t i = 1; i < held.size(); ++i) {
      REQUIRE(held[i - 1].first + held[i - 1].second <= held[i].first);  // apart
    }
    for (const auto& [data, bytes] : held) {
      CHECK(data[bytes - 1] == std::byte{7});
      f.allocator.free(data);
    }
    if (step == 50) {
      after_warm_up = f.source.in_use;
    }
  }
  const MemoryStatistics statistics = f.allocator.statistics();
  CHECK(statistics.total == 0);
  CHECK(static_cast<std::size_t>(statistics.cached) == f.allocator.reserved());
  // At most half more than what the longest step needs, and nearly all of it from the beginning on.
  CHECK(f.allocator.reserved() < static_cast<std::size_t>(statistics.total_peak) * 3 / 2);
  CHECK(f.allocator.reserved() <= after_warm_up + 32 * mib);
}

TEST_CASE("statistics count blocks by category; a block can move to another one") {
  Fixture f;
  std::byte* a = f.get(1000, {}, MemoryCategory::parameter);
  std::byte* b = f.get(513, {}, MemoryCategory::gradient);
  const auto bytes = [&](MemoryCategory c) {
    return f.allocator.statistics().bytes[static_cast<std::size_t>(c)];
  };
  CHECK(bytes(MemoryCategory::parameter) == 1024);
  CHECK(bytes(MemoryCategory::gradient) == 1024);
  f.allocator.move_to(b, MemoryCategory::parameter);
  CHECK(bytes(MemoryCategory::gradient) == 0);
  CHECK(bytes(MemoryCategory::parameter) == 2048);
  f.allocator.free(a);
  CHECK(f.allocator.statistics().total == 1024);
  CHECK(f.allocator.statistics().total_peak == 2048);
  f.allocator.reset_peaks();
  CHECK(f.allocator.statistics().total_peak == 1024);
  f.allocator.free(b);
  f.allocator.free(nullptr);
}

TEST_CASE("freed memory is for later work of its own stream, and not for that of another one") {
  const Stream streams[] = {Stream::make(cpu), Stream::make(cpu)};
  for (const int own : {0, 1}) {  // whichever of them comes first in the allocator's order
    Fixture f;
    std::byte* a = f.get(4 * mib, streams[own]);
    f.allocator.free(a);  // at once, though the stream may still use it
    CHECK(f.get(4 * mib, streams[1 - own]) != a);
    CHECK(f.get(4 * mib, streams[own]) == a);
  }
}

TEST_CASE("memory of two streams is not joined, though it is one segment") {
  Fixture f;
  const Stream first = Stream::make(cpu);
  const Stream second = Stream::make(cpu);
  f.source.limit = 16 * mib;  // one segment, of which each stream gets a half
  std::byte* a = f.get(8 * mib, first);
  f.allocator.trim();
  std::byte* b = f.get(8 * mib, second);
  CHECK(b == a + 8 * mib);
  f.allocator.free(a);
  f.allocator.free(b);
  CHECK(f.source.finished == 1);
  CHECK(f.get(16 * mib, first) == a);  // after both streams have finished
  CHECK(f.source.finished == 2);
}

TEST_CASE("memory that another stream uses is reused after that, without stopping the host") {
  Fixture f;
  const Stream owner = Stream::make(cpu);
  const Stream reader = Stream::make(cpu);
  std::promise<void> open;
  std::byte* a = f.get(2 * mib, owner);
  a[0] = std::byte{1};
  std::byte seen{0};
  reader.launch([opened = open.get_future().share()] { opened.wait(); });
  reader.launch([&seen, a] { seen = a[0]; });
  f.allocator.used_on(a, reader);
  f.allocator.free(a);
  std::byte* again = f.get(2 * mib, owner);  // does not wait
  CHECK(again == a);
  owner.launch([again] { again[0] = std::byte{2}; });
  const Event written = record_event(owner);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_FALSE(written.reached());
  open.set_value();
  synchronize(cpu);
  CHECK(seen == std::byte{1});
  CHECK(a[0] == std::byte{2});
}

TEST_CASE("trimming gives free segments back, the largest first") {
  Fixture f;
  std::byte* a = f.get(40 * mib);
  std::byte* b = f.get(20 * mib);
  std::byte* c = f.get(1000);
  CHECK(f.allocator.reserved() == 62 * mib);
  f.allocator.free(a);
  f.allocator.free(b);
  f.allocator.trim(20 * mib + 2 * mib);
  CHECK(f.allocator.reserved() == 22 * mib);
  CHECK(f.source.finished == 1);  // what was queued may still use what was freed
  f.allocator.trim();
  CHECK(f.allocator.reserved() == 2 * mib);  // c is in use
  f.allocator.free(c);
}

TEST_CASE("on exhaustion the cache goes back to the source before allocate fails") {
  Fixture f;
  f.source.limit = 64 * mib;
  std::byte* a = f.get(30 * mib);
  std::byte* b = f.get(30 * mib);
  f.allocator.free(a);
  f.allocator.free(b);
  CHECK(f.get(60 * mib) != nullptr);  // needs both segments' memory
  CHECK(f.source.taken == 3);
  CHECK(f.source.held.size() == 1);
}

TEST_CASE("on exhaustion the free memory of other streams serves too, after they have finished") {
  Fixture f;
  f.source.limit = 32 * mib;
  const Stream first = Stream::make(cpu);
  std::byte* keep = f.get(8 * mib, first);  // its segment cannot go back
  f.allocator.free(f.get(8 * mib, first));
  std::byte* other = f.get(16 * mib);
  std::byte* a = f.get(8 * mib);
  CHECK(a == keep + 8 * mib);
  CHECK(f.source.finished == 1);
  for (std::byte* data : {keep, other, a}) {
    f.allocator.free(data);
  }
}

TEST_CASE("a cap: the error says who holds what") {
  Fixture f;
  f.allocator.set_cap(64 * mib);
  const std::string layer = "model.layers.3";
  f.allocator.allocate(24 * mib, {MemoryCategory::activation, &layer}, {});
  f.allocator.allocate(8 * mib, {MemoryCategory::activation, &layer}, {});
  f.get(16 * mib, {}, MemoryCategory::parameter);
  const std::string text = error_of([&] { f.get(20 * mib, {}, MemoryCategory::gradient); });
  CHECK(
      contains(text, "toy:0: there is not enough memory for 20.0 MiB (gradient): 48.0 MiB in use"));
  CHECK(contains(text, "the cap is 64.0 MiB"));
  const auto activation = text.find("activation         32.0 MiB        2  model.layers.3");
  const auto parameter = text.find("parameter          16.0 MiB        1  -");
  CHECK(activation != std::string::npos);
  CHECK(parameter != std::string::npos);
  CHECK(activation < parameter);
  CHECK(f.get(8 * mib) != nullptr);  // what fits still does
  f.allocator.set_cap(0);
  CHECK(f.get(20 * mib) != nullptr);
}

TEST_CASE("sizes that no machine has are refused, not computed with") {
  Fixture f;
  CHECK(contains(error_of([&] { f.get(~std::size_t{0}); }), "there is not enough memory"));
  CHECK(contains(error_of([&] { f.get(std::size_t{1} << 50); }), "there is not enough memory"));
}

TEST_CASE("several threads allocate and free at once") {
  Fixture f;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&f, t] {
      std::mt19937 numbers(static_cast<unsigned>(t));
      std::vector<std::pair<std::byte*, std::size_t>> held;
      for (int i = 0; i < 2000; ++i) {
        const std::size_t bytes = 1 + numbers() % (3 * mib);
        std::byte* data = f.get(bytes);
        std::memset(data, t, std::min<std::size_t>(bytes, 64));
        held.emplace_back(data, bytes);
        if (held.size() > 8) {
          const auto [old, size] = held[numbers() % held.size()];
          if (old[0] != static_cast<std::byte>(t)) {
            std::abort();  // another thread has the block too
          }
          std::erase_if(held, [gone = old](const auto& h) { return h.first == gone; });
          f.allocator.free(old);
        }
      }
      for (const auto& [data, bytes] : held) {
        f.allocator.free(data);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(f.allocator.statistics().total == 0);
}

TEST_CASE("large blocks of the CPU are split and joined, small ones have size classes") {
  const MemoryStatistics before = memory_statistics();
  void* large = allocate_bytes(5 * mib, MemoryCategory::activation);
  void* small = allocate_bytes(1000, MemoryCategory::activation);
  CHECK(memory_statistics().total - before.total == occupied_bytes(5 * mib) + occupied_bytes(1000));
  [[maybe_unused]] const std::size_t reserved = allocator_of(cpu).reserved();
  for (std::size_t bytes = 4 * mib; bytes > 2 * mib; bytes -= 4096) {
    free_bytes(large, bytes == 4 * mib ? 5 * mib : bytes + 4096, MemoryCategory::activation);
    large = allocate_bytes(bytes, MemoryCategory::activation);
  }
#if !__has_feature(address_sanitizer)
  CHECK(allocator_of(cpu).reserved() == reserved);
#endif
  free_bytes(large, 2 * mib + 4096, MemoryCategory::activation);
  free_bytes(small, 1000, MemoryCategory::activation);
  CHECK(memory_statistics().total == before.total);
}

TEST_CASE("a thread that frees what others take keeps no more of it than it takes itself") {
  constexpr std::size_t bytes = 3000;
  const std::int64_t before = memory_statistics().cached;
  const auto taken_by_another_thread = [] {
    return std::async(std::launch::async,
                      [] { return allocate_bytes(bytes, MemoryCategory::activation); })
        .get();
  };
  for (int step = 0; step < 100; ++step) {
    void* const own = allocate_bytes(bytes, MemoryCategory::activation);
    free_bytes(taken_by_another_thread(), bytes, MemoryCategory::activation);
    free_bytes(own, bytes, MemoryCategory::activation);
  }
  CHECK(memory_statistics().cached - before <= 2 * occupied_bytes(bytes));
}

#if !__has_feature(address_sanitizer)
TEST_CASE("a thread's small blocks are used again") {
  constexpr std::size_t bytes = 3000;
  std::vector<void*> first;
  for (int i = 0; i < 10; ++i) {
    first.push_back(allocate_bytes(bytes, MemoryCategory::activation));
  }
  for (void* const block : first) {
    free_bytes(block, bytes, MemoryCategory::activation);
  }
  for (std::size_t i = first.size(); i-- > 0;) {
    CHECK(allocate_bytes(bytes, MemoryCategory::activation) == first[i]);
  }
  for (void* const block : first) {
    free_bytes(block, bytes, MemoryCategory::activation);
  }
}
#endif
