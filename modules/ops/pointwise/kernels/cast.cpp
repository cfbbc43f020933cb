#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "convert.hpp"
#include "pointwise.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd.hpp"

namespace tessera::kernels {
namespace {

constexpr std::int64_t kGrain = 1 << 15;

template <class To, class From>
void convert_range(const From* x, To* y, std::int64_t count) {
  constexpr bool kHasVectors = FloatingTypes::contains<From> && FloatingTypes::contains<To>;
  if constexpr (kHasVectors && std::is_same_v<Compute<From>, Compute<To>>) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t i = 0; i < count; i += simd::kLanes<From>) {
        simd::store_some(y + i, count - i, simd::load_some(x + i, count - i));
      }
    });
  } else {
    for (std::int64_t i = 0; i < count; ++i) y[i] = convert<To>(x[i]);
  }
}

}  // namespace

void cast(DType from, DType to, std::int64_t count, const void* x, void* y) {
  if (count == 0) return;
  parallel_for(0, count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    if (from == to) {
      const std::size_t first = static_cast<std::size_t>(begin) * size_of(to);
      std::memmove(static_cast<std::byte*>(y) + first, static_cast<const std::byte*>(x) + first,
                   static_cast<std::size_t>(end - begin) * size_of(to));
      return;
    }
    visit_stored(from, [&]<class From>(From) {
      visit_stored(to, [&]<class To>(To) {
        if constexpr (!std::is_same_v<From, To>) {
          convert_range(static_cast<const From*>(x) + begin, static_cast<To*>(y) + begin,
                        end - begin);
        }
      });
    });
  });
}

void fill(DType dtype, std::int64_t count, double value, void* y) {
  visit_stored(dtype, [&]<class T>(T) {
    const T converted = convert<T>(value);
    parallel_for(0, count, kGrain, [&](std::int64_t begin, std::int64_t end) {
      std::fill(static_cast<T*>(y) + begin, static_cast<T*>(y) + end, converted);
    });
  });
}

}  // namespace tessera::kernels
