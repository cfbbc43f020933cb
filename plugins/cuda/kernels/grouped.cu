// Products of groups of rows, each with a matrix of its own. How many rows a group has is known on
// the device only; what does not fit is cut off here, and noted for the host.
#include "kernels/grouped.hpp"
#include "kernels/mma_product.hpp"
#include "kernels/tile.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

__device__ std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// Of the lane and those before it.
__device__ std::int64_t sum_to_lane(std::int64_t value) {
  const int lane = threadIdx.x % lanes_of_warp;
  for (int by = 1; by < lanes_of_warp; by *= 2) {
    const std::int64_t before = __shfl_up_sync(~0U, value, static_cast<unsigned>(by));
    if (lane >= by) value += before;
  }
  return value;
}

/// The rows of a group: `count` from `first` on. Behind all groups are the rows that have none.
struct Group {
  std::int64_t number, first, count;

  /// Of a lane: groups `number` to `number` + 31, before which are `before` rows. The warp's lanes
  /// call it together.
  __device__ Group(const GroupedArguments& a, std::int64_t base, std::int64_t before)
      : number(base + threadIdx.x % lanes_of_warp) {
    const std::int64_t given = number < a.groups    ? a.counts[number * a.step_of_counts]
                               : number == a.groups ? a.rows
                                                    : 0;
    const std::int64_t rows = given < 0 ? 0 : least(given, a.rows);
    const std::int64_t end = before + sum_to_lane(rows);
    first = least(end - rows, a.rows);
    count = least(end, a.rows) - first;
  }

  /// A lane's group, for all lanes.
  __device__ Group of_lane(int lane) const {
    Group group = *this;
    group.number = __shfl_sync(~0U, number, lane);
    group.first = __shfl_sync(~0U, first, lane);
    group.count = __shfl_sync(~0U, count, lane);
    return group;
  }
  __device__ std::int64_t end() const { return first + count; }
};

__device__ Group group_of(const GroupedArguments& a, std::int64_t number) {
  std::int64_t before = 0;
  for (std::int64_t base = 0;; base += lanes_of_warp) {
    const Group of_lanes(a, base, before);
    if (number - base < lanes_of_warp) return of_lanes.of_lane(static_cast<int>(number - base));
    before = of_lanes.of_lane(lanes_of_warp - 1).end();
  }
}

/// A tile of a group's rows.
struct GroupTile {
  Group group;
  std::int64_t first;  // of its rows, within the group
};

/// Tiles are numbered through all groups. Behind the last tile are those of a group without rows.
template <int rows>
__device__ GroupTile tile_of(const GroupedArguments& a, std::int64_t tile) {
  std::int64_t before = 0;
  for (std::int64_t base = 0;; base += lanes_of_warp) {
    const Group of_lanes(a, base, before);
    const std::int64_t tiles = product_tiles(of_lanes.count, rows), end = sum_to_lane(tiles);
    const unsigned behind = __ballot_sync(~0U, end > tile);
    const bool is_last = base + lanes_of_warp > a.groups;
    if (behind != 0 || is_last) {
      const int lane = behind != 0 ? __ffs(static_cast<int>(behind)) - 1 : lanes_of_warp - 1;
      const std::int64_t first = (tile - __shfl_sync(~0U, end - tiles, lane)) * rows;
      return {of_lanes.of_lane(lane), first};
    }
    tile -= __shfl_sync(~0U, end, lanes_of_warp - 1);
    before = of_lanes.of_lane(lanes_of_warp - 1).end();
  }
}

/// Notes the first count that does not fit, if nothing else is known to be wrong.
__device__ void look_at_counts(const GroupedArguments& a) {
  if (blockIdx.x != 0 || threadIdx.x >= lanes_of_warp) return;
  std::int64_t before = 0;
  for (std::int64_t base = 0; base < a.groups; base += lanes_of_warp) {
    const Group group(a, base, before);
    const std::int64_t count =
        group.number < a.groups ? a.counts[group.number * a.step_of_counts] : 0;
    const std::int64_t left = a.rows - group.first;
    const unsigned wrong = __ballot_sync(~0U, count < 0 || count > left);
    if (wrong != 0) {
      const int lane = __ffs(static_cast<int>(wrong)) - 1;
      if (lane == static_cast<int>(threadIdx.x) && a.problem->kind == ProblemKind::none) {
        a.problem->op = a.op;
        a.problem->value = count;
        a.problem->place = group.number;
        a.problem->limit = left + 1;
        a.problem->kind = ProblemKind::group;
      }
      return;
    }
    before = group.of_lane(lanes_of_warp - 1).end();
  }
}

// ---- any type and strides ----

