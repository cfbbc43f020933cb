// Causal attention by tensor cores, for 16-bit types and heads of at most 256 dims. Source: Dao,
// FlashAttention-2 (2023). A block has a tile of queries (or, for the gradients of keys and values,
// of keys) and goes through the tiles of the others that the mask does not hide. Probabilities are
// rounded to 16 bits for their products; all sums are f32, in an order that the shapes give.
#include "kernels/attention.hpp"
#include "kernels/attention_tile.hpp"
#include "kernels/tiles.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

constexpr float log2_of_e = 1.44269504F;
constexpr float log_of_2 = 0.69314718F;
constexpr float lowest = -INFINITY;

constexpr int threads_of(int warps) { return warps * lanes_of_warp; }

/// Scores in units of the binary logarithm, as exp2 takes them. Which of the loops is right is
/// decided once for a tile.
struct BinaryScores {
  float scale, softcap;
  explicit __device__ BinaryScores(const AttentionArguments& a)
      : scale(static_cast<float>(a.scale)), softcap(static_cast<float>(a.softcap)) {}

  /// Products become scores.
  template <int blocks>
  __device__ void apply(float (&products)[blocks][4]) const {
    if (softcap == 0) {
      const float factor = scale * log2_of_e;
      each(products, [&](float& x) { x *= factor; });
    } else {
      const float factor = scale / softcap, top = softcap * log2_of_e;
      each(products, [&](float& x) { x = top * math::tanh(x * factor); });
    }
  }
  /// d score / d (scale product), where a score is.
  __device__ float slope(float score) const {
    const float share = score * (1 / (softcap * log2_of_e));
    return softcap == 0 ? 1 : 1 - share * share;
  }

 private:
  template <int blocks, class Body>
  static __device__ void each(float (&all)[blocks][4], Body body) {
#pragma unroll
    for (int n = 0; n < blocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) body(all[n][i]);
    }
  }
};

/// The place of a block's tile. The last tiles of queries, which see most keys, come first.
struct TilePlace {
  std::int64_t batch, head, first;
  __device__ TilePlace(std::int64_t heads, std::int64_t batches, std::int64_t rows, int tile,
                       bool last_first)
      : batch(blockIdx.x % (batches * heads) / heads), head(blockIdx.x % heads) {
    const std::int64_t tiles = (rows + tile - 1) / tile, number = blockIdx.x / (batches * heads);
    first = (last_first ? tiles - 1 - number : number) * tile;
  }
};

/// A head's rows before row `limit`.
__device__ TileRows rows_of(const AttentionArguments& a, const HeadArray& x, std::int64_t batch,
                            std::int64_t head, std::int64_t limit) {
  return {static_cast<std::uint16_t*>(x.data) + batch * x.batch + head * x.head, x.time, limit,
          a.head_dim};
}

/// The keys that the queries first to last see, at most.
__device__ KeyRange keys_of_tile(const AttentionArguments& a, std::int64_t batch,
                                 std::int64_t first, std::int64_t last) {
  return {keys_of(a, batch, first).first, keys_of(a, batch, last).end};
}

/// The keys that the two rows of a lane see.
struct RowKeys {
  int first[2], end[2];
  __device__ RowKeys(const AttentionArguments& a, std::int64_t batch, std::int64_t row) {
    for (int half = 0; half < 2; ++half) {
      const std::int64_t query = row + 8 * half < a.queries ? row + 8 * half : a.queries - 1;
      const KeyRange keys = keys_of(a, batch, query);
      first[half] = static_cast<int>(keys.first);
      end[half] = static_cast<int>(keys.end);
    }
  }
  __device__ bool sees(int half, int key) const { return key >= first[half] && key < end[half]; }
};

