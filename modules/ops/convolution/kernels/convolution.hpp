#pragma once
// Windows of images: convolutions, as products with the columns that windows see, and the maximum
// of each window. T: float, double, BFloat16, Half; C is Compute<T>.

#include <cstdint>

#include "shared/kernels/types.hpp"
#include "shared/kernels/workspace.hpp"

namespace tessera::kernels {

/// How windows lie on one image [channels, in[0], in[1]]: result (r, c) looks at rows r * stride[0]
/// - padding[0] + i * dilation[0] for i < kernel[0], and likewise at columns.
struct Windows {
  std::int64_t channels = 0;
  std::int64_t in[2] = {0, 0};
  std::int64_t out[2] = {0, 0};
  std::int64_t kernel[2] = {1, 1};
  std::int64_t stride[2] = {1, 1};
  std::int64_t padding[2] = {0, 0};
  std::int64_t dilation[2] = {1, 1};

  std::int64_t positions() const { return out[0] * out[1]; }
  std::int64_t rows() const { return channels * kernel[0] * kernel[1]; }
  /// The columns are the image itself.
  bool trivial() const {
    return kernel[0] == 1 && kernel[1] == 1 && stride[0] == 1 && stride[1] == 1 &&
           padding[0] == 0 && padding[1] == 0;
  }
};

/// images of groups * windows.channels channels, each group convolved with `outputs` kernels of its
/// own. All arrays are contiguous: x [images, groups * channels, in...], weight [groups * outputs,
/// channels, kernel...], y [images, groups * outputs, out...].
struct Convolutions {
  Windows windows;  // of one group
  std::int64_t images = 0;
  std::int64_t groups = 1;
  std::int64_t outputs = 0;
};

/// y = x convolved with weight, or y += that. Takes the columns of some rows for each thread.
template <class T>
void convolve(Workspace& workspace, const Convolutions& shape, const T* x, const T* weight, T* y,
              bool accumulate);

/// dx, cleared first, and dweight, added to: the gradients of convolve, images in order. Take
/// columns likewise; convolve_grad_weight partial sums of up to 16 sets of images too.
template <class T>
void convolve_grad_input(Workspace& workspace, const Convolutions& shape, const T* dy,
                         const T* weight, Compute<T>* dx);
template <class T>
void convolve_grad_weight(Workspace& workspace, const Convolutions& shape, const T* dy, const T* x,
                          Compute<T>* dweight);

/// y [images * channels, out...] = the largest element of each window, or NaN where one is; index:
/// its place in the image's in[0] * in[1] (the first one among equals; -1 where a window lies
/// outside and y is minus infinity).
template <class T>
void max_pool(const Windows& windows, std::int64_t images, const T* x, T* y, std::int64_t* index);

}  // namespace tessera::kernels
