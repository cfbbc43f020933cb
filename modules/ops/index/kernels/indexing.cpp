#include "indexing.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <tuple>
#include <type_traits>

#include "shared/kernels/parallel.hpp"
#include "shared/kernels/streaming.hpp"

namespace tessera::kernels {
namespace {

constexpr std::int64_t kGrain = 1 << 15;

/// Calls element(outer, j, i, index) for every element of the indexed array, j in order for each
/// (outer, i). False where an index is outside [0, extent).
template <class Index, class Element>
bool for_each_index(const IndexShape& shape, const Index* indices, Element element) {
  std::atomic<bool> valid{true};
  const std::int64_t grain = 1 + kGrain / (shape.indices * shape.inner + 1);
  parallel_for(0, shape.outer, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t o = begin; o < end; ++o) {
      for (std::int64_t j = 0; j < shape.indices; ++j) {
        for (std::int64_t i = 0; i < shape.inner; ++i) {
          const std::int64_t from = (o * shape.indices + j) * shape.inner + i;
          const auto index = static_cast<std::int64_t>(indices[from]);
          if (index < 0 || index >= shape.extent) {
            valid.store(false, std::memory_order_relaxed);
            continue;
          }
          element(from, (o * shape.extent + index) * shape.inner + i);
        }
      }
    }
  });
  return valid.load();
}

template <class Index>
bool indices_valid(const IndexShape& shape, const Index* indices) {
  return std::all_of(indices, indices + shape.indices, [&](Index index) {
    return index >= 0 && static_cast<std::int64_t>(index) < shape.extent;
  });
}

}  // namespace

template <class T, class Index>
void embedding_forward(std::int64_t n, std::int64_t width, std::int64_t offset, std::int64_t count,
                       const T* table, const Index* indices, T* y) {
  parallel_for(0, n, 1 + kGrain / (width + 1), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = static_cast<std::int64_t>(indices[i]) - offset;
      if (row >= 0 && row < count) {
        std::copy_n(table + row * width, width, y + i * width);
      } else {
        std::fill_n(y + i * width, width, T{});
      }
    }
  });
}

template <class T, class Index>
void embedding_backward(std::int64_t n, std::int64_t width, std::int64_t offset, std::int64_t count,
                        const T* dy, const Index* indices, Summed<T>* dtable) {
  // Threads share out the columns, so that each element's sum has one order.
  parallel_for(0, width, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t row = static_cast<std::int64_t>(indices[i]) - offset;
      if (row < 0 || row >= count) continue;
      const T* from = dy + i * width;
      Summed<T>* to = dtable + row * width;
      for (std::int64_t column = begin; column < end; ++column) {
        to[column] += static_cast<Summed<T>>(from[column]);
      }
    }
  });
}

template <class T, class Index>
bool index_select(const IndexShape& shape, const T* x, const Index* indices, T* y) {
  if (!indices_valid(shape, indices)) return false;
  const std::int64_t rows = shape.outer * shape.indices;
  parallel_for(0, rows, 1 + kGrain / (shape.inner + 1), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const auto index = static_cast<std::int64_t>(indices[row % shape.indices]);
      const T* from = x + (row / shape.indices * shape.extent + index) * shape.inner;
      std::copy_n(from, shape.inner, y + row * shape.inner);
    }
  });
  return true;
}

template <class T, class Index>
bool index_add(const IndexShape& shape, const T* x, const Index* indices, Summed<T>* y) {
  if (!indices_valid(shape, indices)) return false;
  const std::int64_t grain = 1 + kGrain / (shape.indices * shape.inner + 1);
  parallel_for(0, shape.outer, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t o = begin; o < end; ++o) {
      for (std::int64_t j = 0; j < shape.indices; ++j) {
        const T* from = x + (o * shape.indices + j) * shape.inner;
        Summed<T>* to =
            y + (o * shape.extent + static_cast<std::int64_t>(indices[j])) * shape.inner;
        for (std::int64_t i = 0; i < shape.inner; ++i) to[i] += static_cast<Summed<T>>(from[i]);
      }
    }
  });
  return true;
}

