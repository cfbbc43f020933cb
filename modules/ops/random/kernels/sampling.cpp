#include "sampling.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "reduce/kernels/scan_lanes.hpp"
#include "reduce/kernels/states.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd_math.hpp"
#include "sort/kernels/sort.hpp"

namespace tessera::kernels {
namespace {

using simd::bits_as;
using simd::F32;
using simd::F64;
using simd::U32;

constexpr std::int64_t kGrain = 1 << 12;  // elements

double time_of(std::uint32_t word, double weight) {
  return -std::log((static_cast<double>(word) + 1) * 0x1p-32) / weight;
}

/// sums[i] = weights[0] + ... + weights[i], in place.
void partial_sums(std::int64_t n, double* weights) {
  simd::dispatch([&](auto) __attribute__((always_inline)) {
    F64 before = {};
    std::int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
      simd::store(weights + i,
                  scans::scan_after<scans::Sum, false>(simd::load(weights + i), before));
    }
    double sum = before[0];
    for (; i < n; ++i) weights[i] = sum += weights[i];
  });
}

/// The first of n >= 1 increasing numbers that is above `limit`, or n. Without branches: where it
/// is cannot be predicted.
std::int64_t first_above(std::int64_t n, const double* sums, double limit) {
  const double* from = sums;
  for (std::int64_t left = n; left > 1;) {
    const std::int64_t half = left / 2;
    from += from[half - 1] <= limit ? half : 0;
    left -= half;
  }
  return from - sums + (*from <= limit ? 1 : 0);
}

/// -log((word + 1) 2^-32) within 1e-6 relative. Near 1 the distance to 1 is taken from the integer,
/// where it is exact.
[[gnu::always_inline]] inline F32 negative_log(U32 word) {
  const F32 rest = __builtin_convertvector(~word, F32) * 0x1p-32F;
  const F32 u = __builtin_convertvector(word, F32) * 0x1p-32F + 0x1p-32F;
  const U32 raw = bits_as<U32>(u) - 0x3f3504f3U;  // sqrt(1/2)
  const auto near = rest < 0.25F;
  const F32 e = near ? F32{} : __builtin_convertvector(bits_as<simd::I32>(raw) >> 23, F32);
  const F32 m = near ? -rest : bits_as<F32>((raw & 0x007fffffU) + 0x3f3504f3U) - 1.0F;
  const F32 p = simd::log_polynomial(m);
  const F32 square = m * m;
  return -(m + (p * m * square - square * 0.5F) + e * 0.693147181F);
}

/// A position and when it has its event: about, then exactly.
struct Candidate {
  double time;
  std::int64_t position;
};
bool operator<(const Candidate& a, const Candidate& b) {
  return a.time < b.time || (a.time == b.time && a.position < b.position);
}

constexpr float kMargin = 1.0F + 0x1p-16F;  // far above the error of these times

/// How many candidates are kept before the later ones among them are dropped.
std::int64_t capacity_for(std::int64_t count) { return 2 * count + 32; }

/// Whether few of many positions are wanted: then nearly all are excluded by times in f32.
bool excludes(std::int64_t n, std::int64_t count) { return n / 16 >= count + 16; }

/// Keeps the candidates that can be among the first `count`; returns the time of the last one.
float drop_later(std::int64_t count, Candidate* candidates, std::int64_t& kept) {
  if (kept <= count) return std::numeric_limits<float>::infinity();
  std::nth_element(candidates, candidates + count - 1, candidates + kept);
  const float last = static_cast<float>(candidates[count - 1].time) * kMargin;
  kept = std::partition(candidates, candidates + kept,
                        [last](const Candidate& one) { return one.time <= last; }) -
         candidates;
  return last;
}

/// The positions that can be among the first `count`; returns how many, or 0 where too many come at
/// one time.
std::int64_t find_candidates(std::int64_t n, const double* weights, std::int64_t count,
                             const std::uint32_t* words, Candidate* candidates) {
  // A part of the capacity is free for the lanes of one vector.
  const std::int64_t most = capacity_for(count) - 16;
  std::int64_t kept = 0;
  bool too_many = false;
  float last = std::numeric_limits<float>::infinity();
  simd::dispatch([&](auto) __attribute__((always_inline)) {
    for (std::int64_t i = 0; i < n && !too_many; i += 16) {
      const std::int64_t size = std::min<std::int64_t>(16, n - i);
      F32 rate = {};
      U32 word = {};
      if (size == 16) {
        rate = scans::to_float(simd::load(weights + i), simd::load(weights + i + 8));
        word = simd::raw_load<U32>(words + i);
      } else {
        for (std::int64_t lane = 0; lane < size; ++lane) {
          rate[lane] = static_cast<float>(weights[i + lane]);
          word[lane] = words[i + lane];
        }
      }
      const F32 time = negative_log(word) / rate;
      const auto early = (time <= last) & (rate > 0.0F);
      if (__builtin_reduce_or(early) == 0) continue;
      // Without branches: which lanes are early cannot be predicted.
      for (std::int64_t lane = 0; lane < 16; ++lane) {
        candidates[kept] = {static_cast<double>(time[lane]), i + lane};
        kept -= early[lane];
      }
      if (kept > most) {
        last = drop_later(count, candidates, kept);
        too_many = kept > most;
      }
    }
  });
  if (too_many) return 0;
  drop_later(count, candidates, kept);
  return kept;
}

}  // namespace

