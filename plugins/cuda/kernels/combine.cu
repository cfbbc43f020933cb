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
__device__ void combine_element(const Arguments& a, std::int64_t i) {
  C value = over_ranks<C>(a, i);
  if (a.reduce == RankReduce::avg && std::is_floating_point_v<C>) {
    value /= static_cast<C>(a.ranks);
  }
  if (a.accumulate) {
    value = sum_of(load<C>(a.destination, a.destination_type, i), value);
  }
  store(a.destination, a.destination_type, i, value);
}

template <class C, class Arguments>
__device__ void combine(const Arguments& a) {
  each_element(a.count, [&](std::int64_t i) { combine_element<C>(a, i); });
}

/// 16 bytes of a source or a destination, which one instruction reads or writes.
struct alignas(16) Words {
  std::uint32_t word[4];
};
__device__ Words read_words(const void* data, std::int64_t vector) {
  const Words* const at = static_cast<const Words*>(data) + vector;
  return {at->word[0], at->word[1], at->word[2], at->word[3]};
}
__device__ void write_words(void* data, std::int64_t vector, const Words& words) {
  Words* const at = static_cast<Words*>(data) + vector;
  at->word[0] = words.word[0];
  at->word[1] = words.word[1];
  at->word[2] = words.word[2];
  at->word[3] = words.word[3];
}

template <class T>
constexpr int lanes_of = static_cast<int>(sizeof(Words) / sizeof(T));

template <class T>
__device__ float value_in(const Words& words, int lane) {
  T value;
  if constexpr (sizeof(T) == sizeof(float)) {
    memcpy(&value, &words.word[lane], sizeof(T));
  } else {
    const auto bits = static_cast<std::uint16_t>(words.word[lane / 2] >> (lane % 2 * 16));
    memcpy(&value, &bits, sizeof(T));
  }
  return convert<float>(value);
}
template <class T>
__device__ Words words_of(const float* values) {
  Words words = {};
#pragma unroll
  for (int lane = 0; lane < lanes_of<T>; ++lane) {
    const T value = convert<T>(values[lane]);
    if constexpr (sizeof(T) == sizeof(float)) {
      memcpy(&words.word[lane], &value, sizeof(T));
    } else {
      std::uint16_t bits;
      memcpy(&bits, &value, sizeof(T));
      words.word[lane / 2] |= static_cast<std::uint32_t>(bits) << (lane % 2 * 16);
    }
  }
  return words;
}

/// The sums over ranks of a vector of T, in the order of over_ranks(). Four ranks are read at a
/// time: the subtrees of four are complete at once, and those above wait at their levels.
template <class T, class Arguments>
__device__ void sum_over_ranks(const Arguments& a, std::int64_t vector, float* sum) {
  constexpr int lanes = lanes_of<T>;
  constexpr int levels = levels_of(Arguments::most_sources) - 2;
  float waiting[levels][lanes];
  for (int four = 0; four < a.ranks / 4; ++four) {
    Words read[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) read[r] = read_words(a.sources[4 * four + r], vector);
#pragma unroll
    for (int lane = 0; lane < lanes; ++lane) {
      sum[lane] = (value_in<T>(read[0], lane) + value_in<T>(read[1], lane)) +
                  (value_in<T>(read[2], lane) + value_in<T>(read[3], lane));
    }
#pragma unroll
    for (int level = 0; level < levels; ++level) {
      const bool waits = (four >> level) % 2 == 0;
#pragma unroll
      for (int lane = 0; lane < lanes; ++lane) {
        if (waits) {
          waiting[level][lane] = sum[lane];
        } else {
          sum[lane] = waiting[level][lane] + sum[lane];
        }
      }
      if (waits) break;
    }
  }
  const int first = a.ranks / 4 * 4;
  const int rest = a.ranks - first;
  if (rest > 0) {
    Words read[3] = {};
#pragma unroll
    for (int r = 0; r < 3; ++r) {
      if (r < rest) read[r] = read_words(a.sources[first + r], vector);
    }
#pragma unroll
    for (int lane = 0; lane < lanes; ++lane) {
      sum[lane] = value_in<T>(read[0], lane);
      if (rest > 1) sum[lane] = sum[lane] + value_in<T>(read[1], lane);
      if (rest > 2) sum[lane] = sum[lane] + value_in<T>(read[2], lane);
    }
  }
  bool none = rest == 0;
#pragma unroll
  for (int level = 0; level < levels; ++level) {
    if ((a.ranks / 4 >> level) % 2 == 0) continue;
#pragma unroll
    for (int lane = 0; lane < lanes; ++lane) {
      sum[lane] = none ? waiting[level][lane] : waiting[level][lane] + sum[lane];
    }
    none = false;
  }
}

/// Finishes the sums of a vector and writes them as D: one vector of it, or two.
template <class D, int lanes, class Arguments>
__device__ void finish_vector(const Arguments& a, std::int64_t vector, float* sum) {
  constexpr int of_words = lanes_of<D>;
#pragma unroll
  for (int part = 0; part < lanes / of_words; ++part) {
    const std::int64_t at = vector * (lanes / of_words) + part;
    float* const sums = sum + part * of_words;
    const Words old = a.accumulate ? read_words(a.destination, at) : Words{};
#pragma unroll
    for (int lane = 0; lane < of_words; ++lane) {
      if (a.reduce == RankReduce::avg) sums[lane] /= static_cast<float>(a.ranks);
      if (a.accumulate) sums[lane] = value_in<D>(old, lane) + sums[lane];
    }
    write_words(a.destination, at, words_of<D>(sums));
  }
}

/// Sums and averages of T, where all addresses are multiples of 16.
template <class T, class Arguments>
__device__ void sum_vectors(const Arguments& a) {
  constexpr int lanes = lanes_of<T>;
  const std::int64_t vectors = a.count / lanes;
  each_element(vectors, [&](std::int64_t vector) {
    float sum[lanes];
    sum_over_ranks<T>(a, vector, sum);
    if (a.destination_type == DType::f32) {
      finish_vector<float, lanes>(a, vector, sum);
    } else {
      finish_vector<T, lanes>(a, vector, sum);
    }
  });
  each_element(a.count - vectors * lanes,
               [&](std::int64_t i) { combine_element<float>(a, vectors * lanes + i); });
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
__global__ void sum_vectors_f32_few(const CombineFew a) { sum_vectors<float>(a); }
__global__ void sum_vectors_bf16_few(const CombineFew a) { sum_vectors<BFloat16>(a); }
__global__ void sum_vectors_f16_few(const CombineFew a) { sum_vectors<Half>(a); }
__global__ void sum_vectors_f32_many(const CombineMany a) { sum_vectors<float>(a); }
__global__ void sum_vectors_bf16_many(const CombineMany a) { sum_vectors<BFloat16>(a); }
__global__ void sum_vectors_f16_many(const CombineMany a) { sum_vectors<Half>(a); }
__global__ void combine_f32_many(const CombineMany a) { combine<float>(a); }
__global__ void combine_f64_many(const CombineMany a) { combine<double>(a); }
__global__ void combine_i64_many(const CombineMany a) { combine<std::int64_t>(a); }
__global__ void combine_bool_many(const CombineMany a) { combine_bools(a); }

}  // extern "C"