/// Whether all of `count` indices are in [0, extent).
template <class Index>
bool are_inside(const Index* indices, std::int64_t count, std::uint64_t extent) {
  bool inside = true;
  simd::dispatch([&](auto) __attribute__((always_inline)) {
    std::uint64_t outside = 0;
    for (std::int64_t j = 0; j < count; ++j) {
      const auto index = static_cast<std::uint64_t>(indices[j]);  // negative: too large
      outside |= index < extent ? 0U : 1U;
    }
    inside = outside == 0;
  });
  return inside;
}

/// gather along the last dim: each line of x and of the indices is read once, in groups of indices
/// that stay in the cache while they are checked.
template <class T, class Index>
bool gather_in_lines(const IndexShape& shape, const T* x, const Index* indices, T* y) {
  constexpr std::int64_t kGroup = 1 << 10;
  std::atomic<bool> valid{true};
  const auto extent = static_cast<std::uint64_t>(shape.extent);
  const bool streamed = shape.indices * static_cast<std::int64_t>(sizeof(T)) % 64 == 0 &&
                        simd::is_streamed(y, 0, shape.outer * shape.indices);
  parallel_for(0, shape.outer, 1 + kGrain / (shape.indices + 1),
               [&](std::int64_t begin, std::int64_t end) {
                 alignas(64) std::array<T, kGroup> taken;
                 const simd::Stores done(streamed);
                 for (std::int64_t line = begin; line < end; ++line) {
                   const T* const from = x + line * shape.extent;
                   for (std::int64_t first = 0; first < shape.indices; first += kGroup) {
                     const Index* const at = indices + line * shape.indices + first;
                     const std::int64_t count = std::min(kGroup, shape.indices - first);
                     if (!are_inside(at, count, extent)) {
                       valid.store(false, std::memory_order_relaxed);
                       return;
                     }
                     T* const to = y + line * shape.indices + first;
                     T* const into = streamed ? taken.data() : to;
#pragma unroll 8
                     for (std::int64_t j = 0; j < count; ++j) into[j] = from[at[j]];
                     if (streamed)
                       simd::stream_bytes(to, into, count * static_cast<std::int64_t>(sizeof(T)));
                   }
                 }
               });
  return valid.load();
}

template <class T, class Index>
bool gather(const IndexShape& shape, const T* x, const Index* indices, T* y) {
  if (shape.inner == 1 && shape.extent > 0) return gather_in_lines(shape, x, indices, y);
  return for_each_index(shape, indices,
                        [&](std::int64_t element, std::int64_t chosen) { y[element] = x[chosen]; });
}

template <class T, class Index>
bool scatter(const IndexShape& shape, const T* x, const Index* indices, T* y) {
  return for_each_index(shape, indices,
                        [&](std::int64_t element, std::int64_t chosen) { y[chosen] = x[element]; });
}

template <class T, class Index>
bool scatter_add(const IndexShape& shape, const T* x, const Index* indices, Summed<T>* y) {
  return for_each_index(shape, indices, [&](std::int64_t element, std::int64_t chosen) {
    y[chosen] += static_cast<Summed<T>>(x[element]);
  });
}

// Whoever takes a function's address makes the compiler emit it.
namespace {

template <class T, class Index>
constexpr std::tuple moving{&embedding_forward<T, Index>, &index_select<T, Index>,
                            &gather<T, Index>, &scatter<T, Index>};
template <class T, class Index>
constexpr std::tuple adding{&index_add<T, Index>, &scatter_add<T, Index>};
template <class T, class Index>
constexpr auto floating =
    std::tuple_cat(moving<T, Index>, adding<T, Index>, std::tuple{&embedding_backward<T, Index>});
template <class Index>
constexpr auto all = std::tuple_cat(
    floating<float, Index>, floating<double, Index>, floating<BFloat16, Index>,
    floating<Half, Index>, moving<std::int64_t, Index>, adding<std::int64_t, Index>,
    moving<std::int32_t, Index>, adding<std::int32_t, Index>, moving<std::uint8_t, Index>);
[[gnu::used]] constexpr auto instances = std::tuple_cat(all<std::int32_t>, all<std::int64_t>);

}  // namespace

}  // namespace tessera::kernels
