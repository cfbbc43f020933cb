#include "reduce_ranks.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <tessera/element_types.hpp>
#include <type_traits>
#include <vector>

// Not every type and operation has vector instructions; the others use scalar loops.
#pragma clang diagnostic ignored "-Wpass-failed"

// The loops below vectorise; each instruction set gets its own copy through always_inline.
#define TESSERA_INLINE __attribute__((always_inline)) inline

namespace tessera::kernels {
namespace {

struct Bf16 {
  std::uint16_t bits;
};
struct Boolean {
  std::uint8_t value;
};

template <class T>
struct Compute {
  using Type = T;
};
template <>
struct Compute<Bf16> {
  using Type = float;
};
template <>
struct Compute<_Float16> {
  using Type = float;
};
template <>
struct Compute<Boolean> {
  using Type = std::uint8_t;
};
// Unsigned and at least as wide as int, so that sums and products wrap instead of being undefined.
template <class C>
struct UnsignedOf {
  using Type = C;
};
template <class C>
  requires(std::is_integral_v<C>)
struct UnsignedOf<C> {
  using Type = decltype(std::make_unsigned_t<C>() + 0U);
};
template <class C>
using Unsigned = typename UnsignedOf<C>::Type;

template <class T>
TESSERA_INLINE typename Compute<T>::Type load(T x) {
  if constexpr (std::is_same_v<T, Bf16>) {
    const std::uint32_t bits = std::uint32_t{x.bits} << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  } else if constexpr (std::is_same_v<T, Boolean>) {
    return x.value != 0 ? 1 : 0;
  } else {
    return static_cast<typename Compute<T>::Type>(x);
  }
}

template <class T>
TESSERA_INLINE T store(typename Compute<T>::Type x) {
  if constexpr (std::is_same_v<T, Bf16>) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, 4);
    // Round to nearest even; a NaN stays one.
    const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const std::uint32_t nan = (bits >> 16) | 0x40U;
    return {static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? nan : rounded)};
  } else if constexpr (std::is_same_v<T, Boolean>) {
    return {x};
  } else {
    return static_cast<T>(x);
  }
}

/// NaN wins in max and min, whichever side it is on.
template <class T, RankReduce R>
TESSERA_INLINE typename Compute<T>::Type combine(typename Compute<T>::Type a,
                                                 typename Compute<T>::Type b) {
  using C = typename Compute<T>::Type;
  if constexpr (std::is_same_v<T, Boolean>) {
    constexpr bool either = R != RankReduce::min && R != RankReduce::product;
    return either ? static_cast<C>(a | b) : static_cast<C>(a & b);
  } else if constexpr (R == RankReduce::sum || R == RankReduce::avg) {
    return static_cast<C>(static_cast<Unsigned<C>>(a) + static_cast<Unsigned<C>>(b));
  } else if constexpr (R == RankReduce::product) {
    return static_cast<C>(static_cast<Unsigned<C>>(a) * static_cast<Unsigned<C>>(b));
  } else if constexpr (R == RankReduce::max) {
    return a > b || a != a ? a : b;
  } else {
    return a < b || a != a ? a : b;
  }
}

template <class T, class D, RankReduce R, bool Accumulate>
TESSERA_INLINE D finish(typename Compute<T>::Type sum, D old, int ranks) {
  using C = typename Compute<T>::Type;
  if constexpr (R == RankReduce::avg && std::is_floating_point_v<C>) {
    sum /= static_cast<C>(ranks);
  }
  if constexpr (Accumulate) {
    sum = combine<T, RankReduce::sum>(static_cast<C>(load<D>(old)), sum);
  }
  return store<D>(sum);
}

/// Two sources into a destination larger than the caches: stores that go past them need not read
/// the destination's lines first, which is a quarter of the traffic.
template <class T, RankReduce R>
TESSERA_INLINE void stream(const T* a, const T* b, T* out, std::int64_t count) {
  using Vector __attribute__((vector_size(32))) = T;
  constexpr std::int64_t lanes = 32 / sizeof(T);
  std::int64_t i = 0;
  for (; i < count && reinterpret_cast<std::uintptr_t>(out + i) % sizeof(Vector) != 0; ++i) {
    out[i] = finish<T, T, R, false>(combine<T, R>(a[i], b[i]), out[i], 2);
  }
  for (; i + lanes <= count; i += lanes) {
    Vector sum;
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      sum[lane] = finish<T, T, R, false>(combine<T, R>(a[i + lane], b[i + lane]), T{}, 2);
    }
    __builtin_nontemporal_store(sum, reinterpret_cast<Vector*>(out + i));
  }
  for (; i < count; ++i) {
    out[i] = finish<T, T, R, false>(combine<T, R>(a[i], b[i]), out[i], 2);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);  // such stores are not ordered with others
}

