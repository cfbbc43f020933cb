#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "pointwise.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd.hpp"

namespace tessera::kernels {
namespace {

constexpr std::int64_t kGrain = 1 << 15;

/// Towards 0; NaN gives 0, and what is out of range the nearest value of the range.
template <class To, class From>
To to_integer(From value) {
  if (value != value) return To{0};
  // The upper limit may round up to one past the range, which >= then catches.
  if (value >= static_cast<From>(std::numeric_limits<To>::max()))
    return std::numeric_limits<To>::max();
  if (value <= static_cast<From>(std::numeric_limits<To>::lowest()))
    return std::numeric_limits<To>::lowest();
  return static_cast<To>(value);
}

template <class T>
constexpr bool kNarrow = std::is_same_v<T, BFloat16> || std::is_same_v<T, Half> || kFloat8<T>;

template <class To, class From>
To convert(From value) {
  if constexpr (kNarrow<From>) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From{};
  } else if constexpr (kNarrow<To>) {
    return To(static_cast<float>(value));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    return to_integer<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

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
