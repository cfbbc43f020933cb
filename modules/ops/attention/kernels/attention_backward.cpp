#include "attention.hpp"
#include "attention_tiles.hpp"
#include "shared/kernels/parallel.hpp"

namespace tessera::kernels {
namespace {

using namespace attention_detail;

/// The arrays of one task: a key/value head of one batch entry. What depends on queries is kept for
/// the whole length, as every tile of keys needs it.
template <class C>
struct Backward {
  Backward(Workspace& w, const AttentionShape& shape)
      : width(padded<C>(shape.head_dim)),
        value_width(padded<C>(shape.values())),
        length((shape.queries + kQueryTile - 1) / kQueryTile * kQueryTile),
        dq_count(shape.group * length * width),
        q_transposed(w.take<C>(shape.group * length * shape.head_dim)),
        dout_transposed(w.take<C>(shape.group * length * shape.values())),
        lse(w.take<C>(shape.group * length)),
        delta(w.take<C>(shape.group * length)),
        dq(w.take<C>(dq_count)),
        dk(w.take<C>(kKeyTile * width)),
        dv(w.take<C>(kKeyTile * value_width)),
        keys(w.take<C>(kKeyTile * width)),
        values(w.take<C>(kKeyTile * value_width)),
        queries(w.take<C>(kQueryTile * width)),
        douts(w.take<C>(kQueryTile * value_width)),
        p(w.take<C>(kKeyTile * kQueryTile)),
        ds(w.take<C>(kKeyTile * kQueryTile)) {}

  std::int64_t width;        // of queries and keys
  std::int64_t value_width;  // of values and the result
  std::int64_t length;
  std::int64_t dq_count;
  C* q_transposed;  // [group, tile, head_dim, kQueryTile]; dout's with value_dim
  C* dout_transposed;
  C* lse;    // [group, length]
  C* delta;  // dout . out
  C* dq;     // [group, length, width]
  C* dk;
  C* dv;
  C* keys;
  C* values;
  C* queries;
  C* douts;
  C* p;  // [key, query]: probabilities
  C* ds;
};

/// p = exp(scale scores - lse) and ds = p (dp - delta) factor, in place of scores and dp. With a
/// softcap the scores are capped, and ds is also multiplied by their slope, 1 - (score /
/// softcap)^2.
template <class C>
[[gnu::always_inline]] inline void score_gradients(const TilePair& pair, C scale, C factor,
                                                   C softcap, const C* lse, const C* delta, C* p,
                                                   C* ds) {
  using V = simd::Vector<C>;
  constexpr std::int64_t kLanes = simd::kLanes<C>;
  for (std::int64_t column = 0; column < padded<C>(pair.queries); column += kLanes) {
    const V lse_here = simd::load(lse + column);
    const V delta_here = simd::load(delta + column);
    for (std::int64_t j = 0; j < pair.keys; ++j) {
      C* p_here = p + j * kQueryTile + column;
      C* ds_here = ds + j * kQueryTile + column;
      const std::int64_t first_seen = pair.key + j - pair.last_key_of_first - column;
      if (first_seen >= kLanes) {
        simd::store(p_here, V{});
        simd::store(ds_here, V{});
        continue;
      }
      const V score = simd::load(p_here);
      V probability = simd::exp_nonpositive(score * scale - lse_here);
      if (first_seen > 0 || pair.cut_in_front()) {
        probability = simd::select<V>(sees<V>(pair, j, column), probability, V{});
      }
      simd::store(p_here, probability);
      V gradient = probability * (simd::load(ds_here) - delta_here) * factor;
      if (softcap != 0) {
        const V share = score / softcap;
        gradient = gradient * (simd::splat<V>(C{1}) - share * share);
      }
      simd::store(ds_here, gradient);
    }
  }
}

/// result[j] += sum over queries of weights[j, query] rows[query], for the queries that see the
/// keys.
template <class Isa, class C>
[[gnu::always_inline]] inline void add_to_keys(Isa isa, const TilePair& pair, std::int64_t width,
                                               const C* weights, const C* rows, C* result) {
  constexpr std::int64_t kStep = 12;
  for (std::int64_t j = 0; j < pair.keys;) {
    const std::int64_t count = pair.full() ? pair.keys : std::min(kStep, pair.keys - j);
    const std::int64_t first = pair.first_column<C>(j);
    if (first < pair.queries) {
      tile::product<true>(
          isa,
          tile::Product<C>{count, width, pair.queries - first, weights + j * kQueryTile + first,
                           kQueryTile, 1, rows + first * width, width, result + j * width, width});
    }
    j += count;
  }
}

/// dq[query] += sum over keys of ds[key, query] k[key].
template <class Isa, class C>
[[gnu::always_inline]] inline void add_to_queries(Isa isa, const TilePair& pair, std::int64_t width,
                                                  const C* ds, const C* keys, C* dq) {
  constexpr std::int64_t kStep = 12;
  for (std::int64_t query = 0; query < pair.queries;) {
    const std::int64_t count = pair.full() ? pair.queries : std::min(kStep, pair.queries - query);
    const std::int64_t seen =
        pair.full() ? pair.keys
                    : std::clamp<std::int64_t>(pair.last_key_of_first + query + count - pair.key, 0,
                                               pair.keys);
    tile::product<true>(isa, tile::Product<C>{count, width, seen, ds + query, 1, kQueryTile, keys,
                                              width, dq + query * width, width});
    query += count;
  }
}

template <class C, class T>
[[gnu::always_inline]] inline void write_rows(const C* x, std::int64_t width, std::int64_t count,
                                              std::int64_t head_dim, T* target,
                                              std::int64_t stride) {
  for (std::int64_t row = 0; row < count; ++row) {
    for (std::int64_t d = 0; d < head_dim; ++d)
      target[row * stride + d] = static_cast<T>(x[row * width + d]);
  }
}

/// Writes a tile of the gradient of the scaled scores, which are ds without the factor scale; keys
/// that causal queries do not see keep 0.
template <class C, class T>
void write_score_gradients(const AttentionShape& shape, const TilePlace& place,
                           const TilePair& pair, const C* ds, T* gradient) {
  const auto inverse = static_cast<C>(1 / shape.scale);
  for (std::int64_t i = 0; i < pair.queries; ++i) {
    T* const row =
        gradient +
        ((place.entry * place.heads + place.head) * shape.queries + pair.query + i) * shape.keys;
    for (std::int64_t j = 0; j < pair.keys; ++j)
      row[pair.key + j] = static_cast<T>(ds[j * kQueryTile + i] * inverse);
  }
}

/// Rows of one batch entry and one key/value head, and of the query heads that use it.
struct HeadPlace {
  std::int64_t entry;
  std::int64_t kv_head;

