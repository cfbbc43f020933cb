// Softmaxes and norms over rows, with their gradients. Each is written once, for rows in memory
// (in C: float, or double for f64) and for rows in registers.
#include "kernels/row_pieces.hpp"
#include "kernels/rows.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

template <class View>
__device__ typename View::C maximum_of_row(const View& row) {
  using C = typename View::C;
  const C lowest = -static_cast<C>(INFINITY);
  C top = lowest;
  row.each([&](typename View::Element e) { top = NanMaximum{}(top, row.template get<0>(e)); });
  return row.team.join(top, lowest, NanMaximum{});
}

/// What a kernel of rows has: the arrays that it reads come first. A thread has at most `pieces`
/// pieces of a row in registers.
template <int arrays, int pieces_of_thread>
struct KernelOfRows {
  static constexpr int loaded = arrays;
  static constexpr int pieces = pieces_of_thread;
  static __device__ constexpr float absent(int) { return 0; }
};

/// Arrays: x, y.
struct Softmax : KernelOfRows<1, 4> {
  template <class View>
  static __device__ void run(const View& v) {
    using C = typename View::C;
    using Element = typename View::Element;
    const C top = maximum_of_row(v);
    const auto share = [&](Element e) { return math::exp(v.template get<0>(e) - top); };
    const C factor = C{1} / sum_of_row(v, share);
    v.set_each(1, [&](Element e) { return share(e) * factor; });
  }
};

/// Arrays: x, y.
struct LogSoftmax : KernelOfRows<1, 4> {
  template <class View>
  static __device__ void run(const View& v) {
    using C = typename View::C;
    using Element = typename View::Element;
    const C top = maximum_of_row(v);
    const C sum = sum_of_row(v, [&](Element e) { return math::exp(v.template get<0>(e) - top); });
    const C log_sum = math::log(sum);
    v.set_each(1, [&](Element e) { return v.template get<0>(e) - top - log_sum; });
  }
};

/// Arrays: dy, y, dx.
struct SoftmaxBackward : KernelOfRows<2, 2> {
  template <class View>
  static __device__ void run(const View& v) {
    using C = typename View::C;
    using Element = typename View::Element;
    const C dot =
        sum_of_row(v, [&](Element e) { return v.template get<0>(e) * v.template get<1>(e); });
    v.set_each(2, [&](Element e) { return v.template get<1>(e) * (v.template get<0>(e) - dot); });
  }
};

/// Arrays: dy, y, dx.
struct LogSoftmaxBackward : KernelOfRows<2, 2> {
  template <class View>
  static __device__ void run(const View& v) {
    using C = typename View::C;
    using Element = typename View::Element;
    const C sum = sum_of_row(v, [&](Element e) { return v.template get<0>(e); });
    v.set_each(
        2, [&](Element e) { return v.template get<0>(e) - math::exp(v.template get<1>(e)) * sum; });
  }
};

/// Arrays: x, weight?, y, rstd. numbers[0]: eps.
struct RmsNorm : KernelOfRows<2, 4> {
  static __device__ constexpr float absent(int) { return 1; }
  template <class View>
  static __device__ void run(const View& v) {
    using C = typename View::C;
    using Element = typename View::Element;
    const C squares =
        sum_of_row(v, [&](Element e) { return v.template get<0>(e) * v.template get<0>(e); });
    const C factor =
        C{1} / math::sqrt(squares / static_cast<C>(v.a.length) + static_cast<C>(v.a.numbers[0]));
    v.set_each(2, [&](Element e) { return v.template get<0>(e) * factor * v.template get<1>(e); });
    v.set_number(3, factor);
  }
};

/// Arrays: x, weight?, bias?, y, mean, rstd. numbers[0]: eps.
struct LayerNorm : KernelOfRows<3, 4> {
  static __device__ constexpr float absent(int which) { return which == 1 ? 1 : 0; }
  template <class View>
  static __device__ void run(const View& v) {
    using C = typename View::C;
    using Element = typename View::Element;
    const C n = static_cast<C>(v.a.length);
    const C center = sum_of_row(v, [&](Element e) { return v.template get<0>(e); }) / n;
    const auto distance = [&](Element e) { return v.template get<0>(e) - center; };
    const C squares = sum_of_row(v, [&](Element e) { return distance(e) * distance(e); });
    const C factor = C{1} / math::sqrt(squares / n + static_cast<C>(v.a.numbers[0]));
    v.set_each(3, [&](Element e) {
      return distance(e) * factor * v.template get<1>(e) + v.template get<2>(e);
    });
    v.set_number(4, center);
    v.set_number(5, factor);
  }
};

