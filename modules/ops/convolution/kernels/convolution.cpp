#include "convolution.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "matmul/kernels/gemm.hpp"
#include "shared/kernels/parallel.hpp"

namespace tessera::kernels {
namespace {

constexpr std::int64_t kColumnElements = 1 << 17;  // that are in the cache when they are multiplied
constexpr std::int64_t kWeightElements = 1 << 22;  // of partial sums of gradients of the weight

/// Some rows of the result of one group of one image.
struct Block {
  std::int64_t first;  // row
  std::int64_t last;
};

/// How many rows of the result are computed together.
std::int64_t block_rows(const Windows& w) {
  const std::int64_t row = std::max<std::int64_t>(1, w.rows() * w.out[1]);
  return std::clamp<std::int64_t>(kColumnElements / row, 1, std::max<std::int64_t>(1, w.out[0]));
}

std::int64_t block_count(const Windows& w) {
  return (w.out[0] + block_rows(w) - 1) / block_rows(w);
}

Block block_at(const Windows& w, std::int64_t block) {
  return {block * block_rows(w), std::min(w.out[0], (block + 1) * block_rows(w))};
}

/// Calls inside(image offset, column offset, count) for runs of positions whose element lies in the
/// image (stride[1] elements apart there, adjacent in the columns) and outside(column offset,
/// count) for the others. The columns of a block are [channels, kernel, positions of the block].
template <class Inside, class Outside>
void for_each_run(const Windows& w, Block block, Inside inside, Outside outside) {
  const std::int64_t width = (block.last - block.first) * w.out[1];
  for (std::int64_t row = 0; row < w.rows(); ++row) {
    const std::int64_t j = row % w.kernel[1];
    const std::int64_t i = row / w.kernel[1] % w.kernel[0];
    const std::int64_t channel = row / w.kernel[1] / w.kernel[0];
    const std::int64_t shift = w.padding[1] - j * w.dilation[1];
    // The positions c with 0 <= c * stride - shift < in.
    const auto reaches = [&](std::int64_t x) {
      return std::min((x + shift - 1) / w.stride[1] + 1, w.out[1]);  // x + shift is above 0
    };
    const std::int64_t begin = shift > 0 ? reaches(0) : 0;
    const std::int64_t end = w.in[1] + shift > 0 ? reaches(w.in[1]) : 0;
    for (std::int64_t r = block.first; r < block.last; ++r) {
      const std::int64_t at = row * width + (r - block.first) * w.out[1];
      const std::int64_t y = r * w.stride[0] - w.padding[0] + i * w.dilation[0];
      if (y < 0 || y >= w.in[0] || begin >= end) {
        outside(at, w.out[1]);
        continue;
      }
      outside(at, begin);
      inside((channel * w.in[0] + y) * w.in[1] + begin * w.stride[1] - shift, at + begin,
             end - begin);
      outside(at + end, w.out[1] - end);
    }
  }
}

/// columns = what each window of the block sees of the image, 0 outside of it.
template <class T>
void image_to_columns(const Windows& w, Block block, const T* image, T* columns) {
  const auto outside = [&](std::int64_t at, std::int64_t count) {
    std::fill_n(columns + at, count, T{});
  };
  const auto inside = [&](std::int64_t from, std::int64_t at, std::int64_t count) {
    if (w.stride[1] == 1) {
      std::copy_n(image + from, count, columns + at);
    } else {
      for (std::int64_t c = 0; c < count; ++c) columns[at + c] = image[from + c * w.stride[1]];
    }
  };
  for_each_run(w, block, inside, outside);
}

/// image += the columns' elements at the places that they came from.
template <class T>
void add_columns_to_image(const Windows& w, Block block, const T* columns, T* image) {
  const auto inside = [&](std::int64_t to, std::int64_t at, std::int64_t count) {
    if (w.stride[1] == 1) {
      for (std::int64_t c = 0; c < count; ++c) image[to + c] += columns[at + c];
    } else {
      for (std::int64_t c = 0; c < count; ++c) image[to + c * w.stride[1]] += columns[at + c];
    }
  };
  for_each_run(w, block, inside, [](std::int64_t, std::int64_t) {});
}

/// Where a group of an image begins in each array.
struct Group {
  std::int64_t x;
  std::int64_t y;
  std::int64_t weight;
};

Group group_at(const Convolutions& shape, std::int64_t group) {
  const Windows& w = shape.windows;
  return {group * w.channels * w.in[0] * w.in[1], group * shape.outputs * w.positions(),
          group % shape.groups * shape.outputs * w.rows()};
}

/// A block's columns: the image itself, or made in a part of the workspace.
template <class T>
struct Columns {
  const T* data;
  std::int64_t stride;

