#include "integer_product.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "integer_dots.hpp"
#include "panels.hpp"
#include "rounded_rows.hpp"
#include "shared/kernels/simd.hpp"
#include "unit_codes.hpp"

// Each operation is rounded: the bits are those of every machine.
#pragma STDC FP_CONTRACT OFF

namespace tessera::kernels {
namespace {

using namespace integers;  // NOLINT(google-build-using-namespace)
using Quads8 = std::int32_t __attribute__((vector_size(32)));

/// Two rows of the weight next to each other, eight of these: the rows of number 0 to 3 and 8 to
/// 11, each with the one that is 4 further.
constexpr std::int64_t kPairs = kTogether / 2;
[[gnu::always_inline]] constexpr int first_of_pair(int pair) { return pair % 4 + pair / 4 * 8; }

template <class Unit>
[[gnu::always_inline]] inline I32 pair_codes(const WeightRows& rows, int pair, std::int64_t unit,
                                             std::int64_t left) {
  using Bytes64 = unsigned char __attribute__((vector_size(64)));
  const int first = first_of_pair(pair);
  const Bytes32 halves[2] = {Unit::codes(rows.row[first], unit, left),
                             Unit::codes(rows.row[first + 4], unit, left)};
  return simd::bits_as<I32>(simd::raw_load<Bytes64>(halves));
}

[[gnu::always_inline]] inline I32 low_words(I32 a, I32 b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
}
[[gnu::always_inline]] inline I32 high_words(I32 a, I32 b) {
  return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
[[gnu::always_inline]] inline I32 low_pairs(I32 a, I32 b) {
  return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
}
[[gnu::always_inline]] inline I32 high_pairs(I32 a, I32 b) {
  return __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}
/// The first and the third quarters of both, and the second and the fourth ones.
[[gnu::always_inline]] inline I32 first_quarters(I32 a, I32 b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
}
[[gnu::always_inline]] inline I32 second_quarters(I32 a, I32 b) {
  return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}

/// Sums of the first and of the second 16 elements of a unit, of each row in its lane.
struct HalfSums {
  I32 first;
  I32 second;
};

/// Of eight sums for each row, four for each half.
[[gnu::always_inline]] inline HalfSums sums_of_rows(const I32 (&v)[kPairs]) {
  I32 half[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const I32 a = low_words(v[4 * i], v[4 * i + 1]) + high_words(v[4 * i], v[4 * i + 1]);
    const I32 b = low_words(v[4 * i + 2], v[4 * i + 3]) + high_words(v[4 * i + 2], v[4 * i + 3]);
    half[i] = low_pairs(a, b) + high_pairs(a, b);
  }
  return {first_quarters(half[0], half[1]), second_quarters(half[0], half[1])};
}

/// The sum with a unit's terms, of each row in its lane; see integer_product().
template <class Unit>
[[gnu::always_inline]] inline F32 with_unit(F32 sum, const HalfSums& sums,
                                            const GroupScales& scales, const RoundedRows& x,
                                            std::int64_t at) {
  const auto index = static_cast<std::size_t>(at);
  const float scale = x.scale[index];
  const auto floats = [](I32 v) __attribute__((always_inline)) {
    return __builtin_convertvector(v, F32);
  };
  if constexpr (Unit::kHasHalves) {
    sum += floats(sums.first) * (scales.scale * scale);
    return sum + floats(sums.second) * (scales.second * scale);
  } else {
    const F32 term = floats(sums.first + sums.second) * (scales.scale * scale);
    if constexpr (Unit::kHasMinimum) {
      return sum + (term - scales.minimum * x.sum[index]);
    } else {
      return sum + term;
    }
  }
}

/// Where the rows of the weight and their elements are.
struct Target {
  const CodedProduct& product;
  const RoundedRows& x;
  std::int64_t first_row;  // of x
  std::int64_t column;
  std::int64_t count;  // at most kTogether

  [[gnu::always_inline]] WeightRows rows() const {
    WeightRows rows{};
    for (int i = 0; i < kTogether; ++i) {
      const std::int64_t row = column + std::min<std::int64_t>(i, count - 1);
      rows.row[i] = product.codes + row * product.row_bytes;
      rows.scale[i] = product.scales == nullptr ? 0 : product.scales[row];
    }
    return rows;
  }
  [[gnu::always_inline]] void write(std::int64_t row, F32 sums) const {
    float* const to = product.c + row * product.n + column;
    if (count == kTogether) {
      simd::store(to, sums);
    } else {
      simd::store_partial(to, count, sums);
    }
  }
};

[[gnu::always_inline]] inline I32 twice(const std::int32_t* words) {
  const auto v = simd::raw_load<Quads8>(words);
  return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
}

/// Fetches a unit's share of the rows after these: the machine itself foresees no 16 rows that are
/// read side by side.
[[gnu::always_inline]] inline void fetch_next(const CodedProduct& product, const std::byte* rows,
                                              std::int64_t unit, std::int64_t units) {
  constexpr std::int64_t kLine = 64;
  const std::int64_t all = kTogether * product.row_bytes;
  const std::byte* const from = rows + all + unit * all / units;
  for (std::int64_t i = 0; i < all / units; i += kLine) __builtin_prefetch(from + i, 0, 2);
}

/// One row of x: the codes are read once, and summed as they are.
template <class Unit, class Isa, class Dots>
[[gnu::always_inline]] inline void one_row(Isa, Dots, const Target& target, std::int64_t row) {
  const RoundedRows& x = target.x;
  const WeightRows rows = target.rows();
  F32 sum = {};
  for (std::int64_t unit = 0; unit < x.units; ++unit) {
    const std::int64_t at = (target.first_row + row) * x.units + unit;
    const std::int64_t left = target.product.k - unit * kUnit;
    fetch_next(target.product, rows.row[0], unit, x.units);
    const I32 even = twice(x.even.data() + at * kQuads);
    const I32 odd = Dots::kSigned8 ? I32{} : twice(x.odd.data() + at * kQuads);
    I32 v[kPairs];
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const I32 codes = pair_codes<Unit>(rows, pair, unit, left);
      I32 dots = {};
      Dots::add(dots, codes, even, odd);
      v[pair] = dots;
    }
    HalfSums sums = sums_of_rows(v);
    if constexpr (Unit::kOffset != 0) {
      sums.first -= Unit::kOffset * x.halves[static_cast<std::size_t>(2 * at)];
      sums.second -= Unit::kOffset * x.halves[static_cast<std::size_t>(2 * at + 1)];
    }
    sum = with_unit<Unit>(sum, sums, Unit::template scales<Isa>(rows, unit), x, at);
  }
  target.write(row, sum);
}

/// Rows of the weight in the order of the sums: of each unit, four elements of all rows after the
/// other.
struct CodeTile {
  struct Unit {
    I32 quads[kQuads];
    GroupScales scales;
  };
  std::vector<Unit> units;
};

template <class Unit, class Isa>
[[gnu::always_inline]] inline void fill(Isa, const Target& target, CodeTile& tile) {
  const WeightRows rows = target.rows();
  for (std::int64_t unit = 0; unit < target.x.units; ++unit) {
    fetch_next(target.product, rows.row[0], unit, target.x.units);
    CodeTile::Unit& to = tile.units[static_cast<std::size_t>(unit)];
    const std::int64_t left = target.product.k - unit * kUnit;
    I32 quarters[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      I32 v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = pair_codes<Unit>(rows, 4 * i + j, unit, left);
      const I32 low[2] = {low_words(v[0], v[1]), low_words(v[2], v[3])};
      const I32 high[2] = {high_words(v[0], v[1]), high_words(v[2], v[3])};
      quarters[i][0] = low_pairs(low[0], low[1]);
      quarters[i][1] = high_pairs(low[0], low[1]);
      quarters[i][2] = low_pairs(high[0], high[1]);
      quarters[i][3] = high_pairs(high[0], high[1]);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      to.quads[j] = first_quarters(quarters[0][j], quarters[1][j]);
      to.quads[j + 4] = second_quarters(quarters[0][j], quarters[1][j]);
    }
    to.scales = Unit::template scales<Isa>(rows, unit);
  }
}

template <class Unit, int kRows, class Isa, class Dots>
[[gnu::always_inline]] inline void tiled_rows(Isa, Dots, const Target& target, const CodeTile& tile,
                                              std::int64_t row) {
  const RoundedRows& x = target.x;
  const std::int64_t from = target.first_row + row;
  F32 sum[kRows] = {};
  for (std::int64_t unit = 0; unit < x.units; ++unit) {
    const CodeTile::Unit& codes = tile.units[static_cast<std::size_t>(unit)];
    HalfSums sums[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const auto at = static_cast<std::size_t>((from + i) * x.units + unit);
      sums[i].first = simd::splat<I32>(-Unit::kOffset * x.halves[2 * at]);
      sums[i].second = simd::splat<I32>(-Unit::kOffset * x.halves[2 * at + 1]);
    }
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const std::int64_t word = ((from + i) * x.units + unit) * kQuads + quad;
        const I32 even = simd::splat<I32>(x.even[static_cast<std::size_t>(word)]);
        const I32 odd =
            Dots::kSigned8 ? I32{} : simd::splat<I32>(x.odd[static_cast<std::size_t>(word)]);
        Dots::add(quad < kQuads / 2 ? sums[i].first : sums[i].second, codes.quads[quad], even, odd);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      sum[i] = with_unit<Unit>(sum[i], sums[i], codes.scales, x, (from + i) * x.units + unit);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) target.write(row + i, sum[i]);
}

/// All rows of x, several at a time: the codes are put in their order once.
template <class Unit, class Isa, class Dots>
[[gnu::always_inline]] inline void many_rows(Isa isa, Dots dots, const Target& target,
                                             CodeTile& tile) {
  tile.units.resize(static_cast<std::size_t>(target.x.units));
  fill<Unit>(isa, target, tile);
  constexpr int kRows = Isa::kManyRegisters ? 4 : 2;
  std::int64_t row = 0;
  for (; row + kRows <= target.product.m; row += kRows) {
    tiled_rows<Unit, kRows>(isa, dots, target, tile, row);
  }
  for (; row + 2 <= target.product.m; row += 2) tiled_rows<Unit, 2>(isa, dots, target, tile, row);
  if (row < target.product.m) tiled_rows<Unit, 1>(isa, dots, target, tile, row);
}

bool takes_signed8() {
  bool result = false;
  dispatch_dots([&]<class Dots>(auto, Dots)
                    __attribute__((always_inline)) { result = Dots::kSigned8; });
  return result;
}

std::int64_t panels_of(const CodedProduct& product) {
  return product.m == 0 ? 0 : (product.n + kTogether - 1) / kTogether;
}

template <class Codes>
void panels(const CodedProduct& product, const RoundedRows& x, std::int64_t row, std::int64_t first,
            std::int64_t last) {
  using Unit = UnitCodes<Codes>;
  CodeTile tile;
  dispatch_dots([&](auto isa, auto dots) __attribute__((always_inline)) {
    for (std::int64_t panel = first; panel < last; ++panel) {
      const std::int64_t column = panel * kTogether;
      const Target target{product, x, row, column, std::min(kTogether, product.n - column)};
      if (product.m == 1) {
        one_row<Unit>(isa, dots, target, 0);
      } else {
        many_rows<Unit>(isa, dots, target, tile);
      }
    }
  });
}

}  // namespace

template <class Codes>
  requires is_integer<Codes>
IntegerTask integer_task(const CodedProduct& product) {
  return {product, panels<Codes>};
}

void integer_products(const float* x, std::int64_t m, std::int64_t k,
                      std::span<const IntegerTask> tasks) {
  if (k == 0) {
    for (const IntegerTask& task : tasks) {
      std::fill_n(task.product.c, task.product.m * task.product.n, 0.0F);
    }
    return;
  }
  const RoundedRows rounded = rounded_rows(x, m, k, takes_signed8());
  // Less work than this, some 2 microseconds, is not worth another piece.
  constexpr std::int64_t kGrainWork = 1 << 15;
  for_panels(
      tasks, kGrainWork, [](const IntegerTask& task) { return panels_of(task.product); },
      [](const IntegerTask& task) { return task.product.m * task.product.k * kTogether; },
      [&](const IntegerTask& task, std::int64_t first, std::int64_t last) {
        task.panels(task.product, rounded, (task.product.a - x) / k, first, last);
      });
}

template IntegerTask integer_task<Int8Codes>(const CodedProduct&);
template IntegerTask integer_task<Q4_0Codes>(const CodedProduct&);
template IntegerTask integer_task<Q4_1Codes>(const CodedProduct&);
template IntegerTask integer_task<Q5_0Codes>(const CodedProduct&);
template IntegerTask integer_task<Q8_0Codes>(const CodedProduct&);
template IntegerTask integer_task<Q4KCodes>(const CodedProduct&);
template IntegerTask integer_task<Q5KCodes>(const CodedProduct&);
template IntegerTask integer_task<Q6KCodes>(const CodedProduct&);
template IntegerTask integer_task<Mxfp4Codes>(const CodedProduct&);

}  // namespace tessera::kernels
