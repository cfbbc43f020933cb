// Softmaxes and norms over rows, with their gradients. C: float, or double for f64.
#include "kernels/rows.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

template <class C>
__device__ C row_maximum(const RowArguments& a, const Row<C>& x) {
  const C lowest = -static_cast<C>(INFINITY);
  C top = lowest;
  each_of_row(a, [&](std::int64_t i) { top = NanMaximum{}(top, x.get(i)); });
  return join_block(top, lowest, NanMaximum{});
}

/// Arrays: x, y.
template <class C>
__device__ void softmax(const RowArguments& a) {
  each_row(a, [&](std::int64_t row) {
    const Row<C> x(a, 0, row), y(a, 1, row);
    const C top = row_maximum(a, x);
    const C sum = row_sum<C>(a, [&](std::int64_t i) { return math::exp(x.get(i) - top); });
    const C factor = C{1} / sum;
    each_of_row(a, [&](std::int64_t i) { y.set(i, math::exp(x.get(i) - top) * factor); });
  });
}

/// Arrays: x, y.
template <class C>
__device__ void log_softmax(const RowArguments& a) {
  each_row(a, [&](std::int64_t row) {
    const Row<C> x(a, 0, row), y(a, 1, row);
    const C top = row_maximum(a, x);
    const C log_sum =
        math::log(row_sum<C>(a, [&](std::int64_t i) { return math::exp(x.get(i) - top); }));
    each_of_row(a, [&](std::int64_t i) { y.set(i, x.get(i) - top - log_sum); });
  });
}

/// Arrays: dy, y, dx.
template <class C>
__device__ void softmax_backward(const RowArguments& a) {
  each_row(a, [&](std::int64_t row) {
    const Row<C> dy(a, 0, row), y(a, 1, row), dx(a, 2, row);
    const C dot = row_sum<C>(a, [&](std::int64_t i) { return dy.get(i) * y.get(i); });
    each_of_row(a, [&](std::int64_t i) { dx.set(i, y.get(i) * (dy.get(i) - dot)); });
  });
}

/// Arrays: dy, y, dx.
template <class C>
__device__ void log_softmax_backward(const RowArguments& a) {
  each_row(a, [&](std::int64_t row) {
    const Row<C> dy(a, 0, row), y(a, 1, row), dx(a, 2, row);
    const C sum = row_sum<C>(a, [&](std::int64_t i) { return dy.get(i); });
    each_of_row(a, [&](std::int64_t i) { dx.set(i, dy.get(i) - math::exp(y.get(i)) * sum); });
  });
}

/// Arrays: x, weight?, y, rstd. numbers[0]: eps.
template <class C>
__device__ void rms_norm(const RowArguments& a) {
  each_row(a, [&](std::int64_t row) {
    const Row<C> x(a, 0, row), weight(a, 1, row), y(a, 2, row), rstd(a, 3, row);
    const C squares = row_sum<C>(a, [&](std::int64_t i) { return x.get(i) * x.get(i); });
    const C factor =
        C{1} / math::sqrt(squares / static_cast<C>(a.length) + static_cast<C>(a.numbers[0]));
    each_of_row(a, [&](std::int64_t i) { y.set(i, x.get(i) * factor * weight.get_or(i, 1)); });
    if (threadIdx.x == 0) rstd.set(0, factor);
  });
}

/// Arrays: dy, x, weight?, rstd, dx.
template <class C>
__device__ void rms_norm_backward(const RowArguments& a) {
  each_row(a, [&](std::int64_t row) {
    const Row<C> dy(a, 0, row), x(a, 1, row), weight(a, 2, row), rstd(a, 3, row), dx(a, 4, row);
    const C factor = rstd.get(0);
    const C dot =
        row_sum<C>(a, [&](std::int64_t i) { return dy.get(i) * weight.get_or(i, 1) * x.get(i); });
    const C mean = dot * factor / static_cast<C>(a.length);
    each_of_row(a, [&](std::int64_t i) {
      dx.set(i, (dy.get(i) * weight.get_or(i, 1) - x.get(i) * factor * mean) * factor);
    });
  });
}

/// Arrays: dy, x, rstd, dweight.
template <class C>
__device__ void rms_norm_weight(const RowArguments& a) {
  each_column<C>(
      a,
      [&](std::int64_t row, std::int64_t i) {
        const Row<C> dy(a, 0, row), x(a, 1, row), rstd(a, 2, row);
        return dy.get(i) * (x.get(i) * rstd.get(0));
      },
      [&](std::int64_t i, C sum) { Row<C>(a, 3, 0).set(i, sum); });
}