  Columns(Workspace& workspace, const Windows& w, Block block, const T* image) {
    if (w.trivial()) {
      data = image + block.first * w.out[1];
      stride = w.positions();
      return;
    }
    stride = (block.last - block.first) * w.out[1];
    T* const room = workspace.take<T>(w.rows() * stride);
    if (!workspace.counts()) image_to_columns(w, block, image, room);
    data = room;
  }
};

/// Parts with room for what use(part, block) takes: all blocks are equal but the last one.
template <class Use>
Workspace::Parts parts_for_blocks(Workspace& workspace, const Windows& w, Use use) {
  return workspace.per_thread([&](Workspace& part) {
    const Block last = block_at(w, std::max<std::int64_t>(0, block_count(w) - 1));
    use(part, block_at(w, 0));
    use(part, Block{0, last.last - last.first});
  });
}

}  // namespace

template <class T>
void convolve(Workspace& workspace, const Convolutions& shape, const T* x, const T* weight, T* y,
              bool accumulate) {
  const Windows& w = shape.windows;
  const std::int64_t blocks = block_count(w);
  if (shape.images * shape.groups * blocks == 0) return;
  const auto compute = [&](Workspace& part, const Group& group, Block block) {
    const Workspace::Scope of_block(part);
    const Columns<T> columns(part, w, block, x + group.x);
    gemm(part,
         Gemm{.m = shape.outputs,
              .n = (block.last - block.first) * w.out[1],
              .k = w.rows(),
              .lda = w.rows(),
              .ldb = columns.stride,
              .ldc = w.positions(),
              .accumulate = accumulate},
         weight + group.weight, columns.data, y + group.y + block.first * w.out[1]);
  };
  const Workspace::Parts parts = parts_for_blocks(
      workspace, w, [&](Workspace& part, Block block) { compute(part, Group{}, block); });
  if (workspace.counts()) return;
  parallel_for(0, shape.images * shape.groups * blocks, 1,
               [&](std::int64_t begin, std::int64_t end) {
                 Workspace part = parts.mine();
                 for (std::int64_t task = begin; task < end; ++task)
                   compute(part, group_at(shape, task / blocks), block_at(w, task % blocks));
               });
}

template <class T>
void convolve_grad_input(Workspace& workspace, const Convolutions& shape, const T* dy,
                         const T* weight, Compute<T>* dx) {
  using C = Compute<T>;
  const Windows& w = shape.windows;
  const std::int64_t image = w.channels * w.in[0] * w.in[1];
  const auto compute = [&](Workspace& part, const Group& group, Block block) {
    const Workspace::Scope of_block(part);
    const std::int64_t first = block.first * w.out[1];
    const std::int64_t width = (block.last - block.first) * w.out[1];
    C* const to = w.trivial() ? dx + group.x + first : part.take<C>(w.rows() * width);
    gemm(part,
         Gemm{.trans_a = true,
              .m = w.rows(),
              .n = width,
              .k = shape.outputs,
              .lda = w.rows(),
              .ldb = w.positions(),
              .ldc = w.trivial() ? w.positions() : width},
         weight + group.weight, dy + group.y + first, to);
    if (!w.trivial() && !part.counts()) add_columns_to_image(w, block, to, dx + group.x);
  };
  const Workspace::Parts parts = parts_for_blocks(
      workspace, w, [&](Workspace& part, Block block) { compute(part, Group{}, block); });
  if (workspace.counts()) return;
  // Windows overlap, so the blocks of a group follow each other.
  parallel_for(0, shape.images * shape.groups, 1, [&](std::int64_t begin, std::int64_t end) {
    Workspace part = parts.mine();
    for (std::int64_t task = begin; task < end; ++task) {
      const Group group = group_at(shape, task);
      if (!w.trivial()) std::fill_n(dx + group.x, image, C{0});
      for (std::int64_t b = 0; b < block_count(w); ++b) compute(part, group, block_at(w, b));
    }
  });
}

template <class T>
void convolve_grad_weight(Workspace& workspace, const Convolutions& shape, const T* dy, const T* x,
                          Compute<T>* dweight) {
  using C = Compute<T>;
  const Windows& w = shape.windows;
  const std::int64_t size = shape.outputs * w.rows();  // of a group's weight
  // Threads share sets of images, whose number depends on the extents alone.
  const std::int64_t most = kWeightElements / std::max<std::int64_t>(1, size * shape.groups);
  const std::int64_t sets = std::clamp<std::int64_t>(std::min<std::int64_t>(most, 16), 1,
                                                     std::max<std::int64_t>(1, shape.images));
  const auto compute = [&](Workspace& part, const Group& group, Block block, C* sum) {
    const Workspace::Scope of_block(part);
    const Columns<T> columns(part, w, block, x + group.x);
    gemm(part,
         Gemm{.trans_b = true,
              .m = shape.outputs,
              .n = w.rows(),
              .k = (block.last - block.first) * w.out[1],
              .lda = w.positions(),
              .ldb = columns.stride,
              .ldc = w.rows(),
              .accumulate = true},
         dy + group.y + block.first * w.out[1], columns.data, sum);
  };
  C* const partial = workspace.take<C>(sets * shape.groups * size);
  const Workspace::Parts parts = parts_for_blocks(
      workspace, w, [&](Workspace& part, Block block) { compute(part, Group{}, block, nullptr); });
  if (workspace.counts()) return;
  parallel_for(0, sets * shape.groups, 1, [&](std::int64_t begin, std::int64_t end) {
    Workspace part = parts.mine();
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t set = task / shape.groups;
      C* const sum = partial + task * size;
      std::fill_n(sum, size, C{0});
      for (std::int64_t n = shape.images * set / sets; n < shape.images * (set + 1) / sets; ++n) {
        const Group group = group_at(shape, n * shape.groups + task % shape.groups);
        for (std::int64_t b = 0; b < block_count(w); ++b) compute(part, group, block_at(w, b), sum);
      }
    }
  });
  for (std::int64_t set = 0; set < sets; ++set) {
    const C* from = partial + set * shape.groups * size;
    for (std::int64_t i = 0; i < shape.groups * size; ++i) dweight[i] += from[i];
  }
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
