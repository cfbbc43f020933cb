// Losses of classes. A block has a row of logits in turn and reads it once. Targets are looked at
// before (index.cu): one that is out of range has no class here.
#include "kernels/row_pieces.hpp"
#include "kernels/rows.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

/// The maximum of some elements, and the sum of exp(x - maximum); where the maximum is infinite, of
/// exp(x). NaN in the sum only.
template <class C>
struct RunningSum {
  C top = -static_cast<C>(INFINITY);
  C sum = {};

  /// What exponents are relative to: infinity - infinity would be no number.
  static __device__ C reference(C top) {
    return top == static_cast<C>(INFINITY) || top == -static_cast<C>(INFINITY) ? C{} : top;
  }

  /// Adds get(k) for k from 0 to `count`.
  template <class Get>
  __device__ void add(int count, Get get) {
    C larger = top;
#pragma unroll
    for (int k = 0; k < count; ++k) larger = std::fmax(larger, get(k));
    if (larger > top) {
      sum *= math::exp(top - larger);
      top = larger;
    }
    const C from = reference(top);
#pragma unroll
    for (int k = 0; k < count; ++k) sum += math::exp(get(k) - from);
  }

  /// Those of all threads of the block.
  __device__ void join() {
    const C whole = join_block(top, -static_cast<C>(INFINITY), NanMaximum{});
    sum = sum_block(sum * math::exp(top - reference(whole)));
    top = whole;
  }
};

/// Of a row of array 0, of any type and strides.
template <class C>
struct LogitsInMemory {
  using Number = C;
  const RowArguments& a;
  std::int64_t row;

  __device__ RunningSum<C> statistics() const {
    const Row<C> x(a, 0, row);
    RunningSum<C> all;
    each_piece(0, a.length, a.piece, threadIdx.x, blockDim.x,
               [&](std::int64_t begin, std::int64_t end) {
                 all.add(static_cast<int>(end - begin), [&](int k) { return x.get(begin + k); });
               });
    all.join();
    return all;
  }
};

/// The same, with the same bits, of contiguous rows of T. integers[2]: they begin at multiples of
/// 16 bytes.
template <class T>
struct LogitsInPieces {
  using Number = float;
  const RowArguments& a;
  std::int64_t row;

  __device__ RunningSum<float> statistics() const {
    constexpr int width = Piece<T>::elements;
    const T* const x = row_of<const T>(a, 0, row);
    RunningSum<float> all;
    each_loaded_piece(
        x, 0, a.length, a.integers[2] != 0,
        [&](const Piece<T>& piece, std::int64_t) {
          all.add(width, [&](int k) { return piece.get(k); });
        },
        [&](std::int64_t begin, std::int64_t end) {
          all.add(static_cast<int>(end - begin),
                  [&](int k) { return convert<float>(x[begin + k]); });
        });
    all.join();
    return all;
  }
};

/// The loss of a row whose log of the sum of exponentials is known. integers: the first class here,
/// the target that is ignored.
template <class C>
__device__ C row_loss(const RowArguments& a, std::int64_t row, C log_sum) {
  const std::int64_t target = Row<std::int64_t>(a, 1, row).get(0);
  const std::int64_t at = target - a.integers[0];
  if (target == a.integers[1]) return C{};
  const bool here = at >= 0 && at < a.length;
  return here ? log_sum - Row<C>(a, 0, row).get(at) : static_cast<C>(NAN);
}

/// Arrays: logits, targets, losses?, log_sums.
template <class Logits>
__device__ void cross_entropy(const RowArguments& a) {
  using C = typename Logits::Number;
  each_row(a, [&](std::int64_t row) {
    const RunningSum<C> s = Logits{a, row}.statistics();
    if (threadIdx.x != 0) return;
    const C log_sum = s.top + math::log(s.sum);
    const Row<C> losses(a, 2, row);
    if (losses.exists()) losses.set(0, row_loss(a, row, log_sum));
    Row<C>(a, 3, row).set(0, log_sum);
  });
}

/// By one block. Arrays: logits, targets, log_sums, total.
template <class C>
__device__ void cross_entropy_sum(const RowArguments& a) {
  double sum = 0;
  for (std::int64_t row = threadIdx.x; row < a.rows; row += blockDim.x) {
    sum += static_cast<double>(row_loss(a, row, Row<C>(a, 2, row).get(0)));
  }
  sum = sum_block(sum);
  if (threadIdx.x == 0) Row<C>(a, 3, 0).set(0, static_cast<C>(sum));
}

