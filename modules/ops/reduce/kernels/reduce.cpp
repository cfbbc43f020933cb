#include "reduce.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "reduce/kernels/reducers.hpp"
#include "shared/kernels/parallel.hpp"

namespace tessera::kernels {
namespace {

using namespace reducers;  // NOLINT(google-build-using-namespace)

constexpr std::int64_t kColumns = 1024;  // columns that are reduced together
constexpr std::int64_t kRows = 4;        // rows that are joined at once

template <class Body>
void visit_floating(DType dtype, const char* message, Body body) {
  visit<FloatingTypes>(dtype, body, [&] { throw std::invalid_argument(message); });
}

/// Reduces a long contiguous run in blocks of a fixed size, joined in order.
template <class R, class T>
typename R::Value reduce_long(Workspace& workspace, const T* x, std::int64_t count) {
  if (count <= kBlock) return workspace.counts() ? R::start() : reduce_run<R>(x, count);
  const std::int64_t blocks = (count + kBlock - 1) / kBlock;
  const Workspace::Scope of_run(workspace);
  auto* const partial = workspace.take<typename R::Value>(blocks);
  if (workspace.counts()) return R::start();
  parallel_for(0, blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t first = block * kBlock;
      partial[block] = reduce_run<R>(x + first, std::min(kBlock, count - first));
    }
  });
  typename R::Value result = R::start();
  for (std::int64_t block = 0; block < blocks; ++block) result = R::join(result, partial[block]);
  return result;
}

/// values[i] = values[i] joined with the elements of column i, in order: kCount rows of kStrip (or
/// `width`) columns.
template <class R, std::int64_t kCount, class T>
[[gnu::always_inline]] inline void join_strip(const T* x, std::int64_t width, std::int64_t stride,
                                              typename R::Value* values) {
  for (std::int64_t i = 0; i < width; ++i) {
    typename R::Value value = values[i];
#pragma unroll
    for (std::int64_t row = 0; row < kCount; ++row)
      value = R::join(value, R::of(x[row * stride + i]));
    values[i] = value;
  }
}

/// Reduces all rows. The rows that follow are brought into the cache meanwhile: where rows are
/// pages apart, the machine does not do so by itself.
template <class R, class T>
[[gnu::always_inline]] inline void join_rows(const T* x, std::int64_t rows, std::int64_t width,
                                             std::int64_t stride, typename R::Value* values) {
  constexpr std::int64_t kStrip = 64;
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));
  std::int64_t r = 0;
  for (; r + kRows <= rows; r += kRows, x += kRows * stride) {
    std::int64_t i = 0;
    for (; i + kStrip <= width; i += kStrip) {
      for (std::int64_t row = kRows; row < 2 * kRows; ++row) {
        for (std::int64_t at = 0; at < kStrip; at += kLine)
          __builtin_prefetch(x + row * stride + i + at);
      }
      join_strip<R, kRows>(x + i, kStrip, stride, values + i);
    }
    join_strip<R, kRows>(x + i, width - i, stride, values + i);
  }
  for (; r < rows; ++r, x += stride) join_strip<R, 1>(x, width, stride, values);
}

/// Reduces columns, in blocks of rows that are joined in order.
template <class R, class T, class Out, class Finish>
void reduce_columns(Workspace& workspace, const ReduceShape& shape, const T* x, Out* y,
                    Finish finish) {
  using Value = typename R::Value;
  const std::int64_t pieces = (shape.inner + kColumns - 1) / kColumns;
  const std::int64_t rows = kBlock / std::min<std::int64_t>(256, shape.inner);  // of a block
  const std::int64_t blocks = std::max<std::int64_t>(1, (shape.reduced + rows - 1) / rows);
  struct Line {
    std::array<Value, kColumns> values;
  };
  Line* const partial = workspace.take<Line>(blocks == 1 ? 0 : shape.outer * pieces * blocks);
  if (workspace.counts()) return;
  const auto each_piece = [&](std::int64_t piece, auto use) {
    const std::int64_t first = piece % pieces * kColumns;
    use(piece / pieces, first, std::min(kColumns, shape.inner - first));
  };
  const auto finish_line = [&](std::int64_t piece, const Line& line) {
    each_piece(piece, [&](std::int64_t outer, std::int64_t first, std::int64_t width) {
      Out* to = y + outer * shape.inner + first;
      for (std::int64_t i = 0; i < width; ++i) to[i] = finish(line.values.data()[i]);
    });
  };
  const std::int64_t work = std::min(rows, shape.reduced) * std::min(kColumns, shape.inner);
  parallel_for(0, shape.outer * pieces * blocks, 1 + kBlock / 2 / (work + 1),
               [&](std::int64_t begin, std::int64_t end) {
                 Line line;
                 for (std::int64_t task = begin; task < end; ++task) {
                   const std::int64_t first_row = task % blocks * rows;
                   const std::int64_t last_row = std::min(shape.reduced, first_row + rows);
                   each_piece(task / blocks,
                              [&](std::int64_t outer, std::int64_t first, std::int64_t width) {
                                const T* from = x + outer * shape.reduced * shape.inner + first;
                                line.values.fill(R::start());
                                simd::dispatch([&](auto) __attribute__((always_inline)) {
                                  join_rows<R>(from + first_row * shape.inner, last_row - first_row,
                                               width, shape.inner, line.values.data());
                                });
                              });
                   if (blocks == 1) {
                     finish_line(task, line);
                   } else {
                     partial[task] = line;
                   }
                 }
               });
  if (blocks == 1) return;
  for (std::int64_t piece = 0; piece < shape.outer * pieces; ++piece) {
    Line all = partial[piece * blocks];
    for (std::int64_t block = 1; block < blocks; ++block) {
      const Line& line = partial[piece * blocks + block];
      for (std::size_t i = 0; i < all.values.size(); ++i) {
        all.values.data()[i] = R::join(all.values.data()[i], line.values.data()[i]);
      }
    }
    finish_line(piece, all);
  }
}

