// Products of groups of rows, each with a matrix of its own. How many rows a group has is known on
// the device only. Counts are looked at before, by one thread; what does not fit is cut off here.
#include "kernels/grouped.hpp"
#include "kernels/tile.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

/// The rows of a group: `count` from `first` on.
struct Group {
  std::int64_t number = 0, first = 0, count = 0;

  /// The first group.
  __device__ explicit Group(const GroupedArguments& a) : count(rows_of(a)) {}
  /// The next one; behind all groups are the rows that have none.
  __device__ void next(const GroupedArguments& a) {
    first += count;
    ++number;
    count = rows_of(a);
  }

 private:
  __device__ std::int64_t rows_of(const GroupedArguments& a) const {
    const std::int64_t left = a.rows - first;
    if (number == a.groups) return left;
    const std::int64_t rows = a.counts[number * a.step_of_counts];
    return rows < 0 ? 0 : rows < left ? rows : left;
  }
};

template <class C>
__device__ C element_of(const GroupedMatrix& x, std::int64_t group, std::int64_t row,
                        std::int64_t column) {
  return load<C>(x.data, x.type, group * x.group + row * x.row + column * x.column);
}

/// Tiles of rows are numbered through all groups; there are at most as many as blocks for them.
template <class C>
__device__ void product(const GroupedArguments& a) {
  const std::int64_t tiles_n = product_tiles(a.n);
  const std::int64_t tiles = (product_tiles(a.rows) + a.groups) * tiles_n;
  for (std::int64_t work = blockIdx.x; work < tiles; work += gridDim.x) {
    const std::int64_t first_n = work % tiles_n * product_tile;
    std::int64_t tile_of_group = work / tiles_n;
    Group group(a);
    while (group.number < a.groups && tile_of_group >= product_tiles(group.count)) {
      tile_of_group -= product_tiles(group.count);
      group.next(a);
    }
    const std::int64_t first_m = tile_of_group * product_tile;
    Tile<C> tile;
    multiply_tile(
        tile, group.number < a.groups ? a.k : 0,
        [&](int row, std::int64_t k) {
          const bool inside = first_m + row < group.count && k < a.k;
          return inside ? element_of<C>(a.a, 0, group.first + first_m + row, k) : C{};
        },
        [&](std::int64_t k, int column) {
          const bool inside = k < a.k && first_n + column < a.n;
          return inside ? element_of<C>(a.b, group.number, k, first_n + column) : C{};
        });
    tile.each([&](int row, int column, C value) {
      if (first_m + row >= group.count || first_n + column >= a.n) return;
      store(a.y.data, a.y.type,
            (group.first + first_m + row) * a.y.row + (first_n + column) * a.y.column, value);
    });
  }
}

template <class C>
__device__ void outer(const GroupedArguments& a) {
  const std::int64_t tiles_n = product_tiles(a.n);
  const std::int64_t tiles = product_tiles(a.m) * tiles_n;
  for (std::int64_t work = blockIdx.x; work < tiles * a.groups; work += gridDim.x) {
    const std::int64_t first_m = work % tiles / tiles_n * product_tile;
    const std::int64_t first_n = work % tiles_n * product_tile;
    Group group(a);
    while (group.number < work / tiles) group.next(a);
    Tile<C> tile;
    multiply_tile(
        tile, group.count,
        [&](int row, std::int64_t k) {
          const bool inside = k < group.count && first_m + row < a.m;
          return inside ? element_of<C>(a.a, 0, group.first + k, first_m + row) : C{};
        },
        [&](std::int64_t k, int column) {
          const bool inside = k < group.count && first_n + column < a.n;
          return inside ? element_of<C>(a.b, 0, group.first + k, first_n + column) : C{};
        });
    tile.each([&](int row, int column, C value) {
      const std::int64_t m = first_m + row, n = first_n + column;
      if (m >= a.m || n >= a.n) return;
      store(a.y.data, a.y.type, group.number * a.y.group + m * a.y.row + n * a.y.column, value);
    });
  }
}

}  // namespace

extern "C" {

/// By one thread: the first count that does not fit, if nothing else is known to be wrong.
__global__ void find_wrong_group(const GroupedArguments a) {
  if (threadIdx.x != 0) return;
  std::int64_t left = a.rows;
  for (std::int64_t group = 0; group < a.groups; ++group) {
    const std::int64_t count = a.counts[group * a.step_of_counts];
    if (count < 0 || count > left) {
      if (a.problem->kind != ProblemKind::none) return;
      a.problem->op = a.op;
      a.problem->value = count;
      a.problem->place = group;
      a.problem->limit = left + 1;
      a.problem->kind = ProblemKind::group;
      return;
    }
    left -= count;
  }
}

__global__ void grouped_product_f32(const GroupedArguments a) { product<float>(a); }
__global__ void grouped_product_f64(const GroupedArguments a) { product<double>(a); }
__global__ void grouped_outer_f32(const GroupedArguments a) { outer<float>(a); }
__global__ void grouped_outer_f64(const GroupedArguments a) { outer<double>(a); }

}  // extern "C"
