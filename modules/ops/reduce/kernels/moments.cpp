#include "reduce/kernels/moments.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>

#include "reduce/kernels/column_states.hpp"
#include "shared/kernels/parallel.hpp"

namespace tessera::kernels {
namespace {

using namespace states;  // NOLINT(google-build-using-namespace)

constexpr std::int64_t kBlock = 1 << 15;        // elements that are one task where there are more
constexpr std::int64_t kRun = 1 << 11;          // elements of a row that are added at once
constexpr std::int64_t kColumnBlock = 1 << 18;  // elements of columns that are one task
constexpr std::int64_t kGrain = 1 << 14;        // elements

/// y[o, i] = finish(the state of x[o, r, i] over r).
template <class State, class T, class Finish>
void reduce_rows(Workspace& workspace, const ReduceShape& shape, const T* x, T* y, Finish finish) {
  const auto of_block = [](const T* from, std::int64_t size) {
    State state;
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t i = 0; i < size; i += kRun)
        state.add_run(from + i, std::min(kRun, size - i));
    });
    return state;
  };
  const std::int64_t blocks = (shape.reduced + kBlock - 1) / kBlock;
  if (blocks <= 1) {
    if (workspace.counts()) return;
    parallel_for(0, shape.outer, 1 + kGrain / (shape.reduced + 1),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t o = begin; o < end; ++o)
                     y[o] = static_cast<T>(finish(of_block(x + o * shape.reduced, shape.reduced)));
                 });
    return;
  }
  auto* const states = workspace.take<State>(shape.outer * blocks);
  if (workspace.counts()) return;
  parallel_for(0, shape.outer * blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t first = task % blocks * kBlock;
      states[task] = of_block(x + task / blocks * shape.reduced + first,
                              std::min(kBlock, shape.reduced - first));
    }
  });
  for (std::int64_t o = 0; o < shape.outer; ++o) {
    State all;
    for (std::int64_t b = 0; b < blocks; ++b) all.join(states[o * blocks + b]);
    y[o] = static_cast<T>(finish(all));
  }
}

template <class State, class T, class Finish>
void reduce_columns(Workspace& workspace, const ReduceShape& shape, const T* x, T* y,
                    Finish finish) {
  const std::int64_t pieces = (shape.inner + kColumns - 1) / kColumns;
  const std::int64_t width = std::min(kColumns, shape.inner);
  const std::int64_t rows = Columns<State, T>::kRun / width;                      // of a run
  const std::int64_t block = std::max(rows, kColumnBlock / width / rows * rows);  // of a task
  const std::int64_t blocks = std::max<std::int64_t>(1, (shape.reduced + block - 1) / block);
  auto* const states = workspace.take<State>(blocks == 1 ? 0 : shape.outer * blocks * shape.inner);
  if (workspace.counts()) return;
  parallel_for(0, shape.outer * blocks * pieces,
               1 + kGrain / (std::min(block, shape.reduced) * width + 1),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t task = begin; task < end; ++task) {
                   const std::int64_t column = task % pieces * kColumns;
                   const std::int64_t size = std::min(kColumns, shape.inner - column);
                   const std::int64_t outer = task / pieces / blocks;
                   const std::int64_t first = task / pieces % blocks * block;
                   const std::int64_t last = std::min(shape.reduced, first + block);
                   Columns<State, T> columns(size);
                   simd::dispatch([&](auto) __attribute__((always_inline)) {
                     for (std::int64_t r = first; r < last; r += rows) {
                       columns.add(x + (outer * shape.reduced + r) * shape.inner + column,
                                   std::min(rows, last - r), shape.inner);
                     }
                   });
                   for (std::int64_t i = 0; i < size; ++i) {
                     const State state = columns.state(i);
                     if (blocks == 1) {
                       y[outer * shape.inner + column + i] = static_cast<T>(finish(state));
                     } else {
                       states[task / pieces * shape.inner + column + i] = state;
                     }
                   }
                 }
               });
  if (blocks == 1) return;
  parallel_for(
      0, shape.outer * shape.inner, 1 + kGrain / blocks / 8,
      [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t at = begin; at < end; ++at) {
          State all;
          for (std::int64_t b = 0; b < blocks; ++b) {
            all.join(states[(at / shape.inner * blocks + b) * shape.inner + at % shape.inner]);
          }
          y[at] = static_cast<T>(finish(all));
        }
      });
}

template <class State, class Finish>
void reduce_states(Workspace& workspace, const char* message, DType dtype, const ReduceShape& shape,
                   const void* x, void* y, Finish finish) {
  visit<FloatingTypes>(
      dtype,
      [&]<class T>(T) {
        if (shape.inner == 1) {
          reduce_rows<State>(workspace, shape, static_cast<const T*>(x), static_cast<T*>(y),
                             finish);
        } else if (shape.inner > 1) {
          reduce_columns<State>(workspace, shape, static_cast<const T*>(x), static_cast<T*>(y),
                                finish);
        }
      },
      [&] { throw std::invalid_argument(message); });
}

}  // namespace

void variance(Workspace& workspace, DType dtype, const ReduceShape& shape, const void* x,
              double correction, bool root, void* y) {
  reduce_states<Moments>(workspace, "variance: needs a floating type; cast the tensor first", dtype,
                         shape, x, y, [&](const Moments& all) {
                           const double value = all.squares / std::max(all.count - correction, 0.0);
                           return root ? std::sqrt(value) : value;
                         });
}

void log_sum_exp(Workspace& workspace, DType dtype, const ReduceShape& shape, const void* x,
                 void* y) {
  reduce_states<LogSum>(workspace, "log_sum_exp: needs a floating type; cast the tensor first",
                        dtype, shape, x, y, [](const LogSum& all) { return all.logarithm(); });
}

}  // namespace tessera::kernels
