// Other memory for tests: it counts what it is asked for. Include it after the imports of tessera.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>

namespace tessera::testing {

/// What is put away may only be read again after it was requested, and what was never put away
/// never; both are errors. A new tensor is full of ones, bit by bit.
class CountedMemory final : public MemoryPlace {
 public:
  Tensor allocate(const Dims& shape, DType dtype) override {
    const auto bytes =
        static_cast<std::int64_t>(shape.product()) * static_cast<std::int64_t>(size_of(dtype));
    if (held + bytes > space) {
      fail({.thing = "test memory",
            .wrong = "there is no space for " + std::to_string(bytes) + " bytes"});
    }
    auto* const data = new std::byte[static_cast<std::size_t>(bytes) + 64];
    std::memset(data, 0xff, static_cast<std::size_t>(bytes));
    ++allocated;
    held += bytes;
    most_held = held > most_held ? held : most_held;
    return from_memory(data, shape, dtype, std::shared_ptr<void>(data, [this, bytes, data](void*) {
                         held -= bytes;
                         delete[] data;
                       }));
  }
  void fetch(const Tensor& x) override {
    ++requested;
    if (!away_.contains(x.raw_data())) {
      fail({.thing = "test memory", .wrong = "a value is requested that was not put away"});
    }
  }
  void put_away(const Tensor& x) override {
    ++put_aways;
    away_.insert(x.raw_data());
  }

  std::int64_t space = std::int64_t{1} << 40;
  std::int64_t held = 0;
  std::int64_t most_held = 0;
  int allocated = 0;
  int requested = 0;
  int put_aways = 0;

 private:
  std::set<const void*> away_;
};

}  // namespace tessera::testing