/// Which tiles of keys a tile of queries must compare with each query's range.
struct SharedKeys {
  std::int64_t first, end;  // all queries see these keys
  __device__ SharedKeys(const AttentionArguments& a, std::int64_t batch, std::int64_t first_query,
                        std::int64_t last_query)
      : first(keys_of(a, batch, last_query).first), end(keys_of(a, batch, first_query).end) {}
  __device__ bool has(std::int64_t key, int count) const {
    return key >= first && key + count <= end;
  }
};

/// A block's tile of queries, and the keys that it sees.
struct QueryTile : TilePlace {
  std::int64_t key_head, last;
  KeyRange seen;
  SharedKeys inside;
  __device__ QueryTile(const AttentionArguments& a, int rows)
      : TilePlace(a.key_heads * a.group, a.batches, a.queries, rows, true),
        key_head(head / a.group),
        last(first + rows < a.queries ? first + rows - 1 : a.queries - 1),
        seen(keys_of_tile(a, batch, first, last)),
        inside(a, batch, first, last) {}
};

/// Over the four lanes that share a row.
__device__ float sum_row(float value) {
  value += __shfl_xor_sync(~0U, value, 1);
  return value + __shfl_xor_sync(~0U, value, 2);
}
__device__ float top_of_row(float value) {
  value = fmaxf(value, __shfl_xor_sync(~0U, value, 1));
  return fmaxf(value, __shfl_xor_sync(~0U, value, 2));
}

/// The softmax of 16 rows so far: of the two rows of a lane the largest score, and the lane's part
/// of the sum of exponentials.
struct RunningSoftmax {
  float top[2] = {lowest, lowest};
  float total[2] = {0, 0};

  /// Products of 16 queries from `row` of the tile on become probabilities times exp2 of `top`;
  /// `shrink` is what earlier sums are multiplied by.
  template <int columns>
  __device__ void add(float (&scores)[columns / 8][4], const AttentionArguments& a,
                      const QueryTile& p, int row, std::int64_t key, float (&shrink)[2]) {
    const int lane = threadIdx.x % lanes_of_warp;
    BinaryScores(a).apply(scores);
    if (!p.inside.has(key, columns)) {
      const RowKeys keys(a, p.batch, p.first + row + lane / 4);
#pragma unroll
      for (int n = 0; n < columns / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = static_cast<int>(key) + 8 * n + lane % 4 * 2 + i % 2;
          if (!keys.sees(i / 2, at)) scores[n][i] = lowest;
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = lowest;
#pragma unroll
      for (int n = 0; n < columns / 8; ++n) {
        largest = fmaxf(largest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
      }
      largest = top_of_row(largest);
      const float now = fmaxf(top[half], largest);
      const float reference = now == lowest ? 0 : now;  // no key is seen yet
      shrink[half] = power_of_2(top[half] - reference);
      top[half] = now;
      total[half] *= shrink[half];
#pragma unroll
      for (int n = 0; n < columns / 8; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[n][i] = power_of_2(scores[n][i] - reference);
          total[half] += scores[n][i];
        }
      }
    }
  }
};

template <int width>
__device__ void multiply_rows(float (&sums)[width / 8][4], const float (&factors)[2]) {
  if (!__any_sync(~0U, factors[0] != 1 || factors[1] != 1)) return;
#pragma unroll
  for (int n = 0; n < width / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n][i] *= factors[i / 2];
  }
}