template <class T, class D, RankReduce R, bool Accumulate>
TESSERA_INLINE void run(const ReduceRanks& args) {
  using C = typename Compute<T>::Type;
  auto* out = static_cast<D*>(args.destination);
  const auto source = [&](int r) { return static_cast<const T*>(args.sources[r]); };
  if (args.ranks == 2) {
    if constexpr (std::is_same_v<T, float> && std::is_same_v<D, float> && !Accumulate) {
      constexpr std::int64_t beyond_caches = std::int64_t{2} << 20;
      if (args.count * 4 >= beyond_caches) {
        return stream<T, R>(source(0), source(1), out, args.count);
      }
    }
    const T* a = source(0);
    const T* b = source(1);
#pragma clang loop vectorize(assume_safety)
    for (std::int64_t i = 0; i < args.count; ++i) {
      const C sum = combine<T, R>(load<T>(a[i]), load<T>(b[i]));
      out[i] = finish<T, D, R, Accumulate>(sum, out[i], 2);
    }
    return;
  }
  constexpr std::int64_t block =
      1024;                   // the partial results of a few ranks stay in the first cache
  constexpr int levels = 32;  // of the tree, of any number of ranks
  const int height = std::bit_width(static_cast<unsigned>(args.ranks));
  C few[4][block];
  std::vector<C> many(height > 4 ? static_cast<std::size_t>(height * block) : 0);
  C* partial[levels];  // sums of complete subtrees, each at least twice as large as the next one
  for (int level = 0; level < height; ++level) {
    partial[level] = height > 4 ? many.data() + level * block : few[level];
  }
  for (std::int64_t begin = 0; begin < args.count; begin += block) {
    const std::int64_t n = std::min(block, args.count - begin);
    int waiting = 0;
    const auto join = [&]() __attribute__((always_inline)) {
      --waiting;
      C* const left = partial[waiting - 1];
      const C* const right = partial[waiting];
#pragma clang loop vectorize(assume_safety)
      for (std::int64_t i = 0; i < n; ++i) {
        left[i] = combine<T, R>(left[i], right[i]);
      }
    };
    for (int r = 0; r < args.ranks; ++r) {
      const T* const next = source(r) + begin;
      if (r % 2 == 0) {
        C* const leaf = partial[waiting++];
#pragma clang loop vectorize(assume_safety)
        for (std::int64_t i = 0; i < n; ++i) {
          leaf[i] = load<T>(next[i]);
        }
        continue;
      }
      C* const left = partial[waiting - 1];
#pragma clang loop vectorize(assume_safety)
      for (std::int64_t i = 0; i < n; ++i) {
        left[i] = combine<T, R>(left[i], load<T>(next[i]));
      }
      for (int subtrees = (r + 1) / 2; subtrees % 2 == 0; subtrees /= 2) {
        join();
      }
    }
    for (int rest = waiting; rest > 1; --rest) {
      join();
    }
    D* to = out + begin;
#pragma clang loop vectorize(assume_safety)
    for (std::int64_t i = 0; i < n; ++i) {
      to[i] = finish<T, D, R, Accumulate>(partial[0][i], to[i], args.ranks);
    }
  }
}

template <class T, class D, bool Accumulate>
TESSERA_INLINE void by_operation(const ReduceRanks& args) {
  switch (args.reduce) {
    case RankReduce::sum:
      return run<T, D, RankReduce::sum, Accumulate>(args);
    case RankReduce::avg:
      return run<T, D, RankReduce::avg, Accumulate>(args);
    case RankReduce::max:
      return run<T, D, RankReduce::max, Accumulate>(args);
    case RankReduce::min:
      return run<T, D, RankReduce::min, Accumulate>(args);
    case RankReduce::product:
      return run<T, D, RankReduce::product, Accumulate>(args);
  }
}

template <class T, class D>
TESSERA_INLINE void by_mode(const ReduceRanks& args) {
  args.accumulate ? by_operation<T, D, true>(args) : by_operation<T, D, false>(args);
}

/// The type by which this kernel reads elements of T.
template <class T>
struct KernelType {
  using Type = T;
};
template <>
struct KernelType<BFloat16> {
  using Type = Bf16;
};
template <>
struct KernelType<Half> {
  using Type = _Float16;
};
template <>
struct KernelType<bool> {
  using Type = Boolean;
};

template <class T>
TESSERA_INLINE void by_destination(const ReduceRanks& args) {
  if constexpr (std::is_same_v<typename Compute<T>::Type, float>) {
    if (args.destination_f32) {
      return by_mode<T, float>(args);
    }
  }
  by_mode<T, T>(args);
}

/// Types that are only stored are not among these: the communicator refuses to reduce them.
template <class... T>
TESSERA_INLINE void by_type(const ReduceRanks& args, Types<T...> /*all*/) {
  static_cast<void>(
      ((args.type == dtype_of<T> && (by_destination<typename KernelType<T>::Type>(args), true)) ||
       ...));
}

#if defined(__x86_64__)
__attribute__((target("avx2,f16c"))) void reduce_avx2(const ReduceRanks& args) {
  by_type(args, AllTypes{});
}
#endif
void reduce_portable(const ReduceRanks& args) { by_type(args, AllTypes{}); }

}  // namespace

void reduce_ranks(const ReduceRanks& args) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("f16c") != 0) {
    reduce_avx2(args);
    return;
  }
#endif
  reduce_portable(args);
}

}  // namespace tessera::kernels