// Gradients also have `sums` terms of sums over rows: of the weight, and of the bias. What a row
// has one number of is read once.
template <class C>
struct Statistics {
  C center, factor;
};

/// Arrays: dy, x, weight?, rstd, dx, sums of groups of rows.
struct RmsNormBackward : KernelOfRows<3, 2> {
  static constexpr int sums = 1;
  static constexpr int partials = 5;
  static __device__ constexpr float absent(int) { return 1; }
  template <class View>
  static __device__ Statistics<typename View::C> statistics(const View& v) {
    return {0, v.number(3)};
  }
  template <class View>
  static __device__ void run(const View& v, const Statistics<typename View::C>& of) {
    using C = typename View::C;
    using Element = typename View::Element;
    const C factor = of.factor;
    const auto slope = [&](Element e) { return v.template get<0>(e) * v.template get<2>(e); };
    const C dot = sum_of_row(v, [&](Element e) { return slope(e) * v.template get<1>(e); });
    const C mean = dot * factor / static_cast<C>(v.a.length);
    v.set_each(
        4, [&](Element e) { return (slope(e) - v.template get<1>(e) * factor * mean) * factor; });
  }
  template <int, class View>
  static __device__ typename View::C term(const View& v, const Statistics<typename View::C>& of,
                                          typename View::Element e) {
    return v.template get<0>(e) * (v.template get<1>(e) * of.factor);
  }
};

/// Arrays: dy, x, weight?, mean, rstd, dx, sums of groups of rows.
struct LayerNormBackward : KernelOfRows<3, 2> {
  static constexpr int sums = 2;
  static constexpr int partials = 6;
  static __device__ constexpr float absent(int) { return 1; }
  template <class View>
  static __device__ Statistics<typename View::C> statistics(const View& v) {
    return {v.number(3), v.number(4)};
  }
  template <class View>
  static __device__ void run(const View& v, const Statistics<typename View::C>& of) {
    using C = typename View::C;
    using Element = typename View::Element;
    const C n = static_cast<C>(v.a.length);
    const C center = of.center, factor = of.factor;
    const auto slope = [&](Element e) { return v.template get<0>(e) * v.template get<2>(e); };
    const auto distance = [&](Element e) { return v.template get<1>(e) - center; };
    const C sum = sum_of_row(v, slope);
    const C dot = sum_of_row(v, [&](Element e) { return slope(e) * distance(e); });
    const C mean_gradient = sum / n, mean_dot = dot * factor / n;
    v.set_each(5, [&](Element e) {
      return (slope(e) - mean_gradient - distance(e) * factor * mean_dot) * factor;
    });
  }
  template <int which, class View>
  static __device__ typename View::C term(const View& v, const Statistics<typename View::C>& of,
                                          typename View::Element e) {
    if constexpr (which == 1) return v.template get<0>(e);
    return v.template get<0>(e) * ((v.template get<1>(e) - of.center) * of.factor);
  }
};

// Groups of rows, whose sums another launch joins. integers: the rows of a group, the groups.

__device__ std::int64_t end_of_group(const RowArguments& a, std::int64_t group) {
  const std::int64_t end = (group + 1) * a.integers[0];
  return end < a.rows ? end : a.rows;
}

template <class C>
__device__ C* sums_of_group(const RowArguments& a, int array, int which, std::int64_t group) {
  return static_cast<C*>(a.arrays[array].data) + (a.integers[1] * which + group) * a.length;
}

/// The gradients of rows, for any type and strides; a team has a row in turn.
template <class Kernel, class C>
__device__ void run_gradients_in_memory(const RowArguments& a) {
  const RowThreads team(a);
  for (std::int64_t row = team.number; row < a.rows; row += team.count) {
    const RowInMemory<Kernel, C> view{a, team, row};
    Kernel::run(view, Kernel::statistics(view));
  }
}

