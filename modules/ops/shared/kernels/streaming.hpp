#pragma once
// Stores of results that are larger than the caches: they go past them, so the memory that they
// overwrite is not read first, which is a third of the traffic of a copy.

#include <atomic>
#include <cstdint>

#include "simd.hpp"

namespace tessera::kernels::simd {

/// Whether vectors that are stored from `y` on, in rows of `row` elements, go past the caches.
template <class T>
inline bool is_streamed(const T* y, std::int64_t row, std::int64_t elements) {
  constexpr std::int64_t kBeyondCaches = std::int64_t{8} << 20;  // bytes
  constexpr std::uintptr_t kAlignment = 64;
  return elements * static_cast<std::int64_t>(sizeof(T)) >= kBeyondCaches && row % kLanes<T> == 0 &&
         reinterpret_cast<std::uintptr_t>(y) % kAlignment == 0;
}

/// The stores of one thread; when it goes away, other threads may read what was stored.
class Stores {
 public:
  explicit Stores(bool streamed) : streamed_(streamed) {}
  Stores(const Stores&) = delete;
  Stores& operator=(const Stores&) = delete;
  ~Stores() {
    if (streamed_) std::atomic_thread_fence(std::memory_order_seq_cst);
  }

  /// store_some; a streamed vector is whole.
  template <class T>
  [[gnu::always_inline]] void operator()(T* pointer, std::int64_t count, Vector<T> value) const {
    if (!streamed_) return store_some(pointer, count, value);
    if constexpr (sizeof(T) == 2) {
      U16 raw;
      store(reinterpret_cast<T*>(&raw), value);
      __builtin_nontemporal_store(raw, reinterpret_cast<U16*>(pointer));
    } else {
      __builtin_nontemporal_store(value, reinterpret_cast<Vector<T>*>(pointer));
    }
  }

 private:
  bool streamed_;
};

/// Copies `bytes` past the caches, to an address that is aligned to 64. The writer's Stores, or a
/// fence, must follow before other threads read.
inline void stream_bytes(void* to, const void* from, std::int64_t bytes) {
  auto* const out = static_cast<std::uint8_t*>(to);
  const auto* const in = static_cast<const std::uint8_t*>(from);
  dispatch([&](auto) __attribute__((always_inline)) {
    std::int64_t i = 0;
    for (; i + 64 <= bytes; i += 64)
      __builtin_nontemporal_store(raw_load<U32>(in + i), reinterpret_cast<U32*>(out + i));
    std::memcpy(out + i, in + i, static_cast<std::size_t>(bytes - i));
  });
}

}  // namespace tessera::kernels::simd