/// A warp has `row_tiles` times 16 queries.
template <class T, int width, int row_tiles>
__device__ void attention(const AttentionArguments& a) {
  constexpr int warps = 4, threads = threads_of(warps), rows = warps * row_tiles * rows_of_warp;
  constexpr int columns = attention_tile / width;
  Chunk* const queries = static_cast<Chunk*>(launched_memory());
  const TilePairs<width, columns, threads> tiles(queries + rows * width / 8);  // keys, values
  const int lane = threadIdx.x % lanes_of_warp;
  const int first_row = threadIdx.x / lanes_of_warp * row_tiles * rows_of_warp;
  const QueryTile p(a, rows);
  const TileRows of_queries = rows_of(a, a.q, p.batch, p.head, a.queries);
  fetch_tile<width, rows, threads>(queries, of_queries, p.first);
  const auto fetch = [&](int step, std::int64_t key) {
    if (key >= p.seen.end) return;
    tiles.fetch(step, rows_of(a, a.k, p.batch, p.key_head, p.seen.end),
                rows_of(a, a.v, p.batch, p.key_head, p.seen.end), key);
  };
  fetch(0, p.seen.first);

  float sums[row_tiles][width / 8][4] = {};
  RunningSoftmax softmax[row_tiles];
  int step = 0;
  for (std::int64_t key = p.seen.first; key < p.seen.end; key += columns, ++step) {
    wait_for_copies();
    __syncthreads();  // the tiles are there, and those of the last step are not needed any more
    fetch(step + 1, key + columns);
    float scores[row_tiles][columns / 8][4] = {};
    add_dots<T, width, columns>(scores, queries, first_row, tiles.left(step));
#pragma unroll
    for (int m = 0; m < row_tiles; ++m) {
      float shrink[2];
      softmax[m].template add<columns>(scores[m], a, p, first_row + m * rows_of_warp, key, shrink);
      multiply_rows<width>(sums[m], shrink);
    }
    add_weighted<T, width, columns>(sums, scores, tiles.right(step));
  }
  if (p.seen.first >= p.seen.end) {
    wait_for_copies();
    __syncthreads();
  }

#pragma unroll
  for (int m = 0; m < row_tiles; ++m) {
    const int row = first_row + m * rows_of_warp;
    float factors[2];
    for (int half = 0; half < 2; ++half) {
      const float total = sum_row(softmax[m].total[half]);
      factors[half] = total == 0 ? 0 : 1 / total;  // 0 of no keys
      const std::int64_t query = p.first + row + lane / 4 + 8 * half;
      if (lane % 4 == 0 && query < a.queries) {
        const HeadArray& x = a.log_sums;
        static_cast<float*>(x.data)[p.batch * x.batch + query * x.time + p.head * x.head] =
            (softmax[m].top[half] + math::log2(total)) * log_of_2;
      }
    }
    put_sums<T, width>(queries, row, 0, sums[m], factors);  // the warp's own rows
  }
  __syncthreads();
  write_tile<width, rows, threads>(queries, rows_of(a, a.y, p.batch, p.head, a.queries), p.first);
}

/// The mean of the gradients of a row's probabilities, which is dy . y where it is not given. The
/// lanes of a warp share it.
template <class T>
__device__ float mean_of_row(const AttentionArguments& a, std::int64_t batch, std::int64_t head,
                             std::int64_t query) {
  if (a.y.data == nullptr) {
    return static_cast<const float*>(
        a.means.data)[batch * a.means.batch + query * a.means.time + head * a.means.head];
  }
  const auto chunk_of = [&](const HeadArray& x, int chunk) {
    return *reinterpret_cast<const Chunk*>(static_cast<const std::uint16_t*>(x.data) +
                                           batch * x.batch + query * x.time + head * x.head +
                                           chunk * 8);
  };
  const int lane = threadIdx.x % lanes_of_warp;
  float sum = 0;
  if (lane * 8 < a.head_dim) {
    const Chunk dy = chunk_of(a.dy, lane), y = chunk_of(a.y, lane);
    for (int i = 0; i < 8; ++i) {
      sum += static_cast<float>(T::from_bits(dy.elements[i])) *
             static_cast<float>(T::from_bits(y.elements[i]));
    }
  }
  for (int by = lanes_of_warp / 2; by > 0; by /= 2) sum += __shfl_xor_sync(~0U, sum, by);
  return sum;
}

/// In units of the binary logarithm.
__device__ float binary_log_sum(const AttentionArguments& a, std::int64_t batch, std::int64_t head,
                                std::int64_t query) {
  const HeadArray& x = a.log_sums;
  return log2_of_e *
         static_cast<const float*>(x.data)[batch * x.batch + query * x.time + head * x.head];
}

