#include "convolution.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "matmul/kernels/gemm.hpp"
#include "shared/kernels/parallel.hpp"

namespace tessera::kernels {
namespace {

/// Calls f(image offset or -1, column offset) for each element of rows [begin, end) of the columns.
template <class F>
void for_each_element(const Windows& w, std::int64_t begin, std::int64_t end, F f) {
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t j = row % w.kernel[1];
    const std::int64_t i = row / w.kernel[1] % w.kernel[0];
    const std::int64_t channel = row / w.kernel[1] / w.kernel[0];
    std::int64_t at = row * w.positions();
    for (std::int64_t r = 0; r < w.out[0]; ++r) {
      const std::int64_t y = r * w.stride[0] - w.padding[0] + i * w.dilation[0];
      const bool inside = y >= 0 && y < w.in[0];
      const std::int64_t line = (channel * w.in[0] + y) * w.in[1];
      for (std::int64_t c = 0; c < w.out[1]; ++c) {
        const std::int64_t x = c * w.stride[1] - w.padding[1] + j * w.dilation[1];
        f(inside && x >= 0 && x < w.in[1] ? line + x : -1, at++);
      }
    }
  }
}

/// columns [channels * kernel[0] * kernel[1], out[0] * out[1]] = what each window sees of the
/// image, 0 outside of it.
template <class T>
void image_to_columns(const Windows& windows, const T* image, T* columns) {
  parallel_for(0, windows.rows(), 1 + (1 << 15) / (windows.positions() + 1),
               [&](std::int64_t begin, std::int64_t end) {
                 for_each_element(windows, begin, end, [&](std::int64_t from, std::int64_t to) {
                   columns[to] = from < 0 ? T{} : image[from];
                 });
               });
}

/// image += the columns' elements at the places that they came from.
template <class T>
void add_columns_to_image(const Windows& windows, const T* columns, T* image) {
  // Windows overlap within a channel only.
  const std::int64_t rows = windows.kernel[0] * windows.kernel[1];
  parallel_for(0, windows.channels, 1 + (1 << 15) / (rows * windows.positions() + 1),
               [&](std::int64_t begin, std::int64_t end) {
                 for_each_element(windows, begin * rows, end * rows,
                                  [&](std::int64_t to, std::int64_t from) {
                                    if (to >= 0) image[to] += columns[from];
                                  });
               });
}

/// Where a group of an image begins in each array.
struct Group {
  std::int64_t x;
  std::int64_t y;
  std::int64_t weight;
};

template <class F>
void for_each_group(const Convolutions& shape, F f) {
  const Windows& w = shape.windows;
  for (std::int64_t n = 0; n < shape.images; ++n) {
    for (std::int64_t g = 0; g < shape.groups; ++g) {
      const std::int64_t group = n * shape.groups + g;
      f(Group{group * w.channels * w.in[0] * w.in[1], group * shape.outputs * w.positions(),
              g * shape.outputs * w.rows()});
    }
  }
}

/// Room for the columns of a group.
template <class T>
std::vector<T> columns_of(const Windows& windows) {
  return std::vector<T>(
      windows.trivial() ? 0 : static_cast<std::size_t>(windows.rows() * windows.positions()));
}

/// The columns of a group of an image: the image itself, or made in `columns`.
template <class T>
const T* seen(const Windows& windows, const T* image, std::vector<T>& columns) {
  if (windows.trivial()) return image;
  image_to_columns(windows, image, columns.data());
  return columns.data();
}

}  // namespace

template <class T>
void convolve(const Convolutions& shape, const T* x, const T* weight, T* y, bool accumulate) {
  const Windows& w = shape.windows;
  std::vector<T> columns = columns_of<T>(w);
  for_each_group(shape, [&](Group group) {
    gemm(Gemm{.m = shape.outputs,
              .n = w.positions(),
              .k = w.rows(),
              .lda = w.rows(),
              .ldb = w.positions(),
              .ldc = w.positions(),
              .accumulate = accumulate},
         weight + group.weight, seen(w, x + group.x, columns), y + group.y);
  });
}