/// finish(value) gives the output's element.
template <class R, class T, class Out, class Finish>
void reduce_all(Workspace& workspace, const ReduceShape& shape, const T* x, Out* y, Finish finish) {
  if (shape.outer * shape.inner == 0) return;
  if (shape.inner == 1) {
    if (shape.reduced > kBlock) {
      if (workspace.counts()) {
        reduce_long<R>(workspace, x, shape.reduced);  // all use the same memory
        return;
      }
      for (std::int64_t o = 0; o < shape.outer; ++o) {
        y[o] = finish(reduce_long<R>(workspace, x + o * shape.reduced, shape.reduced));
      }
      return;
    }
    if (workspace.counts()) return;
    parallel_for(0, shape.outer, 1 + kBlock / 2 / (shape.reduced + 1),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t o = begin; o < end; ++o) {
                     y[o] = finish(reduce_run<R>(x + o * shape.reduced, shape.reduced));
                   }
                 });
    return;
  }
  reduce_columns<R>(workspace, shape, x, y, finish);
}

template <class T>
void reduce_type(Workspace& workspace, ReduceOp op, const ReduceShape& shape, const T* x, void* y) {
  using SumOut = std::conditional_t<kIsFloating<T>, T, std::int64_t>;
  const auto to_sum = [](auto value) { return static_cast<SumOut>(value); };
  const auto to_element = [](auto value) { return static_cast<T>(value); };
  const auto to_bool = [](std::int32_t value) { return static_cast<std::uint8_t>(value); };
  switch (op) {
    case ReduceOp::sum:
      return reduce_all<Sum<T>>(workspace, shape, x, static_cast<SumOut*>(y), to_sum);
    case ReduceOp::mean:
      if constexpr (kIsFloating<T>) {
        const auto count = static_cast<double>(shape.reduced);
        return reduce_all<Sum<T>>(workspace, shape, x, static_cast<T*>(y),
                                  [count](double sum) { return static_cast<T>(sum / count); });
      }
      throw std::invalid_argument("reduce: a mean needs a floating type; cast the tensor first");
    case ReduceOp::prod:
      return reduce_all<Product<T>>(workspace, shape, x, static_cast<SumOut*>(y), to_sum);
    case ReduceOp::amax:
      return reduce_all<Maximum<T>>(workspace, shape, x, static_cast<T*>(y), to_element);
    case ReduceOp::amin:
      return reduce_all<Minimum<T>>(workspace, shape, x, static_cast<T*>(y), to_element);
    case ReduceOp::all:
      return reduce_all<All<T>>(workspace, shape, x, static_cast<std::uint8_t*>(y), to_bool);
    case ReduceOp::any:
      return reduce_all<Any<T>>(workspace, shape, x, static_cast<std::uint8_t*>(y), to_bool);
  }
}

/// The sum of |x|^p for a small integer p.
template <int p>
struct Powers {
  template <class T>
  struct Of : Sum<T> {
    [[gnu::always_inline]] static double of(T x) {
      const double value = std::abs(static_cast<double>(x));
      double power = value;
#pragma unroll
      for (int i = 1; i < p; ++i) power *= value;
      return power;
    }
  };
};