/// dq of a tile of queries; writes the means, which attention_keys reads, where they are not given.
template <class T, int width, int warps>
__device__ void attention_queries(const AttentionArguments& a) {
  constexpr int threads = threads_of(warps), rows = warps * rows_of_warp;
  constexpr int columns = attention_tile / width;
  Chunk* const queries = static_cast<Chunk*>(launched_memory());
  Chunk* const gradients = queries + rows * width / 8;
  const TilePairs<width, columns, threads> tiles(gradients + rows * width / 8);  // keys, values
  const int lane = threadIdx.x % lanes_of_warp;
  const int row = threadIdx.x / lanes_of_warp * rows_of_warp;
  const BinaryScores f(a);
  const QueryTile p(a, rows);
  const RowKeys row_keys(a, p.batch, p.first + row + lane / 4);
  fetch_tile<width, rows, threads>(queries, rows_of(a, a.q, p.batch, p.head, a.queries), p.first);
  fetch_tile<width, rows, threads>(gradients, rows_of(a, a.dy, p.batch, p.head, a.queries),
                                   p.first);
  const auto fetch = [&](int step, std::int64_t key) {
    if (key >= p.seen.end) return;
    tiles.fetch(step, rows_of(a, a.k, p.batch, p.key_head, p.seen.end),
                rows_of(a, a.v, p.batch, p.key_head, p.seen.end), key);
  };
  fetch(0, p.seen.first);
  float means[2] = {}, log_sums[2] = {};
  for (int i = 0; i < rows_of_warp && p.first + row + i < a.queries; ++i) {
    const std::int64_t query = p.first + row + i;
    const float mean = mean_of_row<T>(a, p.batch, p.head, query);
    if (lane == 0 && a.y.data != nullptr) {
      static_cast<float*>(
          a.means.data)[p.batch * a.means.batch + query * a.means.time + p.head * a.means.head] =
          mean;
    }
    if (i == lane / 4) means[0] = mean;
    if (i == lane / 4 + 8) means[1] = mean;
  }
  for (int half = 0; half < 2; ++half) {
    const std::int64_t query = p.first + row + lane / 4 + 8 * half;
    if (query < a.queries) log_sums[half] = binary_log_sum(a, p.batch, p.head, query);
  }

  float sums[1][width / 8][4] = {};
  int step = 0;
  for (std::int64_t key = p.seen.first; key < p.seen.end; key += columns, ++step) {
    wait_for_copies();
    __syncthreads();  // the tiles are there, and those of the last step are not needed any more
    fetch(step + 1, key + columns);
    float slopes[1][columns / 8][4] = {}, of_shares[1][columns / 8][4] = {};
    add_dots<T, width, columns>(slopes, queries, row, tiles.left(step));
    add_dots<T, width, columns>(of_shares, gradients, row, tiles.right(step));
    f.apply(slopes[0]);
    const bool whole = p.inside.has(key, columns);
#pragma unroll
    for (int n = 0; n < columns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = static_cast<int>(key) + 8 * n + lane % 4 * 2 + i % 2;
        const float score = slopes[0][n][i];
        const float share =
            whole || row_keys.sees(i / 2, at) ? power_of_2(score - log_sums[i / 2]) : 0;
        slopes[0][n][i] = share * (of_shares[0][n][i] - means[i / 2]) * f.slope(score);
      }
    }
    add_weighted<T, width, columns>(sums, slopes, tiles.left(step));
  }
  if (p.seen.first >= p.seen.end) {
    wait_for_copies();
    __syncthreads();
  }
  const float factors[2] = {f.scale, f.scale};
  put_sums<T, width>(queries, row, 0, sums[0], factors);  // the warp's own rows
  __syncthreads();
  write_tile<width, rows, threads>(queries, rows_of(a, a.dq, p.batch, p.head, a.queries), p.first);
}

