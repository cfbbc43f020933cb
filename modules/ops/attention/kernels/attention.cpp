#include "attention.hpp"

#include "attention_row.hpp"
#include "attention_tiles.hpp"
#include "shared/kernels/parallel.hpp"

namespace tessera::kernels {
namespace {

using namespace attention_detail;

/// The arrays of one task.
template <class C>
struct Forward {
  Forward(Workspace& w, const AttentionShape& shape)
      : width(padded<C>(shape.values())),
        queries(w.take<C>(shape.head_dim * kQueryTile)),
        keys(w.take<C>(kKeyTile * padded<C>(shape.head_dim))),
        values(w.take<C>(kKeyTile * width)),
        scores(w.take<C>(kKeyTile * kQueryTile)),
        out(w.take<C>(kQueryTile * width)) {}

  std::int64_t width;  // of the values
  C* queries;          // transposed
  C* keys;
  C* values;
  C* scores;  // [key, query]
  C* out;     // not yet divided by `sum`
  C maximum[kQueryTile];
  C sum[kQueryTile];
};

/// Turns scores into exp(scores - maximum) with the running maximum and sum of each query brought
/// up to date; the output so far shrinks where a maximum grew.
template <class C>
[[gnu::always_inline]] inline void online_softmax(const TilePair& pair, C scale, Forward<C>& work) {
  using V = simd::Vector<C>;
  constexpr std::int64_t kLanes = simd::kLanes<C>;
  constexpr C kMinusInfinity = -std::numeric_limits<C>::infinity();
  for (std::int64_t column = 0; column < padded<C>(pair.queries); column += kLanes) {
    C* scores = work.scores + column;
    // Key 0 sees all columns of a visited tile; later keys see fewer.
    std::int64_t seen = pair.keys;
    std::int64_t whole = pair.keys;
    if (!pair.full()) {
      seen = std::clamp<std::int64_t>(pair.last_key_of_first + column + kLanes - pair.key, 0,
                                      pair.keys);
      whole = pair.cut_in_front()
                  ? 0
                  : std::clamp<std::int64_t>(pair.last_key_of_first + column + 1 - pair.key, 0,
                                             pair.keys);
    }
    if (seen == 0) {
      for (std::int64_t j = 0; j < pair.keys; ++j) simd::store(scores + j * kQueryTile, V{});
      continue;
    }
    V top = simd::splat<V>(kMinusInfinity);
    for (std::int64_t j = 0; j < whole; ++j)
      top = simd::maximum(simd::load(scores + j * kQueryTile), top);
    for (std::int64_t j = whole; j < seen; ++j) {
      const V score = simd::select<V>(sees<V>(pair, j, column), simd::load(scores + j * kQueryTile),
                                      simd::splat<V>(kMinusInfinity));
      simd::store(scores + j * kQueryTile, score);
      top = simd::maximum(score, top);
    }
    const V before = simd::load(work.maximum + column);
    const V maximum = simd::maximum(top * scale, before);
    // A query that has seen no key keeps minus infinity; 0 in its place avoids infinity - infinity.
    const V reference = simd::select<V>(maximum == kMinusInfinity, V{}, maximum);
    const V shrink = simd::exp_nonpositive(before - reference);
    V sum = V{};
    for (std::int64_t j = 0; j < seen; ++j) {
      const V p = simd::exp_nonpositive(simd::load(scores + j * kQueryTile) * scale - reference);
      simd::store(scores + j * kQueryTile, p);
      sum += p;
    }
    for (std::int64_t j = seen; j < pair.keys; ++j) simd::store(scores + j * kQueryTile, V{});
    simd::store(work.sum + column, simd::load(work.sum + column) * shrink + sum);
    simd::store(work.maximum + column, maximum);
    for (std::int64_t query = column; query < std::min(pair.queries, column + kLanes); ++query) {
      const C factor = shrink[query - column];
      if (factor == C{1}) continue;
      C* row = work.out + query * work.width;
      for (std::int64_t i = 0; i < work.width; i += kLanes)
        simd::store(row + i, simd::load(row + i) * factor);
    }
  }
}

/// out += P v, in groups of queries that see the same number of keys.
template <class Isa, class C>
[[gnu::always_inline]] inline void add_values(Isa isa, const TilePair& pair, Forward<C>& work) {
  constexpr std::int64_t kStep = 12;
  for (std::int64_t query = 0; query < pair.queries;) {
    const std::int64_t count = pair.full() ? pair.queries : std::min(kStep, pair.queries - query);
    const std::int64_t seen =
        std::clamp<std::int64_t>(pair.last_key_of_first + query + count - pair.key, 0, pair.keys);
    tile::product<true>(
        isa, tile::Product<C>{count, work.width, pair.full() ? pair.keys : seen,
                              work.scores + query, 1, kQueryTile, work.values, work.width,
                              work.out + query * work.width, work.width});
    query += count;
  }
}

/// The tiles of all documents, in their order; how many there are.
std::int64_t find_tiles(const AttentionShape& shape, QueryTile* tiles) {
  std::int64_t count = 0;
  for (std::int64_t entry = 0; entry < shape.batch; ++entry) {
    for (std::int64_t first = 0; first < shape.queries;) {
      const std::int64_t end = end_of_document(shape, entry, first);
      const std::int64_t first_key = first_key_of_document(shape, entry, first);
      for (std::int64_t query = first; query < end; query += kQueryTile) {
        tiles[count++] = {entry, query, std::min(kQueryTile, end - query), first_key};
      }
      first = end;
    }
  }
  return count;
}

/// The results of a tile of queries of one head, and their log-sum-exps.
template <class T, class C>
[[gnu::always_inline]] inline void write_results(const Forward<C>& work,
                                                 const AttentionShape& shape, const QueryTile& tile,
                                                 std::int64_t head, T* out,
                                                 AttentionStrides strides, C* log_sum_exp) {
  const std::int64_t heads = shape.kv_heads * shape.group;
  for (std::int64_t i = 0; i < tile.queries; ++i) {
    const C sum = work.sum[i];
    const C factor = sum > C{0} ? C{1} / sum : C{0};
    T* row =
        out + tile.entry * strides.batch + (tile.query + i) * strides.time + head * strides.head;
    for (std::int64_t d = 0; d < shape.values(); ++d) {
      row[d] = static_cast<T>(work.out[i * work.width + d] * factor);
    }
    log_sum_exp[(tile.entry * heads + head) * shape.queries + tile.query + i] =
        work.maximum[i] + std::log(sum);
  }
}

/// Whether there is one query, which attention_row is for.
template <class T>
bool is_row(const AttentionShape& shape, const AttentionMask<T>& mask) {
  return shape.queries == 1 && shape.keys > 1 && !shape.has_documents && !mask.changes_scores() &&
         mask.dropout == 0;
}

}  // namespace

template <class T, class Lse>
void attention_forward(Workspace& workspace, const AttentionShape& shape, const T* q,
                       AttentionStrides q_strides, const T* k, AttentionStrides k_strides,
                       const T* v, AttentionStrides v_strides, T* out, AttentionStrides out_strides,
                       Lse* log_sum_exp, const AttentionMask<T>& mask) {
  using C = Lse;
  if (is_row(shape, mask)) {
    AttentionShape row = shape;
    const std::int64_t end = last_key_of_query_0(shape) + 1;
    row.keys = std::clamp<std::int64_t>(end, 0, shape.keys);
    const std::int64_t hidden =
        shape.window == 0 ? 0 : std::clamp<std::int64_t>(end - shape.window, 0, row.keys);
    row.keys -= hidden;
    attention_row(workspace, row, q, q_strides, k + hidden * k_strides.time, k_strides,
                  v + hidden * v_strides.time, v_strides, out, out_strides, log_sum_exp);
    return;
  }
  const Workspace::Parts parts =
      workspace.per_thread([&](Workspace& part) { Forward<C>(part, shape); });
  QueryTile* const tiles =
      workspace.take<QueryTile>(shape.has_documents ? shape.batch * shape.queries : 0);
  if (workspace.counts()) return;
  const std::int64_t heads = shape.kv_heads * shape.group;
  const std::int64_t tiles_of_entry = (shape.queries + kQueryTile - 1) / kQueryTile;
  const std::int64_t tile_count =
      shape.has_documents ? find_tiles(shape, tiles) : shape.batch * tiles_of_entry;
  const std::int64_t head_dim = shape.head_dim;
  // A task is one tile of queries of one head; what is copied of keys is copied for each of them.
  parallel_for(0, tile_count * heads, 1, [&](std::int64_t begin, std::int64_t end) {
    Workspace part = parts.mine();
    Forward<C> work(part, shape);
    simd::dispatch([&](auto isa) __attribute__((always_inline)) {
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t head =
            shape.has_documents ? task % heads : task / tiles_of_entry % heads;
        const std::int64_t first_of_task = task % tiles_of_entry * kQueryTile;
        const QueryTile tile =
            shape.has_documents ? tiles[task / heads]
                                : QueryTile{task / tiles_of_entry / heads, first_of_task,
                                            std::min(kQueryTile, shape.queries - first_of_task), 0};
        const auto& [entry, query, queries, first_key] = tile;
        const std::int64_t last_key = last_key_of_query_0(shape) + query;
        const std::int64_t keys_end = std::clamp<std::int64_t>(last_key + queries, 0, shape.keys);
        const std::int64_t kv_head = head / shape.group;
        const T* q_tile =
            q + entry * q_strides.batch + query * q_strides.time + head * q_strides.head;
        copy_rows(q_tile, q_strides.time, queries, head_dim, work.keys);
        transpose_tile(isa, work.keys, queries, head_dim, work.queries);
        std::fill_n(work.out, kQueryTile * work.width, C{0});
        std::fill(work.maximum, work.maximum + kQueryTile, -std::numeric_limits<C>::infinity());
        std::fill(work.sum, work.sum + kQueryTile, C{0});
        const std::int64_t hidden =
            shape.window == 0 ? 0
                              : std::max<std::int64_t>(last_key + 1 - shape.window - first_key, 0);
        for (std::int64_t key = first_key + hidden / kKeyTile * kKeyTile; key < keys_end;
             key += kKeyTile) {
          const TilePair pair{query,    queries,     key, std::min(kKeyTile, keys_end - key),
                              last_key, shape.window};
          const T* k_tile =
              k + entry * k_strides.batch + key * k_strides.time + kv_head * k_strides.head;
          const T* v_tile =
              v + entry * v_strides.batch + key * v_strides.time + kv_head * v_strides.head;
          copy_rows(k_tile, k_strides.time, pair.keys, head_dim, work.keys);
          copy_rows(v_tile, v_strides.time, pair.keys, shape.values(), work.values);
          dots(isa, pair, head_dim, work.keys, work.queries, work.scores);
          const TilePlace place{entry, head, heads};
          const auto scale = static_cast<C>(shape.scale);
          const auto softcap = static_cast<C>(shape.softcap);
          const C left = softcap != 0 ? C{1} : scale;  // of the scale, to be applied
          if (softcap != 0) cap_scores(pair, scale, softcap, work.scores);
          if (mask.changes_scores()) mask_scores(mask, place, pair, left, work.scores);
          online_softmax<C>(pair, mask.changes_scores() ? C{1} : left, work);
          if (mask.dropout > 0) drop(shape, mask, place, pair, work.scores);
          add_values(isa, pair, work);
        }
        write_results(work, shape, tile, head, out, out_strides, log_sum_exp);
      }
    });
  });
}

template decltype(attention_forward<float, float>) attention_forward<float, float>;
template decltype(attention_forward<double, double>) attention_forward<double, double>;
template decltype(attention_forward<BFloat16, float>) attention_forward<BFloat16, float>;
template decltype(attention_forward<Half, float>) attention_forward<Half, float>;

}  // namespace tessera::kernels