/// (sum over r of |x|^p)^(1/p) for any p, by the library's function for each element.
template <class T>
void norm_of_order(Workspace& workspace, const ReduceShape& shape, const T* x, double p, T* y) {
  const std::int64_t rows =
      std::max<std::int64_t>(1, kBlock / 8 / std::max<std::int64_t>(1, shape.inner));
  const std::int64_t blocks = std::max<std::int64_t>(1, (shape.reduced + rows - 1) / rows);
  const std::int64_t results = shape.outer * shape.inner;
  auto* const sums = workspace.take<double>(shape.outer * blocks * shape.inner);
  if (workspace.counts()) return;
  parallel_for(0, shape.outer * blocks, 1 + 256 / (std::min(rows, shape.reduced) * shape.inner + 1),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t task = begin; task < end; ++task) {
                   const std::int64_t first = task % blocks * rows;
                   const std::int64_t last = std::min(shape.reduced, first + rows);
                   double* sum = sums + task * shape.inner;
                   std::fill_n(sum, shape.inner, 0.0);
                   for (std::int64_t r = first; r < last; ++r) {
                     const T* row = x + (task / blocks * shape.reduced + r) * shape.inner;
                     for (std::int64_t i = 0; i < shape.inner; ++i)
                       sum[i] += std::pow(std::abs(static_cast<double>(row[i])), p);
                   }
                 }
               });
  for (std::int64_t at = 0; at < results; ++at) {
    double sum = 0;
    for (std::int64_t block = 0; block < blocks; ++block)
      sum += sums[(at / shape.inner * blocks + block) * shape.inner + at % shape.inner];
    y[at] = static_cast<T>(std::pow(sum, 1 / p));
  }
}

}  // namespace

void reduce(Workspace& workspace, ReduceOp op, DType dtype, const ReduceShape& shape, const void* x,
            void* y) {
  if (op == ReduceOp::amax || op == ReduceOp::amin) {
    require_elements("reduce: amax and amin need at least one element", shape);
  }
  visit(dtype,
        [&]<class T>(T) { reduce_type<T>(workspace, op, shape, static_cast<const T*>(x), y); });
}

void norm(Workspace& workspace, DType dtype, const ReduceShape& shape, const void* x, double p,
          void* y) {
  visit_floating(dtype, "norm: needs a floating type; cast the tensor first", [&]<class T>(T) {
    const auto* from = static_cast<const T*>(x);
    auto* to = static_cast<T*>(y);
    if (p == 2) {
      reduce_all<Squares<T>>(workspace, shape, from, to,
                             [](double sum) { return static_cast<T>(std::sqrt(sum)); });
    } else if (p == 1) {
      reduce_all<Absolutes<T>>(workspace, shape, from, to,
                               [](double sum) { return static_cast<T>(sum); });
    } else if (p == 0) {
      reduce_all<Nonzeros<T>>(workspace, shape, from, to,
                              [](double count) { return static_cast<T>(count); });
    } else if (std::isinf(p)) {
      const auto to_element = [](auto value) { return static_cast<T>(value); };
      if (p > 0) return reduce_all<MaximumAbs<T>>(workspace, shape, from, to, to_element);
      require_elements("norm: the smallest of no magnitudes", shape);
      reduce_all<MinimumAbs<T>>(workspace, shape, from, to, to_element);
    } else if (p == 3) {
      reduce_all<Powers<3>::Of<T>>(workspace, shape, from, to,
                                   [](double sum) { return static_cast<T>(std::cbrt(sum)); });
    } else if (p == 4) {
      reduce_all<Powers<4>::Of<T>>(workspace, shape, from, to, [](double sum) {
        return static_cast<T>(std::sqrt(std::sqrt(sum)));
      });
    } else {
      norm_of_order(workspace, shape, from, p, to);
    }
  });
}

double sum_of_squares(Workspace& workspace, DType dtype, std::int64_t count, const void* x) {
  double result = 0.0;
  visit_floating(dtype, "sum_of_squares: needs a floating type; cast the tensor first",
                 [&]<class T>(T) {
                   result = reduce_long<Squares<T>>(workspace, static_cast<const T*>(x), count);
                 });
  return result;
}

double max_abs(Workspace& workspace, DType dtype, std::int64_t count, const void* x) {
  double result = 0.0;
  visit_floating(dtype, "max_abs: needs a floating type; cast the tensor first", [&]<class T>(T) {
    result =
        static_cast<double>(reduce_long<MaximumAbs<T>>(workspace, static_cast<const T*>(x), count));
  });
  return result;
}

void expand(DType dtype, const ReduceShape& shape, const void* x, double scale, void* y) {
  visit_floating(dtype, "expand: gradients need a floating type", [&]<class T>(T) {
    using C = Compute<T>;
    const auto factor = static_cast<C>(scale);
    const std::int64_t rows = shape.outer * shape.reduced;
    parallel_for(0, rows, 1 + kBlock / 2 / (shape.inner + 1),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) {
                     const T* from = static_cast<const T*>(x) + row / shape.reduced * shape.inner;
                     T* to = static_cast<T*>(y) + row * shape.inner;
                     for (std::int64_t i = 0; i < shape.inner; ++i)
                       to[i] = static_cast<T>(static_cast<C>(from[i]) * factor);
                   }
                 });
  });
}

}  // namespace tessera::kernels