template <class T>
WeightsRead read_weights(std::int64_t n, const T* x, double* weights) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr std::int64_t kLanes = simd::kLanes<T>;
  constexpr std::int64_t kParts = states::WideLanes<T>::kParts;
  WeightsRead result;
  simd::dispatch([&](auto) __attribute__((always_inline)) {
    using Counts = simd::I64;
    Counts invalid = {};
    Counts positive = {};
    F64 smallest = F64{} + kInfinity;
    F64 largest = {};
    const auto add = [&](F64 w) __attribute__((always_inline)) {
      invalid |= ~((w >= 0) & (w < kInfinity));
      positive -= w > 0;
      smallest = simd::minimum(w > 0 ? w : F64{} + kInfinity, smallest);
      largest = simd::maximum(w, largest);
    };
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      __builtin_prefetch(x + i + states::kAhead);
      const states::WideLanes<T> wide = states::wide<T>(simd::load(x + i));
#pragma unroll
      for (std::int64_t part = 0; part < kParts; ++part) {
        simd::store(weights + i + 8 * part, wide.parts.data()[part]);
        add(wide.parts.data()[part]);
      }
    }
    for (; i < n; ++i) {
      weights[i] = static_cast<double>(static_cast<Compute<T>>(x[i]));
      F64 one = {};
      one[0] = weights[i];
      add(one);
    }
    result = {.valid = __builtin_reduce_or(invalid) == 0,
              .positive = __builtin_reduce_add(positive),
              .smallest = -simd::max_lanes(-smallest),
              .largest = simd::max_lanes(largest)};
  });
  return result;
}

void sample_with_replacement(std::int64_t n, double* weights, std::int64_t count,
                             const std::uint32_t* words, std::int64_t* out) {
  // The last position with a weight, should rounding leave the share at the whole.
  std::int64_t last = n - 1;
  while (weights[last] == 0) --last;
  partial_sums(n, weights);
  const double total = weights[n - 1];
  parallel_for(0, count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const double share = static_cast<double>(words[i]) * 0x1p-32 * total;
      out[i] = std::min(first_above(n, weights, share), last);
    }
  });
}

void sample_without_replacement(Workspace& workspace, std::int64_t n, double* weights,
                                const WeightsRead& read, std::int64_t count,
                                const std::uint32_t* words, std::int64_t* out) {
  const Workspace::Scope of_row(workspace);
  const bool few = excludes(n, count);
  auto* const candidates = workspace.take<Candidate>(few ? capacity_for(count) : 0);
  auto* const times = workspace.take<double>(count);
  if (workspace.counts()) {
    sort(workspace, DType::f64, {1, n, 1, count}, false, nullptr, nullptr, nullptr);
    return;
  }
  // Beyond these, times in f32 would overflow or be 0.
  if (few && read.smallest > 1e-30 && read.largest < 1e30) {
    const std::int64_t kept = find_candidates(n, weights, count, words, candidates);
    for (std::int64_t i = 0; i < kept; ++i) {
      const std::int64_t at = candidates[i].position;
      candidates[i].time = time_of(words[at], weights[at]);
    }
    std::sort(candidates, candidates + kept);
    for (std::int64_t i = 0; i < count && kept > 0; ++i) out[i] = candidates[i].position;
    if (kept > 0) return;
  }
  parallel_for(0, n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      // The time of no weight is NaN, which is last in every order.
      weights[i] =
          weights[i] > 0 ? time_of(words[i], weights[i]) : std::numeric_limits<double>::quiet_NaN();
    }
  });
  sort(workspace, DType::f64, {1, n, 1, count}, false, weights, times, out);
}

template decltype(read_weights<float>) read_weights<float>;
template decltype(read_weights<double>) read_weights<double>;
template decltype(read_weights<BFloat16>) read_weights<BFloat16>;
template decltype(read_weights<Half>) read_weights<Half>;

}  // namespace tessera::kernels