template <class C>
__device__ C element_of(const GroupedMatrix& x, std::int64_t group, std::int64_t row,
                        std::int64_t column) {
  return load<C>(x.data, x.type, group * x.group + row * x.row + column * x.column);
}

template <class C>
__device__ void product(const GroupedArguments& a) {
  look_at_counts(a);
  const std::int64_t tiles_n = product_tiles(a.n);
  const std::int64_t tiles = (product_tiles(a.rows) + a.groups) * tiles_n;
  for (std::int64_t work = blockIdx.x; work < tiles; work += gridDim.x) {
    const std::int64_t first_n = work % tiles_n * product_tile;
    const auto [group, first_m] = tile_of<product_tile>(a, work / tiles_n);
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
  look_at_counts(a);
  const std::int64_t tiles_n = product_tiles(a.n);
  const std::int64_t tiles = product_tiles(a.m) * tiles_n;
  for (std::int64_t work = blockIdx.x; work < tiles * a.groups; work += gridDim.x) {
    const std::int64_t first_m = work % tiles / tiles_n * product_tile;
    const std::int64_t first_n = work % tiles_n * product_tile;
    const Group group = group_of(a, work / tiles);
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

// ---- tensor cores: a block for each tile ----

/// The rows of x from (group, row, column) on; `rows` and `elements` are those that exist.
__device__ TileRows rows_of(const GroupedMatrix& x, std::int64_t step, std::int64_t offset,
                            std::int64_t rows, std::int64_t elements) {
  return {static_cast<std::uint16_t*>(x.data) + offset, step, rows, elements};
}

/// `turned`: b has columns of consecutive elements, as weights [groups, n, k] that are transposed.
template <class T, bool turned>
__device__ void mma_product(const GroupedArguments& a) {
  look_at_counts(a);
  const std::int64_t tiles_n = product_tiles(a.n, mma_columns);
  const std::int64_t n = blockIdx.x % tiles_n * mma_columns, left_n = a.n - n;
  const auto [group, m] = tile_of<mma_rows>(a, blockIdx.x / tiles_n);
  const std::int64_t left_m = group.count - m, row = group.first + m;
  if (left_m <= 0) return;
  const std::int64_t terms = group.number < a.groups ? a.k : 0;
  const std::int64_t of_b = group.number * a.b.group;
  MmaTile<T, true, turned> tile;
  tile.multiply(rows_of(a.a, a.a.row, row * a.a.row, left_m, a.k),
                turned ? rows_of(a.b, a.b.column, of_b + n * a.b.column, left_n, a.k)
                       : rows_of(a.b, a.b.row, of_b + n, a.k, left_n),
                terms);
  tile.write(rows_of(a.y, a.y.row, row * a.y.row + n, left_m, left_n));
}

template <class T>
__device__ void mma_outer(const GroupedArguments& a) {
  look_at_counts(a);
  const std::int64_t tiles_m = product_tiles(a.m, mma_rows),
                     tiles_n = product_tiles(a.n, mma_columns);
  const std::int64_t m = blockIdx.x / tiles_n % tiles_m * mma_rows;
  const std::int64_t n = blockIdx.x % tiles_n * mma_columns;
  const Group group = group_of(a, blockIdx.x / (tiles_m * tiles_n));
  MmaTile<T, false, false> tile;
  tile.multiply(rows_of(a.a, a.a.row, group.first * a.a.row + m, group.count, a.m - m),
                rows_of(a.b, a.b.row, group.first * a.b.row + n, group.count, a.n - n),
                group.count);
  tile.write(rows_of(a.y, a.y.row, group.number * a.y.group + m * a.y.row + n, a.m - m, a.n - n));
}

}  // namespace

#define KERNELS(T, name)                                                                          \
  __global__ void __launch_bounds__(mma_threads)                                                  \
      grouped_product_##name(const GroupedArguments a) {                                          \
    mma_product<T, false>(a);                                                                     \
  }                                                                                               \
  __global__ void __launch_bounds__(mma_threads)                                                  \
      grouped_product_turned_##name(const GroupedArguments a) {                                   \
    mma_product<T, true>(a);                                                                      \
  }                                                                                               \
  __global__ void __launch_bounds__(mma_threads) grouped_outer_##name(const GroupedArguments a) { \
    mma_outer<T>(a);                                                                              \
  }

extern "C" {

__global__ void grouped_product_f32(const GroupedArguments a) { product<float>(a); }
__global__ void grouped_product_f64(const GroupedArguments a) { product<double>(a); }
__global__ void grouped_outer_f32(const GroupedArguments a) { outer<float>(a); }
__global__ void grouped_outer_f64(const GroupedArguments a) { outer<double>(a); }
KERNELS(BFloat16, bf16)
KERNELS(Half, f16)

}  // extern "C"