/// Arrays: logits, targets, maxima, sums, picked.
template <class Logits>
__device__ void logits_statistics(const RowArguments& a) {
  using C = typename Logits::Number;
  each_row(a, [&](std::int64_t row) {
    const RunningSum<C> s = Logits{a, row}.statistics();
    if (threadIdx.x != 0) return;
    const std::int64_t target = Row<std::int64_t>(a, 1, row).get(0);
    const std::int64_t at = target - a.integers[0];
    const bool counts = target != a.integers[1] && at >= 0 && at < a.length;
    Row<C>(a, 2, row).set(0, s.top);
    Row<C>(a, 3, row).set(0, s.sum);
    Row<C>(a, 4, row).set(0, counts ? Row<C>(a, 0, row).get(at) : C{});
  });
}

/// What the gradients of a row's logits depend on. Arrays: logits, targets, dloss, log_sums,
/// dlogits.
template <class C>
struct RowGradient {
  C dloss, log_sum;
  std::int64_t place;  // of the target
  bool ignored;

  __device__ RowGradient(const RowArguments& a, std::int64_t row)
      : dloss(Row<C>(a, 2, row).get(0)), log_sum(Row<C>(a, 3, row).get(0)) {
    const std::int64_t target = Row<std::int64_t>(a, 1, row).get(0);
    place = target - a.integers[0];
    ignored = target == a.integers[1];
  }
  __device__ C other(C x) const { return ignored ? C{} : math::exp(x - log_sum) * dloss; }
  __device__ C of_target(C x) const { return ignored ? C{} : math::expm1(x - log_sum) * dloss; }
  __device__ C at(std::int64_t i, C x) const { return i == place ? of_target(x) : other(x); }
};

template <class C>
__device__ void gradients_in_memory(const RowArguments& a) {
  each_row(a, [&](std::int64_t row) {
    const RowGradient<C> gradient(a, row);
    const Row<C> x(a, 0, row), dx(a, 4, row);
    each_of_row(a, [&](std::int64_t i) { dx.set(i, gradient.at(i, x.get(i))); });
  });
}

template <class T>
__device__ void gradients_in_pieces(const RowArguments& a) {
  constexpr int width = Piece<T>::elements;
  const bool aligned = a.integers[2] != 0;
  each_row(a, [&](std::int64_t row) {
    const RowGradient<float> gradient(a, row);
    const T* const x = row_of<const T>(a, 0, row);
    T* const dx = row_of<T>(a, 4, row);
    each_loaded_piece(
        x, 0, a.length, aligned,
        [&](const Piece<T>& piece, std::int64_t i) {
          float values[width];
#pragma unroll
          for (int k = 0; k < width; ++k) values[k] = gradient.other(piece.get(k));
          if (gradient.place >= i && gradient.place < i + width) {
#pragma unroll
            for (int k = 0; k < width; ++k) values[k] = gradient.at(i + k, piece.get(k));
          }
          store_piece<T>(dx + i, values, aligned);
        },
        [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            dx[i] = convert<T>(gradient.at(i, convert<float>(x[i])));
          }
        });
  });
}

}  // namespace

// Kernels NAME_f32 and NAME_f64 of rows in memory, by the type that is computed in, and
// NAME_pieces_TYPE of contiguous rows, by the logits' type.
#define LAUNCHED extern "C" __global__ void
#define OF_LOGITS(NAME)                                                                    \
  LAUNCHED NAME##_f32(const RowArguments a) { NAME<LogitsInMemory<float>>(a); }            \
  LAUNCHED NAME##_f64(const RowArguments a) { NAME<LogitsInMemory<double>>(a); }           \
  LAUNCHED NAME##_pieces_f32(const RowArguments a) { NAME<LogitsInPieces<float>>(a); }     \
  LAUNCHED NAME##_pieces_bf16(const RowArguments a) { NAME<LogitsInPieces<BFloat16>>(a); } \
  LAUNCHED NAME##_pieces_f16(const RowArguments a) { NAME<LogitsInPieces<Half>>(a); }

OF_LOGITS(cross_entropy)
OF_LOGITS(logits_statistics)

extern "C" {

__global__ void cross_entropy_sum_f32(const RowArguments a) { cross_entropy_sum<float>(a); }
__global__ void cross_entropy_sum_f64(const RowArguments a) { cross_entropy_sum<double>(a); }
__global__ void cross_entropy_backward_f32(const RowArguments a) { gradients_in_memory<float>(a); }
__global__ void cross_entropy_backward_f64(const RowArguments a) { gradients_in_memory<double>(a); }
__global__ void cross_entropy_backward_pieces_f32(const RowArguments a) {
  gradients_in_pieces<float>(a);
}
__global__ void cross_entropy_backward_pieces_bf16(const RowArguments a) {
  gradients_in_pieces<BFloat16>(a);
}
__global__ void cross_entropy_backward_pieces_f16(const RowArguments a) {
  gradients_in_pieces<Half>(a);
}

}  // extern "C"