/// Arrays: x, weight?, bias?, y, mean, rstd. numbers[0]: eps.
template <class C>
__device__ void layer_norm(const RowArguments& a) {
  each_row(a, [&](std::int64_t row) {
    const Row<C> x(a, 0, row), weight(a, 1, row), bias(a, 2, row), y(a, 3, row);
    const C n = static_cast<C>(a.length);
    const C center = row_sum<C>(a, [&](std::int64_t i) { return x.get(i); }) / n;
    const C squares =
        row_sum<C>(a, [&](std::int64_t i) { return (x.get(i) - center) * (x.get(i) - center); });
    const C factor = C{1} / math::sqrt(squares / n + static_cast<C>(a.numbers[0]));
    each_of_row(a, [&](std::int64_t i) {
      y.set(i, (x.get(i) - center) * factor * weight.get_or(i, 1) + bias.get_or(i, 0));
    });
    if (threadIdx.x == 0) {
      Row<C>(a, 4, row).set(0, center);
      Row<C>(a, 5, row).set(0, factor);
    }
  });
}

/// Arrays: dy, x, weight?, mean, rstd, dx.
template <class C>
__device__ void layer_norm_backward(const RowArguments& a) {
  each_row(a, [&](std::int64_t row) {
    const Row<C> dy(a, 0, row), x(a, 1, row), weight(a, 2, row), dx(a, 5, row);
    const C n = static_cast<C>(a.length);
    const C center = Row<C>(a, 3, row).get(0), factor = Row<C>(a, 4, row).get(0);
    const C sum = row_sum<C>(a, [&](std::int64_t i) { return dy.get(i) * weight.get_or(i, 1); });
    const C dot = row_sum<C>(
        a, [&](std::int64_t i) { return dy.get(i) * weight.get_or(i, 1) * (x.get(i) - center); });
    const C mean_gradient = sum / n, mean_dot = dot * factor / n;
    each_of_row(a, [&](std::int64_t i) {
      const C normal = (x.get(i) - center) * factor;
      dx.set(i, (dy.get(i) * weight.get_or(i, 1) - mean_gradient - normal * mean_dot) * factor);
    });
  });
}

/// Arrays: dy, x, mean, rstd, dweight.
template <class C>
__device__ void layer_norm_weight(const RowArguments& a) {
  each_column<C>(
      a,
      [&](std::int64_t row, std::int64_t i) {
        const Row<C> dy(a, 0, row), x(a, 1, row), mean(a, 2, row), rstd(a, 3, row);
        return dy.get(i) * ((x.get(i) - mean.get(0)) * rstd.get(0));
      },
      [&](std::int64_t i, C sum) { Row<C>(a, 4, 0).set(i, sum); });
}

}  // namespace

extern "C" {

__global__ void softmax_f32(const RowArguments a) { softmax<float>(a); }
__global__ void softmax_f64(const RowArguments a) { softmax<double>(a); }
__global__ void log_softmax_f32(const RowArguments a) { log_softmax<float>(a); }
__global__ void log_softmax_f64(const RowArguments a) { log_softmax<double>(a); }
__global__ void softmax_backward_f32(const RowArguments a) { softmax_backward<float>(a); }
__global__ void softmax_backward_f64(const RowArguments a) { softmax_backward<double>(a); }
__global__ void log_softmax_backward_f32(const RowArguments a) { log_softmax_backward<float>(a); }
__global__ void log_softmax_backward_f64(const RowArguments a) { log_softmax_backward<double>(a); }
__global__ void rms_norm_f32(const RowArguments a) { rms_norm<float>(a); }
__global__ void rms_norm_f64(const RowArguments a) { rms_norm<double>(a); }
__global__ void rms_norm_backward_f32(const RowArguments a) { rms_norm_backward<float>(a); }
__global__ void rms_norm_backward_f64(const RowArguments a) { rms_norm_backward<double>(a); }
__global__ void rms_norm_weight_f32(const RowArguments a) { rms_norm_weight<float>(a); }
__global__ void rms_norm_weight_f64(const RowArguments a) { rms_norm_weight<double>(a); }
__global__ void layer_norm_f32(const RowArguments a) { layer_norm<float>(a); }
__global__ void layer_norm_f64(const RowArguments a) { layer_norm<double>(a); }
__global__ void layer_norm_backward_f32(const RowArguments a) { layer_norm_backward<float>(a); }
__global__ void layer_norm_backward_f64(const RowArguments a) { layer_norm_backward<double>(a); }
__global__ void layer_norm_weight_f32(const RowArguments a) { layer_norm_weight<float>(a); }
__global__ void layer_norm_weight_f64(const RowArguments a) { layer_norm_weight<double>(a); }

}  // extern "C"
