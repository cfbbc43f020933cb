// Rows of tables, and losses of classes. Indices are looked at before, by one block: what is out of
// range is skipped in the kernels, and the host raises the error where it waits.
#include "kernels/rows.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

/// Arrays: table (its columns), indices, y. integers: the table's first row in the whole, its rows,
/// the stride of a row. Rows that are in other parts of the table are 0.
template <class C>
__device__ void embedding(const RowArguments& a) {
  each_row(a, [&](std::int64_t row) {
    const std::int64_t index = Row<std::int64_t>(a, 1, row).get(0) - a.integers[0];
    const bool here = index >= 0 && index < a.integers[1];
    const Row<C> table(a, 0, 0), y(a, 2, row);
    each_of_row(a, [&](std::int64_t i) {
      y.set(i,
            here ? load<C>(table.array.data, table.array.type, table.at(i) + index * a.integers[2])
                 : C{});
    });
  });
}

/// The maximum of a row and the sum of exp(x - maximum).
template <class C>
struct Statistics {
  C top, sum;
};
template <class C>
__device__ Statistics<C> statistics(const RowArguments& a, const Row<C>& x) {
  const C lowest = -static_cast<C>(INFINITY);
  C top = lowest;
  each_of_row(a, [&](std::int64_t i) { top = NanMaximum{}(top, x.get(i)); });
  top = join_block(top, lowest, NanMaximum{});
  return {top, row_sum<C>(a, [&](std::int64_t i) { return math::exp(x.get(i) - top); })};
}

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
template <class C>
__device__ void cross_entropy(const RowArguments& a) {
  each_row(a, [&](std::int64_t row) {
    const Statistics<C> s = statistics(a, Row<C>(a, 0, row));
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
template <class C>
__device__ void logits_statistics(const RowArguments& a) {
  each_row(a, [&](std::int64_t row) {
    const Row<C> x(a, 0, row);
    const Statistics<C> s = statistics(a, x);
    if (threadIdx.x != 0) return;
    const std::int64_t target = Row<std::int64_t>(a, 1, row).get(0);
    const std::int64_t at = target - a.integers[0];
    const bool counts = target != a.integers[1] && at >= 0 && at < a.length;
    Row<C>(a, 2, row).set(0, s.top);
    Row<C>(a, 3, row).set(0, s.sum);
    Row<C>(a, 4, row).set(0, counts ? x.get(at) : C{});
  });
}

/// Arrays: targets, y. The number of targets that are not integers[0].
__device__ void counted_rows(const RowArguments& a) {
  each_row(a, [&](std::int64_t row) {
    const Row<std::int64_t> targets(a, 0, row);
    const std::int64_t count = row_sum<std::int64_t>(
        a, [&](std::int64_t i) { return std::int64_t{targets.get(i) != a.integers[0]}; });
    if (threadIdx.x == 0) Row<std::int64_t>(a, 1, row).set(0, count);
  });
}

/// Arrays: dloss, logits, targets, log_sums, dlogits.
template <class C>
__device__ void cross_entropy_backward(const RowArguments& a) {
  each_row(a, [&](std::int64_t row) {
    const std::int64_t target = Row<std::int64_t>(a, 2, row).get(0);
    const bool ignored = target == a.integers[1];
    const C dloss = Row<C>(a, 0, row).get(0), log_sum = Row<C>(a, 3, row).get(0);
    const Row<C> x(a, 1, row), dx(a, 4, row);
    each_of_row(a, [&](std::int64_t i) {
      const C distance = x.get(i) - log_sum;
      const C share = i + a.integers[0] == target ? math::expm1(distance) : math::exp(distance);
      dx.set(i, ignored ? C{} : share * dloss);
    });
  });
}

}  // namespace

extern "C" {

/// By one block: the first index that is out of range, if none is known yet.
__global__ void find_wrong_index(const IndexArguments a) {
  std::int64_t first = a.indices.rows;
  for (std::int64_t i = threadIdx.x; i < a.indices.rows && first == a.indices.rows;
       i += blockDim.x) {
    const std::int64_t index = Row<std::int64_t>(a.indices, 0, i).get(0);
    const bool ignored = a.kind == ProblemKind::target && index == a.ignored;
    if (!ignored && (index < 0 || index >= a.limit)) first = i;
  }
  first = join_block(first, a.indices.rows, NanMinimum{});
  if (threadIdx.x != 0 || first == a.indices.rows || a.problem->kind != ProblemKind::none) return;
  a.problem->op = a.op;
  a.problem->value = Row<std::int64_t>(a.indices, 0, first).get(0);
  a.problem->place = first;
  a.problem->limit = a.limit;
  a.problem->ignored = a.ignored;
  a.problem->kind = a.kind;
}

__global__ void embedding_f32(const RowArguments a) { embedding<float>(a); }
__global__ void embedding_f64(const RowArguments a) { embedding<double>(a); }
__global__ void cross_entropy_f32(const RowArguments a) { cross_entropy<float>(a); }
__global__ void cross_entropy_f64(const RowArguments a) { cross_entropy<double>(a); }
__global__ void cross_entropy_sum_f32(const RowArguments a) { cross_entropy_sum<float>(a); }
__global__ void cross_entropy_sum_f64(const RowArguments a) { cross_entropy_sum<double>(a); }
__global__ void counted_rows_i64(const RowArguments a) { counted_rows(a); }
__global__ void logits_statistics_f32(const RowArguments a) { logits_statistics<float>(a); }
__global__ void logits_statistics_f64(const RowArguments a) { logits_statistics<double>(a); }
__global__ void cross_entropy_backward_f32(const RowArguments a) {
  cross_entropy_backward<float>(a);
}
__global__ void cross_entropy_backward_f64(const RowArguments a) {
  cross_entropy_backward<double>(a);
}

}  // extern "C"
