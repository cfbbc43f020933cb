// Specs are interned while something holds them, and no longer.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;

#include "held_specs.hpp"

using namespace tessera;

namespace {

constexpr std::size_t room = 4096;  // Specs that may be there before those not held are dropped

Layout some_layout() { return Layout::make(DeviceMesh::make({"a"}, {1}), {Shard(0)}); }

Dims shape_of(std::int64_t i) { return {i, 3}; }

Tensor tensor_of(std::int64_t i) {
  return make_distributed(empty(shape_of(i), DType::f32, meta),
                          Spec::make(some_layout(), shape_of(i), DType::f32));
}

struct HoldingArgs {
  SpecArgument first;
  std::int64_t between;
  SpecArgument second;
};

}  // namespace

TEST_CASE("specs: shapes that change at every step do not fill the memory") {
  std::vector<std::pair<std::int64_t, Tensor>> kept;
  std::size_t most = 0;
  for (std::int64_t i = 0; i < 100'000; ++i) {
    Tensor x = tensor_of(i);
    if (i % 1000 == 0) {
      kept.emplace_back(i, std::move(x));
    }
    most = std::max(most, Spec::kept());
  }
  CHECK(most <= room);
  for (const auto& [i, x] : kept) {
    CHECK(x.spec()->shape == shape_of(i));
    CHECK(x.spec() == Spec::make(some_layout(), shape_of(i), DType::f32));
  }
}

TEST_CASE("specs: as many as are held have room, and those that are dropped give it back") {
  const std::size_t before = held_specs();
  std::vector<Tensor> many;
  for (std::int64_t i = 0; i < 10'000; ++i) {
    many.push_back(tensor_of(i));
  }
  CHECK(held_specs() == before + many.size());
  CHECK(tensor_of(9'999).spec() == many.back().spec());
  CHECK(Spec::kept() <= 2 * (before + many.size()));
  many.clear();
  CHECK(held_specs() == before);
  for (std::int64_t i = 0; i < 10'000; ++i) {
    Spec::make(some_layout(), shape_of(i), DType::f32);
    REQUIRE(Spec::kept() <= room);
  }
}

TEST_CASE("specs: attributes hold theirs, and so do copies of them") {
  const std::size_t before = held_specs();
  std::optional<Attributes> copy;
  {
    const Attributes attributes =
        HoldingArgs{{Spec::make(some_layout(), {5, 3}, DType::f16)}, 7, {}};
    CHECK(held_specs() == before + 1);
    copy = attributes;
    Attributes assigned = HoldingArgs{{Spec::make(some_layout(), {6, 3}, DType::f16)},
                                      8,
                                      {Spec::make(some_layout(), {7, 3}, DType::f16)}};
    CHECK(held_specs() == before + 3);
    assigned = attributes;
    CHECK(held_specs() == before + 1);
  }
  CHECK(held_specs() == before + 1);
  const auto arguments = arguments_as<HoldingArgs>(*copy);
  CHECK(text_of(*arguments.first) == "f16[5, 3] [Shard(0)] on mesh(a=1)");
  CHECK(arguments.between == 7);
  CHECK(!arguments.second);
  copy.reset();
  CHECK(held_specs() == before + 1);  // the argument that was read
}

TEST_CASE("specs: threads make and drop the same ones at the same time") {
  constexpr int thread_count = 4;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  threads.reserve(thread_count);
  for (int t = 0; t < thread_count; ++t) {
    threads.emplace_back([&wrong, t] {
      std::vector<Tensor> held;
      for (std::int64_t i = 0; i < 20'000; ++i) {
        const std::int64_t extent = i % 7 == 0 ? i % 50 : 20'000 * t + i;  // some of all threads
        Tensor x = tensor_of(extent);
        const Tensor same = tensor_of(extent);
        wrong += x.spec() == same.spec() && x.spec()->shape == shape_of(extent) ? 0 : 1;
        if (i % 100 == 0) {
          held.push_back(std::move(x));
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(wrong == 0);
}