/// Only the sums, for any type and strides; a thread has a column of a group.
template <class Kernel, class C, int which = 0>
__device__ void sum_terms_in_memory(const RowArguments& a) {
  const RowThreads team(a);
  for (std::int64_t work = thread_place(); work < a.integers[1] * a.length;
       work += thread_count()) {
    const std::int64_t group = work / a.length, column = work % a.length;
    C sum = {};
    for (std::int64_t row = group * a.integers[0]; row < end_of_group(a, group); ++row) {
      const RowInMemory<Kernel, C> view{a, team, row};
      sum += Kernel::template term<which>(view, Kernel::statistics(view), column);
    }
    sums_of_group<C>(a, Kernel::partials, which, group)[column] = sum;
  }
  if constexpr (which + 1 < Kernel::sums) sum_terms_in_memory<Kernel, C, which + 1>(a);
}

/// A thread's part of the sums of a group.
template <class Kernel, class T>
struct SumsInPieces {
  using View = RowInPieces<Kernel, T>;
  float of[Kernel::sums][Kernel::pieces][View::width] = {};

  template <int which = 0>
  __device__ void add(const View& view, const Statistics<float>& statistics) {
    view.each([&](typename View::Element e) {
      of[which][e.piece][e.place] += Kernel::template term<which>(view, statistics, e);
    });
    if constexpr (which + 1 < Kernel::sums) add<which + 1>(view, statistics);
  }

  __device__ void store(const View& view, std::int64_t group) const {
#pragma unroll
    for (int which = 0; which < Kernel::sums; ++which) {
      float* const to = sums_of_group<float>(view.a, Kernel::partials, which, group);
#pragma unroll
      for (int n = 0; n < Kernel::pieces; ++n) {
        if (view.begin_of(n) < view.length) {
#pragma unroll
          for (int k = 0; k < View::width; k += 4) {
            const float(&all)[View::width] = of[which][n];
            store_piece<float>(to + view.begin_of(n) + k,
                               {all[k], all[k + 1], all[k + 2], all[k + 3]});
          }
        }
      }
    }
  }
};

/// The gradients of a row and the sums of its group, by one read; a team has a group in turn.
template <class Kernel, class T>
__device__ void run_groups_in_registers(const RowArguments& a) {
  const RowThreads team(a);
  RowInPieces<Kernel, T> view(a, team);
  view.template load<2>();
  for (std::int64_t group = team.number; group < a.integers[1]; group += team.count) {
    SumsInPieces<Kernel, T> sums;
    for (view.row = group * a.integers[0]; view.row < end_of_group(a, group); ++view.row) {
      view.template load<0>();
      view.template load<1>();
      const Statistics<float> statistics = Kernel::statistics(view);
      Kernel::run(view, statistics);
      sums.add(view, statistics);
    }
    sums.store(view, group);
  }
}

}  // namespace

// Kernels NAME_f32 and NAME_f64 of rows in memory, by the type that is computed in, and
// NAME_pieces_TYPE of rows in registers, by the elements' type.
#define LAUNCHED extern "C" __global__ void
#define LIMITED extern "C" __global__ void __launch_bounds__(largest_team)
#define IN_MEMORY(NAME, RUN, KERNEL)                                   \
  LAUNCHED NAME##_f32(const RowArguments a) { RUN<KERNEL, float>(a); } \
  LAUNCHED NAME##_f64(const RowArguments a) { RUN<KERNEL, double>(a); }
#define IN_REGISTERS(NAME, RUN, KERNEL)                                          \
  LIMITED NAME##_pieces_f32(const RowArguments a) { RUN<KERNEL, float>(a); }     \
  LIMITED NAME##_pieces_bf16(const RowArguments a) { RUN<KERNEL, BFloat16>(a); } \
  LIMITED NAME##_pieces_f16(const RowArguments a) { RUN<KERNEL, Half>(a); }
#define ROWS(NAME, KERNEL)                    \
  IN_MEMORY(NAME, run_rows_in_memory, KERNEL) \
  IN_REGISTERS(NAME, run_rows_in_registers, KERNEL)
#define GROUPS(NAME, KERNEL)                          \
  IN_MEMORY(NAME, run_gradients_in_memory, KERNEL)    \
  IN_REGISTERS(NAME, run_groups_in_registers, KERNEL) \
  IN_MEMORY(NAME##_sums, sum_terms_in_memory, KERNEL)

ROWS(softmax, Softmax)
ROWS(log_softmax, LogSoftmax)
ROWS(softmax_backward, SoftmaxBackward)
ROWS(log_softmax_backward, LogSoftmaxBackward)
ROWS(rms_norm, RmsNorm)
ROWS(layer_norm, LayerNorm)
GROUPS(rms_norm_backward, RmsNormBackward)
GROUPS(layer_norm_backward, LayerNormBackward)
