#pragma once
// Parts of scans of vectors. For sources of this folder only.

#include <cstdint>

#include "shared/kernels/simd.hpp"

namespace tessera::kernels::scans {

using simd::F64;

struct Sum {
  // Lanes are filled with -0, which leaves -0 as it is; for 0 the compiler would choose
  // instructions that take three times as long (vexpandpd on Zen 5).
  static constexpr double kNothing = -0.0;
  template <class V>
  [[gnu::always_inline]] static V start() {
    return V{0};
  }
  template <class V>
  [[gnu::always_inline]] static V join(V a, V b) {
    return a + b;
  }
};

struct Product {
  static constexpr double kNothing = 1.0;
  template <class V>
  [[gnu::always_inline]] static V start() {
    return V{1};
  }
  template <class V>
  [[gnu::always_inline]] static V join(V a, V b) {
    return a * b;
  }
};

/// Element k of a line of `size` in the order of the scan.
[[gnu::always_inline]] inline std::int64_t place(std::int64_t k, std::int64_t size, bool from_end) {
  return from_end ? size - 1 - k : k;
}

/// Each lane is joined with those before it (after it).
template <class Scan, bool from_end>
[[gnu::always_inline]] inline F64 scan_lanes(F64 v) {
  constexpr double k = Scan::kNothing;
  constexpr F64 nothing = {k, k, k, k, k, k, k, k};  // a sum with 0 would make 0 of -0
  if constexpr (from_end) {
    v = Scan::join(v, __builtin_shufflevector(v, nothing, 1, 2, 3, 4, 5, 6, 7, 8));
    v = Scan::join(v, __builtin_shufflevector(v, nothing, 2, 3, 4, 5, 6, 7, 8, 8));
    v = Scan::join(v, __builtin_shufflevector(v, nothing, 4, 5, 6, 7, 8, 8, 8, 8));
  } else {
    v = Scan::join(v, __builtin_shufflevector(v, nothing, 8, 0, 1, 2, 3, 4, 5, 6));
    v = Scan::join(v, __builtin_shufflevector(v, nothing, 8, 8, 0, 1, 2, 3, 4, 5));
    v = Scan::join(v, __builtin_shufflevector(v, nothing, 8, 8, 8, 8, 0, 1, 2, 3));
  }
  return v;
}

template <bool from_end>
[[gnu::always_inline]] inline F64 last_lane(F64 v) {
  return from_end ? __builtin_shufflevector(v, v, 0, 0, 0, 0, 0, 0, 0, 0)
                  : __builtin_shufflevector(v, v, 7, 7, 7, 7, 7, 7, 7, 7);
}

[[gnu::always_inline]] inline simd::F32 to_float(F64 low, F64 high) {
  using HalfVector = float __attribute__((vector_size(32)));
  return __builtin_shufflevector(__builtin_convertvector(low, HalfVector),
                                 __builtin_convertvector(high, HalfVector), 0, 1, 2, 3, 4, 5, 6, 7,
                                 8, 9, 10, 11, 12, 13, 14, 15);
}

/// Joins the scan of a vector with what is before it. One join is all that the next vector waits
/// for.
template <class Scan, bool from_end>
[[gnu::always_inline]] inline F64 scan_after(F64 v, F64& before) {
  const F64 scanned = scan_lanes<Scan, from_end>(v);
  const F64 result = Scan::join(scanned, before);
  before = Scan::join(last_lane<from_end>(scanned), before);
  return result;
}

}  // namespace tessera::kernels::scans