/// A column of the scores of attention_keys: the keys that a query sees.
struct QueryColumn {
  int first = 0, end = 1 << 30;
  __device__ QueryColumn(const AttentionArguments& a, std::int64_t batch, std::int64_t query,
                         bool whole) {
    if (whole) return;
    const KeyRange keys = query < a.queries ? keys_of(a, batch, query) : KeyRange{0, 0};
    first = static_cast<int>(keys.first);
    end = static_cast<int>(keys.end);
  }
};

/// Statistics of the queries of a tile, twice: log sums, and means of gradients.
template <int columns>
class QueryStatistics {
 public:
  explicit __device__ QueryStatistics(Chunk* memory) : memory_(reinterpret_cast<float*>(memory)) {}

  __device__ float log_sum(int step, int column) const {
    return log2_of_e * memory_[(step % 2 * 2) * columns + column];
  }
  __device__ float mean(int step, int column) const {
    return memory_[(step % 2 * 2 + 1) * columns + column];
  }
  /// Begins to copy those of the queries from `query` on.
  __device__ void fetch(int step, const AttentionArguments& a, std::int64_t batch,
                        std::int64_t head, std::int64_t query) const {
    const int column = threadIdx.x % columns, which = threadIdx.x / columns;
    if (which >= 2) return;
    const HeadArray& x = which == 0 ? a.log_sums : a.means;
    const bool exists = query + column < a.queries;
    const std::int64_t at =
        batch * x.batch + head * x.head + (exists ? (query + column) * x.time : 0);
    copy_number_async(memory_ + (step % 2 * 2 + which) * columns + column,
                      static_cast<const float*>(x.data) + at, exists);
  }

 private:
  float* memory_;
};

/// Of the queries in steps of `columns` from `seen.first` on: how many steps there are to the first
/// query that begins behind key `last`, in another document.
__device__ int steps_to(const AttentionArguments& a, std::int64_t batch, const QueryRange& seen,
                        int columns, std::int64_t last) {
  std::int64_t from = 0,
               end = seen.first < seen.end ? (seen.end - seen.first - 1) / columns + 1 : 0;
  while (from < end) {
    const std::int64_t middle = (from + end) / 2;
    if (keys_of(a, batch, seen.first + middle * columns).first > last) {
      end = middle;
    } else {
      from = middle + 1;
    }
  }
  return static_cast<int>(end);
}