  template <class P>
  [[gnu::always_inline]] inline P* at(P* pointer, const AttentionStrides& strides,
                                      std::int64_t time, std::int64_t head) const {
    return pointer + entry * strides.batch + time * strides.time + head * strides.head;
  }
};

/// a . b, lane by lane and then over the lanes.
template <class C, class T>
[[gnu::always_inline]] inline C dot(const T* a, const T* b, std::int64_t count) {
  simd::Vector<C> sum = {};
  for (std::int64_t d = 0; d < count; d += simd::kLanes<T>)
    sum += simd::load_some(a + d, count - d) * simd::load_some(b + d, count - d);
  return simd::sum_lanes(sum);
}

/// Transposes the queries and the output's gradients of a head's group, and computes what the
/// probabilities of each query are computed from: the log of the sum, and out . dout.
template <class Isa, class T, class C>
[[gnu::always_inline]] inline void read_queries(Isa isa, const AttentionShape& shape,
                                                const AttentionGradient<T, C>& x,
                                                const HeadPlace& place, Backward<C>& work) {
  const std::int64_t heads = shape.kv_heads * shape.group;
  const std::int64_t value_dim = shape.values();
  for (std::int64_t member = 0; member < shape.group; ++member) {
    const std::int64_t head = place.kv_head * shape.group + member;
    for (std::int64_t query = 0; query < shape.queries; query += kQueryTile) {
      const std::int64_t count = std::min(kQueryTile, shape.queries - query);
      const std::int64_t at_row = member * work.length + query;
      copy_rows(place.at(x.q, x.q_strides, query, head), x.q_strides.time, count, shape.head_dim,
                work.queries);
      transpose_tile(isa, work.queries, count, shape.head_dim,
                     work.q_transposed + at_row * shape.head_dim);
      copy_rows(place.at(x.dout, x.dout_strides, query, head), x.dout_strides.time, count,
                value_dim, work.douts);
      transpose_tile(isa, work.douts, count, value_dim, work.dout_transposed + at_row * value_dim);
      for (std::int64_t i = 0; i < kQueryTile; ++i) {
        C lse = std::numeric_limits<C>::infinity();  // a query that sees nothing: probability 0
        C delta = C{0};
        if (i < count) {
          const std::int64_t at_query =
              (place.entry * heads + head) * x.log_sum_exp_stride + query + i;
          const C stored = x.log_sum_exp[at_query];
          if (stored > -std::numeric_limits<C>::infinity()) lse = stored;
          delta = x.delta != nullptr
                      ? x.delta[at_query]
                      : dot<C>(place.at(x.out, x.out_strides, query + i, head),
                               place.at(x.dout, x.dout_strides, query + i, head), value_dim);
        }
        work.lse[at_row + i] = lse;
        work.delta[at_row + i] = delta;
      }
    }
  }
}

/// The gradients of a tile of keys and values, and what it adds to those of all queries.
template <class Isa, class T, class C>
[[gnu::always_inline]] inline void key_tile_gradients(Isa isa, const AttentionShape& shape,
                                                      const AttentionGradient<T, C>& x,
                                                      const HeadPlace& place, std::int64_t key,
                                                      Backward<C>& work) {
  const std::int64_t head_dim = shape.head_dim;
  const std::int64_t value_dim = shape.values();
  const std::int64_t width = work.width;
  const std::int64_t key_count = std::min(kKeyTile, shape.keys - key);
  copy_rows(place.at(x.k, x.k_strides, key, place.kv_head), x.k_strides.time, key_count, head_dim,
            work.keys);
  copy_rows(place.at(x.v, x.v_strides, key, place.kv_head), x.v_strides.time, key_count, value_dim,
            work.values);
  std::fill_n(work.dk, kKeyTile * width, C{0});
  std::fill_n(work.dv, kKeyTile * work.value_width, C{0});
  for (std::int64_t member = 0; member < shape.group; ++member) {
    const std::int64_t head = place.kv_head * shape.group + member;
    for (std::int64_t query = 0; query < shape.queries; query += kQueryTile) {
      const TilePair pair{query,     std::min(kQueryTile, shape.queries - query), key,
                          key_count, last_key_of_query_0(shape) + query,          shape.window};
      if (pair.last_key_of_first + pair.queries <= key) continue;  // all of it is in the future
      if (pair.in_front()) continue;
      const std::int64_t at_row = member * work.length + query;
      copy_rows(place.at(x.q, x.q_strides, query, head), x.q_strides.time, pair.queries, head_dim,
                work.queries);
      copy_rows(place.at(x.dout, x.dout_strides, query, head), x.dout_strides.time, pair.queries,
                value_dim, work.douts);
      C* p = work.p;
      C* ds = work.ds;
      dots(isa, pair, head_dim, work.keys, work.q_transposed + at_row * head_dim, p);
      dots(isa, pair, value_dim, work.values, work.dout_transposed + at_row * value_dim, ds);
      const TilePlace tile{place.entry, head, shape.kv_heads * shape.group};
      const auto scale = static_cast<C>(shape.scale);
      const auto softcap = static_cast<C>(shape.softcap);
      const C left = softcap != 0 ? C{1} : scale;  // of the scale, to be applied
      if (softcap != 0) cap_scores(pair, scale, softcap, p);
      if (x.mask.changes_scores()) mask_scores(x.mask, tile, pair, left, p);
      if (x.mask.dropout > 0) drop(shape, x.mask, tile, pair, ds);
      score_gradients<C>(pair, x.mask.changes_scores() ? C{1} : left, scale, softcap,
                         work.lse + at_row, work.delta + at_row, p, ds);
      if (x.mask.dropout > 0) drop(shape, x.mask, tile, pair, p);
      if (x.mask.gradient != nullptr) write_score_gradients(shape, tile, pair, ds, x.mask.gradient);
      add_to_keys(isa, pair, work.value_width, p, work.douts, work.dv);
      add_to_keys(isa, pair, width, ds, work.queries, work.dk);
      add_to_queries(isa, pair, width, ds, work.keys, work.dq + at_row * width);
    }
  }
  write_rows(work.dk, width, key_count, head_dim, place.at(x.dk, x.dk_strides, key, place.kv_head),
             x.dk_strides.time);
  write_rows(work.dv, work.value_width, key_count, value_dim,
             place.at(x.dv, x.dv_strides, key, place.kv_head), x.dv_strides.time);
}

/// All gradients of one key/value head of one batch entry.
template <class Isa, class T, class C>
[[gnu::always_inline]] inline void head_gradients(Isa isa, const AttentionShape& shape,
                                                  const AttentionGradient<T, C>& x,
                                                  const HeadPlace& place, Backward<C>& work) {
  std::fill_n(work.dq, work.dq_count, C{0});
  read_queries(isa, shape, x, place, work);
  for (std::int64_t key = 0; key < shape.keys; key += kKeyTile)
    key_tile_gradients(isa, shape, x, place, key, work);
  for (std::int64_t member = 0; member < shape.group; ++member) {
    write_rows(
        work.dq + member * work.length * work.width, work.width, shape.queries, shape.head_dim,
        place.at(x.dq, x.dq_strides, 0, place.kv_head * shape.group + member), x.dq_strides.time);
  }
}

/// The arrays from a query and a key on.
template <class T, class C>
AttentionGradient<T, C> part_of(const AttentionGradient<T, C>& x, std::int64_t query,
                                std::int64_t key) {
  AttentionGradient<T, C> part = x;
  part.q += query * x.q_strides.time;
  part.k += key * x.k_strides.time;
  part.v += key * x.v_strides.time;
  if (x.delta == nullptr) {
    part.out += query * x.out_strides.time;
  } else {
    part.delta += query;
  }
  part.dout += query * x.dout_strides.time;
  part.log_sum_exp += query;
  part.dq += query * x.dq_strides.time;
  part.dk += key * x.dk_strides.time;
  part.dv += key * x.dv_strides.time;
  return part;
}

/// Gradients of keys `begin` to `end` that no query sees.
template <class T, class C>
void clear_keys(const AttentionShape& shape, const AttentionGradient<T, C>& x,
                const HeadPlace& place, std::int64_t begin, std::int64_t end) {
  for (std::int64_t key = begin; key < end; ++key) {
    std::fill_n(place.at(x.dk, x.dk_strides, key, place.kv_head), shape.head_dim, T{});
    std::fill_n(place.at(x.dv, x.dv_strides, key, place.kv_head), shape.values(), T{});
  }
}

/// Queries that are computed together, and the keys that they may see.
struct Document {
  std::int64_t query;
  std::int64_t queries_end;
  std::int64_t key;
  std::int64_t keys_end;
};

/// The document whose first query is `query`: all of them, where there are no documents.
inline Document document_from(const AttentionShape& shape, std::int64_t entry, std::int64_t query) {
  if (!shape.has_documents) return {0, shape.queries, 0, shape.keys};
  const std::int64_t end = end_of_document(shape, entry, query);
  const std::int64_t key = first_key_of_document(shape, entry, query);
  return {query, end, key,
          std::clamp<std::int64_t>(last_key_of_query_0(shape) + end, key, shape.keys)};
}

/// All gradients of one key/value head of one batch entry, document by document: a document's are
/// those that it has alone.
template <class Isa, class T, class C>
[[gnu::always_inline]] inline void all_gradients(Isa isa, const AttentionShape& shape,
                                                 const AttentionGradient<T, C>& x,
                                                 const HeadPlace& place, Backward<C>& work) {
  std::int64_t keys_done = 0;
  for (std::int64_t query = 0; query < shape.queries;) {
    const Document document = document_from(shape, place.entry, query);
    AttentionShape part = shape;
    part.queries = document.queries_end - document.query;
    part.keys = document.keys_end - document.key;
    part.first_query += document.query;
    part.first_key += document.key;
    clear_keys(shape, x, place, keys_done, document.key);
    head_gradients(isa, part, part_of(x, document.query, document.key), place, work);
    keys_done = document.keys_end;
    query = document.queries_end;
  }
  clear_keys(shape, x, place, keys_done, shape.keys);
}

}  // namespace

template <class T, class Lse>
void attention_backward(Workspace& workspace, const AttentionShape& shape,
                        const AttentionGradient<T, Lse>& arguments) {
  const Workspace::Parts parts =
      workspace.per_thread([&](Workspace& part) { Backward<Lse>(part, shape); });
  if (workspace.counts()) return;
  AttentionGradient<T, Lse> whole = arguments;
  if (whole.log_sum_exp_stride == 0) whole.log_sum_exp_stride = shape.queries;
  parallel_for(0, shape.batch * shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    Workspace part = parts.mine();
    Backward<Lse> work(part, shape);
    simd::dispatch([&](auto isa) __attribute__((always_inline)) {
      for (std::int64_t task = begin; task < end; ++task) {
        all_gradients(isa, shape, whole, {task / shape.kv_heads, task % shape.kv_heads}, work);
      }
    });
  });
}

template decltype(attention_backward<float, float>) attention_backward<float, float>;
template decltype(attention_backward<double, double>) attention_backward<double, double>;
template decltype(attention_backward<BFloat16, float>) attention_backward<BFloat16, float>;
template decltype(attention_backward<Half, float>) attention_backward<Half, float>;

}  // namespace tessera::kernels
