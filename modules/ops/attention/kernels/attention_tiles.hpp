#pragma once
// Shared parts of attention.cpp and attention_backward.cpp: tile sizes, copies into padded tiles,
// and the tile of scores, which is kept transposed (keys down, queries across), so that the softmax
// over keys goes lane by lane and keys and values are read where they lie.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "attention.hpp"
#include "shared/kernels/simd.hpp"
#include "shared/kernels/simd_math.hpp"
#include "shared/kernels/tile.hpp"
#include "shared/kernels/transpose_square.hpp"

namespace tessera::kernels::attention_detail {

inline constexpr std::int64_t kQueryTile = 64;
inline constexpr std::int64_t kKeyTile = 64;

template <class C>
std::int64_t padded(std::int64_t extent) {
  return (extent + simd::kLanes<C> - 1) / simd::kLanes<C> * simd::kLanes<C>;
}

/// Copies rows of head_dim elements into rows of padded<C>(head_dim), in the type that is computed
/// in. Also where they could be read in place: rows of one head are far apart, so that a tile of
/// them shares few sets of the first cache (40% of a backward of heads of 32 was such misses).
template <class C, class T>
[[gnu::always_inline]] inline void copy_rows(const T* x, std::int64_t stride, std::int64_t count,
                                             std::int64_t head_dim, C* target) {
  const std::int64_t width = padded<C>(head_dim);
  constexpr std::int64_t kLanes = simd::kLanes<C>;
  for (std::int64_t row = 0; row < count; ++row) {
    std::int64_t i = 0;
    for (; i + kLanes <= head_dim; i += kLanes) {
      simd::store(target + row * width + i, simd::load(x + row * stride + i));
    }
    if (i < head_dim) {
      simd::store(target + row * width + i, simd::load_partial(x + row * stride + i, head_dim - i));
    }
  }
}

/// target[i, query] = rows[query, i] for a tile of rows that copy_rows made; columns from `count`
/// on are zero.
template <class Isa, class C>
[[gnu::always_inline]] inline void transpose_tile(Isa /*isa*/, const C* rows, std::int64_t count,
                                                  std::int64_t head_dim, C* target) {
  constexpr int kBytes = transposition::kLineBytes<Isa>;
  constexpr std::int64_t kSide = transposition::kLine<C, kBytes>;
  const std::int64_t width = padded<C>(head_dim);
  for (std::int64_t query = 0; query < count; query += kSide) {
    for (std::int64_t i = 0; i < head_dim; i += kSide) {
      const C* const from = rows + query * width + i;
      C* const to = target + i * kQueryTile + query;
      if (query + kSide <= count && i + kSide <= head_dim) {
        transposition::square<C, kBytes>(from, width, to, kQueryTile);
      } else {
        transposition::elements(std::min(kSide, head_dim - i), std::min(kSide, count - query), from,
                                width, to, kQueryTile);
      }
    }
  }
  for (std::int64_t i = 0; i < head_dim; ++i) {
    std::fill(target + i * kQueryTile + count, target + (i + 1) * kQueryTile, C{0});
  }
}

/// A tile of queries against a tile of keys.
struct TilePair {
  std::int64_t query;    // first query
  std::int64_t queries;  // in the tile
  std::int64_t key;
  std::int64_t keys;
  std::int64_t last_key_of_first;  // the last key that the first query sees
  std::int64_t window = 0;         // of the keys that a query sees; 0: no limit

  /// The first column (a multiple of the lanes) that sees the tile's key number j.
  template <class C>
  [[gnu::always_inline]] std::int64_t first_column(std::int64_t j) const {
    const std::int64_t unseen = key + j - last_key_of_first;
    if (unseen <= 0) return 0;
    return std::min(kQueryTile, unseen / simd::kLanes<C> * simd::kLanes<C>);
  }

