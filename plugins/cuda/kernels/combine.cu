// Reductions over ranks, along a binary tree: the bits of the CPU's (reduce_ranks.cpp).
#include "kernels/combine.hpp"
#include "kernels/elements.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

// A product to which something is added must be rounded first.
__device__ float rounded_product(float a, float b) { return __fmul_rn(a, b); }
__device__ double rounded_product(double a, double b) { return __dmul_rn(a, b); }
// Sums and products of integers wrap.
__device__ std::int64_t rounded_product(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}
template <class C>
__device__ C sum_of(C a, C b) {
  return a + b;
}
template <>
__device__ std::int64_t sum_of(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

/// NaN wins in max and min, whichever side it is on.
template <class C>
__device__ C reduced(RankReduce reduce, C a, C b) {
  switch (reduce) {
    case RankReduce::max:
      return a > b || a != a ? a : b;
    case RankReduce::min:
      return a < b || a != a ? a : b;
    case RankReduce::product:
      return rounded_product(a, b);
    default:
      return sum_of(a, b);
  }
}

constexpr int levels_of(int ranks) { return ranks == 0 ? 0 : 1 + levels_of(ranks / 2); }

/// Element i of all ranks: each complete subtree waits for the one beside it, at its level. Levels
/// are constants after unrolling, so that floats wait in registers (words of 8 bytes do not).
template <class C, class Arguments>
__device__ C over_ranks(const Arguments& a, std::int64_t i) {
  constexpr int levels = levels_of(Arguments::most_sources);
  C waiting[levels];
  for (int r = 0; r < a.ranks; ++r) {
    C value = load<C>(a.sources[r], a.type, i);
#pragma unroll
    for (int level = 0; level < levels; ++level) {
      if ((r >> level) % 2 == 0) {
        waiting[level] = value;
        break;
      }
      value = reduced(a.reduce, waiting[level], value);
    }
  }
  C all{};
  bool none = true;
#pragma unroll
  for (int level = 0; level < levels; ++level) {
    if ((a.ranks >> level) % 2 == 0) continue;
    all = none ? waiting[level] : reduced(a.reduce, waiting[level], all);
    none = false;
  }
  return all;
}

template <class C, class Arguments>
__device__ void combine(const Arguments& a) {
  each_element(a.count, [&](std::int64_t i) {
    C value = over_ranks<C>(a, i);
    if (a.reduce == RankReduce::avg && std::is_floating_point_v<C>) {
      value /= static_cast<C>(a.ranks);
    }
    if (a.accumulate) {
      value = sum_of(load<C>(a.destination, a.destination_type, i), value);
    }
    store(a.destination, a.destination_type, i, value);
  });
}

/// Elements are 0 or 1.
template <class Arguments>
__device__ void combine_bools(const Arguments& a) {
  const bool all = a.reduce == RankReduce::min || a.reduce == RankReduce::product;
  each_element(a.count, [&](std::int64_t i) {
    bool value = all;
    for (int r = 0; r < a.ranks; ++r) {
      const bool one = load<bool>(a.sources[r], DType::boolean, i);
      value = all ? value && one : value || one;
    }
    if (a.accumulate) value = value || load<bool>(a.destination, DType::boolean, i);
    store(a.destination, DType::boolean, i, value);
  });
}

}  // namespace

extern "C" {

__global__ void combine_f32_few(const CombineFew a) { combine<float>(a); }
__global__ void combine_f64_few(const CombineFew a) { combine<double>(a); }
__global__ void combine_i64_few(const CombineFew a) { combine<std::int64_t>(a); }
__global__ void combine_bool_few(const CombineFew a) { combine_bools(a); }
__global__ void combine_f32_many(const CombineMany a) { combine<float>(a); }
__global__ void combine_f64_many(const CombineMany a) { combine<double>(a); }
__global__ void combine_i64_many(const CombineMany a) { combine<std::int64_t>(a); }
__global__ void combine_bool_many(const CombineMany a) { combine_bools(a); }

}  // extern "C"