/// dk and dv of a tile of keys; sums over the heads of its group, in order. Scores have a row for
/// each key and a column for each query. With heads of more than 128 dims a warp has no registers
/// for both gradients: two warps share 16 keys, one for each.
template <class T, int width>
__device__ void attention_keys(const AttentionArguments& a) {
  constexpr bool shared_keys = width > 128;
  constexpr int warps = 4, threads = threads_of(warps), columns = attention_tile / width;
  constexpr int key_warps = shared_keys ? warps / 2 : warps, rows = key_warps * rows_of_warp;
  Chunk* const keys = static_cast<Chunk*>(launched_memory());
  Chunk* const values = keys + rows * width / 8;
  const TilePairs<width, columns, threads> tiles(values + rows * width / 8);  // queries, gradients
  const QueryStatistics<columns> statistics(tiles.end());
  const int lane = threadIdx.x % lanes_of_warp, warp = threadIdx.x / lanes_of_warp;
  const int row = warp % key_warps * rows_of_warp;
  const bool has_values = !shared_keys || warp < key_warps;
  const bool has_keys = !shared_keys || warp >= key_warps;
  constexpr int of_keys = shared_keys ? 0 : 1;
  const BinaryScores f(a);
  const TilePlace p(a.key_heads, a.batches, a.keys, rows, false);
  const std::int64_t last = p.first + rows < a.keys ? p.first + rows - 1 : a.keys - 1;
  const QueryRange seeing = {queries_of(a, p.first).first, queries_of(a, last).end};
  const int of_head = steps_to(a, p.batch, seeing, columns, last);
  const int steps = of_head * static_cast<int>(a.group);
  fetch_tile<width, rows, threads>(keys, rows_of(a, a.k, p.batch, p.head, a.keys), p.first);
  fetch_tile<width, rows, threads>(values, rows_of(a, a.v, p.batch, p.head, a.keys), p.first);
  const auto query_of = [&](int step) { return seeing.first + step % of_head * columns; };
  const auto fetch = [&](int step) {
    if (step >= steps) return;
    const std::int64_t head = p.head * a.group + step / of_head, query = query_of(step);
    tiles.fetch(step, rows_of(a, a.q, p.batch, head, a.queries),
                rows_of(a, a.dy, p.batch, head, a.queries), query);
    statistics.fetch(step, a, p.batch, head, query);
  };
  fetch(0);

  float sums[shared_keys ? 1 : 2][1][width / 8][4] = {};  // of the values, of the keys
  for (int step = 0; step < steps; ++step) {
    const std::int64_t query = query_of(step);
    const bool whole = query + columns <= a.queries &&
                       SharedKeys(a, p.batch, query, query + columns - 1).has(p.first, rows);
    wait_for_copies();
    __syncthreads();  // the tiles are there, and those of the last step are not needed any more
    fetch(step + 1);
    float shares[1][columns / 8][4] = {}, slopes[1][columns / 8][4] = {};
    add_dots<T, width, columns>(shares, keys, row, tiles.left(step));
    if (has_keys) add_dots<T, width, columns>(slopes, values, row, tiles.right(step));
    f.apply(shares[0]);
#pragma unroll
    for (int n = 0; n < columns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at_query = 8 * n + lane % 4 * 2 + i;
        const QueryColumn column(a, p.batch, query + at_query, whole);
        const float log_sum = statistics.log_sum(step, at_query);
        const float mean = statistics.mean(step, at_query);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = static_cast<int>(p.first) + row + lane / 4 + 8 * half;
          float& share = shares[0][n][2 * half + i];
          float& slope = slopes[0][n][2 * half + i];
          const float score = share;
          share = at >= column.first && at < column.end ? power_of_2(score - log_sum) : 0;
          slope = share * (slope - mean) * f.slope(score);
        }
      }
    }
    if (has_values) add_weighted<T, width, columns>(sums[0], shares, tiles.right(step));
    if (has_keys) add_weighted<T, width, columns>(sums[of_keys], slopes, tiles.left(step));
  }
  wait_for_copies();  // where no query sees the keys
  __syncthreads();
  const float ones[2] = {1, 1}, scales[2] = {f.scale, f.scale};
  if (has_values) put_sums<T, width>(values, row, 0, sums[0][0], ones);
  if (has_keys) put_sums<T, width>(keys, row, 0, sums[of_keys][0], scales);
  __syncthreads();
  write_tile<width, rows, threads>(keys, rows_of(a, a.dk, p.batch, p.head, a.keys), p.first);
  write_tile<width, rows, threads>(values, rows_of(a, a.dv, p.batch, p.head, a.keys), p.first);
}

}  // namespace

#define KERNELS_OF(T, name, width, row_tiles, warps)                                              \
  __global__ void __launch_bounds__(128) attention_##name##_##width(const AttentionArguments a) { \
    attention<T, width, row_tiles>(a);                                                            \
  }                                                                                               \
  __global__ void __launch_bounds__(32 * warps)                                                   \
      attention_queries_##name##_##width(const AttentionArguments a) {                            \
    attention_queries<T, width, warps>(a);                                                        \
  }                                                                                               \
  __global__ void __launch_bounds__(128)                                                          \
      attention_keys_##name##_##width(const AttentionArguments a) {                               \
    attention_keys<T, width>(a);                                                                  \
  }
#define KERNELS(T, name)         \
  KERNELS_OF(T, name, 64, 2, 4)  \
  KERNELS_OF(T, name, 128, 2, 4) \
  KERNELS_OF(T, name, 256, 1, 2)

extern "C" {
KERNELS(BFloat16, bf16)
KERNELS(Half, f16)
}
