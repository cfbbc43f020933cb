// argmax and argmin.

#include <algorithm>
#include <array>
#include <cstddef>
#include <stdexcept>
#include <vector>

#include "reduce/kernels/reduce.hpp"
#include "reduce/kernels/reducers.hpp"
#include "shared/kernels/parallel.hpp"

namespace tessera::kernels {
namespace {

using namespace reducers;  // NOLINT(google-build-using-namespace)

/// An extreme element and where it is first.
template <class T>
struct Found {
  Plain<T> value;
  std::int64_t index;
};

/// Is `value` more extreme than all elements before it, of which `best` is the most extreme?
template <class R, class V>
[[gnu::always_inline]] inline bool beats(V value, V best) {
  return best == best && (value != value || (value != best && R::join(best, value) == value));
}

/// Of adjacent elements: the extreme of each part of the cache's size, then its place if it is new.
template <class R, class T>
Found<T> find_in_run(const T* x, std::int64_t first, std::int64_t last) {
  constexpr std::int64_t kPart = 1 << 12;
  Found<T> best{plain(x[first]), first};
  for (; first < last; first += kPart) {
    const std::int64_t size = std::min(kPart, last - first);
    const Plain<T> value = reduce_run<R>(x + first, size);
    if (!beats<R>(value, best.value)) continue;
    std::int64_t i = 0;
    const auto found = [value](Plain<T> element) {
      return element == value || (element != element && value != value);
    };
    while (!found(plain(x[first + i]))) ++i;
    best = {value, first + i};
  }
  return best;
}

template <class R, class T>
void find_in_rows(const ReduceShape& shape, const T* x, std::int64_t* y) {
  const std::int64_t blocks = (shape.reduced + kBlock - 1) / kBlock;
  std::vector<Found<T>> found(static_cast<std::size_t>(shape.outer * blocks));
  parallel_for(0, shape.outer * blocks, 1 + kBlock / 4 / (shape.reduced + 1),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t task = begin; task < end; ++task) {
                   const std::int64_t first = task % blocks * kBlock;
                   found[static_cast<std::size_t>(task)] =
                       find_in_run<R>(x + task / blocks * shape.reduced, first,
                                      std::min(shape.reduced, first + kBlock));
                 }
               });
  for (std::int64_t o = 0; o < shape.outer; ++o) {
    Found<T> best = found[static_cast<std::size_t>(o * blocks)];
    for (std::int64_t block = 1; block < blocks; ++block) {
      const Found<T>& other = found[static_cast<std::size_t>(o * blocks + block)];
      if (beats<R>(other.value, best.value)) best = other;
    }
    y[o] = best.index;
  }
}

template <class R, class T>
void find_in_columns(const ReduceShape& shape, const T* x, std::int64_t* y) {
  constexpr std::int64_t kWidth = 64;
  const std::int64_t pieces = (shape.inner + kWidth - 1) / kWidth;
  const std::int64_t work = shape.reduced * std::min(kWidth, shape.inner);
  parallel_for(0, shape.outer * pieces, 1 + kBlock / 4 / (work + 1),
               [&](std::int64_t begin, std::int64_t end) {
                 std::array<Plain<T>, kWidth> best;
                 std::array<std::int64_t, kWidth> index;
                 for (std::int64_t task = begin; task < end; ++task) {
                   const std::int64_t first = task % pieces * kWidth;
                   const std::int64_t width = std::min(kWidth, shape.inner - first);
                   const T* from = x + task / pieces * shape.reduced * shape.inner + first;
                   index.fill(0);
                   simd::dispatch([&](auto) __attribute__((always_inline)) {
                     for (std::int64_t i = 0; i < width; ++i) best.data()[i] = plain(from[i]);
                     for (std::int64_t r = 1; r < shape.reduced; ++r) {
                       const T* row = from + r * shape.inner;
                       for (std::int64_t i = 0; i < width; ++i) {
                         const Plain<T> value = plain(row[i]);
                         const bool better = beats<R>(value, best.data()[i]);
                         best.data()[i] = better ? value : best.data()[i];
                         index.data()[i] = better ? r : index.data()[i];
                       }
                     }
                   });
                   std::copy_n(index.data(), width, y + task / pieces * shape.inner + first);
                 }
               });
}

/// R: Maximum or Minimum.
template <template <class> class R>
void arg_reduce(DType dtype, const ReduceShape& shape, const void* x, std::int64_t* y) {
  if (shape.outer * shape.inner == 0) return;
  visit(dtype, [&]<class T>(T) {
    const auto* from = static_cast<const T*>(x);
    shape.inner == 1 ? find_in_rows<R<T>>(shape, from, y) : find_in_columns<R<T>>(shape, from, y);
  });
}

}  // namespace

void argmax(DType dtype, const ReduceShape& shape, const void* x, std::int64_t* y) {
  require_elements("argmax: the dim has no elements", shape);
  arg_reduce<Maximum>(dtype, shape, x, y);
}

void argmin(DType dtype, const ReduceShape& shape, const void* x, std::int64_t* y) {
  require_elements("argmin: the dim has no elements", shape);
  arg_reduce<Minimum>(dtype, shape, x, y);
}

}  // namespace tessera::kernels