  /// Is there a key in the tile that lies in front of the window of some query?
  [[nodiscard]] bool cut_in_front() const {
    return window != 0 && key <= last_key_of_first + queries - 1 - window;
  }
  /// Do all keys lie in front of the window of every query?
  [[nodiscard]] bool in_front() const {
    return window != 0 && key + keys - 1 <= last_key_of_first - window;
  }
  /// Does every query of the tile see every key of it?
  [[nodiscard]] bool full() const { return key + keys - 1 <= last_key_of_first && !cut_in_front(); }
};

/// result[j, query] = k[j] . q[query] for the columns that see key j (rounded down to full
/// vectors). `left` are rows that copy_rows made, `right` a transposed tile.
template <class Isa, class C>
[[gnu::always_inline]] inline void dots(Isa isa, const TilePair& pair, std::int64_t head_dim,
                                        const C* left, const C* right, C* result) {
  const std::int64_t width = padded<C>(head_dim);
  constexpr std::int64_t kStep = 12;  // keys that are cut at the same column
  for (std::int64_t j = 0; j < pair.keys;) {
    const std::int64_t column = pair.first_column<C>(j);
    const std::int64_t count = pair.full() ? pair.keys : std::min(kStep, pair.keys - j);
    const std::int64_t columns = padded<C>(pair.queries) - column;
    if (columns > 0) {
      tile::product<false>(isa, tile::Product<C>{count, columns, head_dim, left + j * width, width,
                                                 1, right + column, kQueryTile,
                                                 result + j * kQueryTile + column, kQueryTile});
    }
    j += count;
  }
}

/// Which queries (lanes from `column` on) see the tile's key number j.
template <class V>
[[gnu::always_inline]] inline auto sees(const TilePair& pair, std::int64_t j, std::int64_t column) {
  using S = std::remove_cvref_t<decltype(V{}[0])>;
  V lane;
  for (int i = 0; i < static_cast<int>(sizeof(V) / sizeof(S)); ++i) lane[i] = static_cast<S>(i);
  const std::int64_t first = pair.key + j - pair.last_key_of_first - column;
  const std::int64_t end = pair.window == 0 ? kQueryTile : first + pair.window;
  return (lane >= simd::splat<V>(static_cast<S>(first))) &
         (lane < simd::splat<V>(static_cast<S>(end)));
}

/// s = softcap tanh(scale s / softcap) for the scores of columns that see keys.
template <class C>
[[gnu::always_inline]] inline void cap_scores(const TilePair& pair, C scale, C softcap, C* scores) {
  using V = simd::Vector<C>;
  constexpr std::int64_t kLanes = simd::kLanes<C>;
  for (std::int64_t j = 0; j < pair.keys; ++j) {
    for (std::int64_t column = pair.first_column<C>(j); column < padded<C>(pair.queries);
         column += kLanes) {
      C* const score = scores + j * kQueryTile + column;
      const V scaled = simd::load(score) * (scale / softcap);
      simd::store(score, simd::tanh(scaled) * softcap);
    }
  }
}

/// A tile of one head of one batch entry, for the masks.
struct TilePlace {
  std::int64_t entry;
  std::int64_t head;
  std::int64_t heads;
};

/// scores = scale scores + mask, minus infinity where a key is not seen. What a causal mask hides
/// may hold anything and is hidden later.
template <class C, class T>
void mask_scores(const AttentionMask<T>& mask, const TilePlace& place, const TilePair& pair,
                 C scale, C* scores) {
  const auto& s = mask.strides;
  const std::int64_t start =
      place.entry * s[0] + place.head * s[1] + pair.query * s[2] + pair.key * s[3];
  for (std::int64_t j = 0; j < pair.keys; ++j) {
    for (std::int64_t i = 0; i < pair.queries; ++i) {
      const std::int64_t at = start + i * s[2] + j * s[3];
      C& score = scores[j * kQueryTile + i];
      if (mask.allowed != nullptr) {
        score = mask.allowed[at] != 0 ? score * scale : -std::numeric_limits<C>::infinity();
      } else {
        score = score * scale + static_cast<C>(mask.added[at]);
      }
    }
  }
}

/// x *= 0 where the probability is dropped, else 1 / (1 - dropout): probabilities on their way to
/// the result, or the result's gradient on its way back.
template <class C, class T>
void drop(const AttentionShape& shape, const AttentionMask<T>& mask, const TilePlace& place,
          const TilePair& pair, C* x) {
  const C factor = mask.dropout < 1 ? static_cast<C>(1 / (1 - mask.dropout)) : C{0};
  std::uint8_t dropped[kKeyTile];
  for (std::int64_t i = 0; i < pair.queries; ++i) {
    const std::int64_t row =
        ((place.entry + mask.first_batch) * mask.heads_in_all + place.head + mask.first_head) *
            mask.queries_in_all +
        mask.first_query + pair.query + i;
    RandomRange range = mask.random;
    range.first_index = range.place(static_cast<std::uint64_t>(row * shape.keys + pair.key));
    fill_bernoulli(range, pair.keys, mask.dropout, dropped);
    for (std::int64_t j = 0; j < pair.keys; ++j)
      x[j * kQueryTile + i] *= dropped[j] != 0 ? C{0} : factor;
  }
}

/// Queries of one document and one batch entry. A document's tiles begin with its first token, so
/// its results are those that it has alone.
struct QueryTile {
  std::int64_t entry;
  std::int64_t query;    // first query
  std::int64_t queries;  // in the tile
  std::int64_t first_key;
};

/// One past the last query of the document of query `first` of an entry.
inline std::int64_t end_of_document(const AttentionShape& shape, std::int64_t entry,
                                    std::int64_t first) {
  const std::int64_t* const row = shape.documents + entry * shape.queries;
  return std::find_if(row + first, row + shape.queries,
                      [&](std::int64_t i) { return i != row[first]; }) -
         row;
}

/// The first key that is in the document of query `first` of an entry.
inline std::int64_t first_key_of_document(const AttentionShape& shape, std::int64_t entry,
                                          std::int64_t first) {
  const std::int64_t position = shape.documents[entry * shape.queries + first];
  return std::clamp<std::int64_t>(position - shape.first_key, 0, shape.keys);
}

/// The last key that a causal query 0 sees, or an index beyond all keys.
inline std::int64_t last_key_of_query_0(const AttentionShape& shape) {
  if (!shape.causal) return std::numeric_limits<std::int32_t>::max();
  if (shape.is_block) return shape.first_query - shape.first_key;
  return shape.upper_left ? 0 : shape.keys - shape.queries;
}

}  // namespace tessera::kernels::attention_detail