template <class T>
void convolve_grad_input(const Convolutions& shape, const T* dy, const T* weight, Compute<T>* dx) {
  using C = Compute<T>;
  const Windows& w = shape.windows;
  std::fill_n(dx, shape.images * shape.groups * w.channels * w.in[0] * w.in[1], C{0});
  std::vector<C> columns = columns_of<C>(w);
  for_each_group(shape, [&](Group group) {
    C* const to = w.trivial() ? dx + group.x : columns.data();
    gemm(Gemm{.trans_a = true,
              .m = w.rows(),
              .n = w.positions(),
              .k = shape.outputs,
              .lda = w.rows(),
              .ldb = w.positions(),
              .ldc = w.positions()},
         weight + group.weight, dy + group.y, to);
    if (!w.trivial()) add_columns_to_image(w, to, dx + group.x);
  });
}

template <class T>
void convolve_grad_weight(const Convolutions& shape, const T* dy, const T* x, Compute<T>* dweight) {
  const Windows& w = shape.windows;
  std::vector<T> columns = columns_of<T>(w);
  for_each_group(shape, [&](Group group) {
    gemm(Gemm{.trans_b = true,
              .m = shape.outputs,
              .n = w.rows(),
              .k = w.positions(),
              .lda = w.positions(),
              .ldb = w.positions(),
              .ldc = w.rows(),
              .accumulate = true},
         dy + group.y, seen(w, x + group.x, columns), dweight + group.weight);
  });
}

template <class T>
void max_pool(const Windows& windows, std::int64_t images, const T* x, T* y, std::int64_t* index) {
  using C = Compute<T>;
  const std::int64_t size = windows.in[0] * windows.in[1];
  parallel_for(
      0, images * windows.channels, 1 + (1 << 13) / (size + 1),
      [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t plane = begin; plane < end; ++plane) {
          const T* image = x + plane * size;
          std::int64_t at = plane * windows.positions();
          for (std::int64_t r = 0; r < windows.out[0]; ++r) {
            for (std::int64_t c = 0; c < windows.out[1]; ++c, ++at) {
              C top = -std::numeric_limits<C>::infinity();
              std::int64_t place = -1;
              for (std::int64_t i = 0; i < windows.kernel[0]; ++i) {
                const std::int64_t row =
                    r * windows.stride[0] - windows.padding[0] + i * windows.dilation[0];
                if (row < 0 || row >= windows.in[0]) continue;
                for (std::int64_t j = 0; j < windows.kernel[1]; ++j) {
                  const std::int64_t column =
                      c * windows.stride[1] - windows.padding[1] + j * windows.dilation[1];
                  if (column < 0 || column >= windows.in[1]) continue;
                  const auto value = static_cast<C>(image[row * windows.in[1] + column]);
                  if (place < 0 || value > top || (std::isnan(value) && !std::isnan(top))) {
                    top = value;
                    place = row * windows.in[1] + column;
                  }
                }
              }
              y[at] = static_cast<T>(top);
              index[at] = place;
            }
          }
        }
      });
}

template decltype(convolve<float>) convolve<float>;
template decltype(convolve<double>) convolve<double>;
template decltype(convolve<BFloat16>) convolve<BFloat16>;
template decltype(convolve<Half>) convolve<Half>;
template decltype(convolve_grad_input<float>) convolve_grad_input<float>;
template decltype(convolve_grad_input<double>) convolve_grad_input<double>;
template decltype(convolve_grad_input<BFloat16>) convolve_grad_input<BFloat16>;
template decltype(convolve_grad_input<Half>) convolve_grad_input<Half>;
template decltype(convolve_grad_weight<float>) convolve_grad_weight<float>;
template decltype(convolve_grad_weight<double>) convolve_grad_weight<double>;
template decltype(convolve_grad_weight<BFloat16>) convolve_grad_weight<BFloat16>;
template decltype(convolve_grad_weight<Half>) convolve_grad_weight<Half>;
template decltype(max_pool<float>) max_pool<float>;
template decltype(max_pool<double>) max_pool<double>;
template decltype(max_pool<BFloat16>) max_pool<BFloat16>;
template decltype(max_pool<Half>) max_pool<Half>;

}  // namespace tessera::kernels
