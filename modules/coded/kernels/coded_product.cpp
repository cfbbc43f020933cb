#include "coded_product.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <tessera/half.hpp>
#include <type_traits>
#include <vector>

#include "matmul/kernels/row_dots.hpp"
#include "panels.hpp"
#include "shared/kernels/simd.hpp"

// As ggml: each product is rounded before it is added.
#pragma STDC FP_CONTRACT OFF

namespace tessera::kernels {
namespace {

using row_dots::kLanes;
using simd::F32;
using simd::I32;
using Bytes = unsigned char __attribute__((vector_size(16)));
using SignedBytes = signed char __attribute__((vector_size(16)));

/// Whether the machine converts halves itself.
template <class Isa>
constexpr bool kConvertsHalves = Isa::kLevel != simd::Level::base;

template <class Isa>
[[gnu::always_inline]] inline float half_at(const std::byte* from) {
  if constexpr (kConvertsHalves<Isa>) {
    return static_cast<float>(simd::raw_load<_Float16>(from));
  } else {
    return static_cast<float>(Half::from_bits(simd::raw_load<std::uint16_t>(from)));
  }
}

template <class Isa, class Element>
[[gnu::always_inline]] inline F32 elements_at(const Element* from) {
  if constexpr (std::is_same_v<Element, Half> && kConvertsHalves<Isa>) {
    using Halves = _Float16 __attribute__((vector_size(32)));
    return __builtin_convertvector(simd::raw_load<Halves>(from), F32);
  } else {
    return simd::load(from);
  }
}

[[gnu::always_inline]] inline unsigned byte_at(const std::byte* from) {
  return static_cast<unsigned>(*from);
}

[[gnu::always_inline]] inline I32 unsigned_at(const std::byte* from) {
  return __builtin_convertvector(simd::raw_load<Bytes>(from), I32);
}

/// The lower or the upper halves of 16 bytes.
template <int kShift>
[[gnu::always_inline]] inline I32 nibbles_at(const std::byte* from) {
  const Bytes all = simd::raw_load<Bytes>(from);
  return __builtin_convertvector(kShift == 0 ? all & 0xf : all >> 4, I32);
}

[[gnu::always_inline]] inline F32 floats(I32 codes) { return __builtin_convertvector(codes, F32); }

/// 16 elements of a type that has plain ones, the last of them 0 where k is no multiple of 16.
template <class Element>
struct PlainCodes {
  static constexpr std::int64_t kBlock = kLanes;
  static constexpr std::int64_t kBytes = kLanes * static_cast<std::int64_t>(sizeof(Element));

  template <class Isa, class F>
  [[gnu::always_inline]] static void block(const std::byte* from, float, std::int64_t count,
                                           F&& use) {
    Element elements[kLanes] = {};
    if (count < kLanes) {
      std::memcpy(elements, from, static_cast<std::size_t>(count) * sizeof(Element));
      use(0, elements_at<Isa>(elements));
    } else {
      std::memcpy(elements, from, sizeof elements);
      use(0, elements_at<Isa>(elements));
    }
  }
};

/// 4 bits around `kMiddle`, with one scale.
template <class F>
[[gnu::always_inline]] inline void scaled_nibbles(const std::byte* from, F&& value, auto&& use) {
  use(0, value(nibbles_at<0>(from)));
  use(kLanes, value(nibbles_at<4>(from)));
}

/// Twice the numbers of 4 bits: a sign, two bits of the exponent, one of the mantissa.
[[gnu::always_inline]] inline I32 twice_small_numbers(I32 codes) {
  // Of 0 to 4, 6, 8 and 12 each has 4 bits.
  const simd::U32 sizes = simd::U32{} + 0xc8643210U;
  const auto size = simd::bits_as<I32>(sizes >> simd::bits_as<simd::U32>((codes & 7) << 2)) & 15;
  const I32 negative = codes << 28 >> 31;
  return (size ^ negative) - negative;
}

/// The scale and the minimum of a group of 32 elements, of 6 bits each in 12 bytes.
struct GroupBits {
  unsigned scale;
  unsigned minimum;
};
template <int kGroup>
[[gnu::always_inline]] inline GroupBits group_bits(const std::byte* from) {
  if constexpr (kGroup < 4) {
    return {byte_at(from + kGroup) & 63U, byte_at(from + kGroup + 4) & 63U};
  } else {
    const unsigned lower = byte_at(from + kGroup + 4);
    return {(lower & 0xfU) | byte_at(from + kGroup - 4) >> 6U << 4U,
            lower >> 4U | byte_at(from + kGroup) >> 6U << 4U};
  }
}

/// A group of 32 elements of 4 bits, or of 5 with `upper`.
template <class Isa, int kGroup, bool kFive>
[[gnu::always_inline]] inline void affine_group(const std::byte* from, const std::byte* upper,
                                                const std::byte* lower, auto&& use) {
  const GroupBits bits = group_bits<kGroup>(from + 4);
  const float step = half_at<Isa>(from) * static_cast<float>(bits.scale);
  const float least = half_at<Isa>(from + 2) * static_cast<float>(bits.minimum);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    I32 code = nibbles_at<kGroup % 2 * 4>(lower + kGroup / 2 * 32 + i * kLanes);
    if constexpr (kFive) {
      code |= (unsigned_at(upper + i * kLanes) >> kGroup & 1) << 4;
    }
    const F32 product = floats(code) * step;
    use(kGroup * 32 + i * kLanes, product - least);
  }
}

template <class Isa, bool kFive>
[[gnu::always_inline]] inline void affine_block(const std::byte* from, const std::byte* upper,
                                                const std::byte* lower, auto&& use) {
  affine_group<Isa, 0, kFive>(from, upper, lower, use);
  affine_group<Isa, 1, kFive>(from, upper, lower, use);
  affine_group<Isa, 2, kFive>(from, upper, lower, use);
  affine_group<Isa, 3, kFive>(from, upper, lower, use);
  affine_group<Isa, 4, kFive>(from, upper, lower, use);
  affine_group<Isa, 5, kFive>(from, upper, lower, use);
  affine_group<Isa, 6, kFive>(from, upper, lower, use);
  affine_group<Isa, 7, kFive>(from, upper, lower, use);
}

}  // namespace

// Each calls `use` with the place of 16 elements within the block and these, in order.

struct HalfCodes : PlainCodes<Half> {};
struct BFloat16Codes : PlainCodes<BFloat16> {};

struct Int8Codes {
  static constexpr std::int64_t kBlock = kLanes;
  static constexpr std::int64_t kBytes = kLanes;

  template <class Isa, class F>
  [[gnu::always_inline]] static void block(const std::byte* from, float scale, std::int64_t count,
                                           F&& use) {
    SignedBytes codes = {};
    if (count < kLanes) {
      std::memcpy(&codes, from, static_cast<std::size_t>(count));
    } else {
      codes = simd::raw_load<SignedBytes>(from);
    }
    use(0, floats(__builtin_convertvector(codes, I32)) * scale);
  }
};

struct Q8_0Codes {
  static constexpr std::int64_t kBlock = 32;
  static constexpr std::int64_t kBytes = 34;

  template <class Isa, class F>
  [[gnu::always_inline]] static void block(const std::byte* from, float, std::int64_t, F&& use) {
    const float scale = half_at<Isa>(from);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto codes = simd::raw_load<SignedBytes>(from + 2 + i * kLanes);
      use(i * kLanes, floats(__builtin_convertvector(codes, I32)) * scale);
    }
  }
};

struct Q4_0Codes {
  static constexpr std::int64_t kBlock = 32;
  static constexpr std::int64_t kBytes = 18;

  template <class Isa, class F>
  [[gnu::always_inline]] static void block(const std::byte* from, float, std::int64_t, F&& use) {
    const float scale = half_at<Isa>(from);
    const auto value = [&](I32 codes)
                           __attribute__((always_inline)) { return floats(codes - 8) * scale; };
    scaled_nibbles(from + 2, value, use);
  }
};

struct Q4_1Codes {
  static constexpr std::int64_t kBlock = 32;
  static constexpr std::int64_t kBytes = 20;

  template <class Isa, class F>
  [[gnu::always_inline]] static void block(const std::byte* from, float, std::int64_t, F&& use) {
    const float scale = half_at<Isa>(from);
    const float least = half_at<Isa>(from + 2);
    const auto value = [&](I32 codes) __attribute__((always_inline)) {
      const F32 product = floats(codes) * scale;
      return product + least;
    };
    scaled_nibbles(from + 4, value, use);
  }
};

struct Q5_0Codes {
  static constexpr std::int64_t kBlock = 32;
  static constexpr std::int64_t kBytes = 22;

  template <class Isa, class F>
  [[gnu::always_inline]] static void block(const std::byte* from, float, std::int64_t, F&& use) {
    const float scale = half_at<Isa>(from);
    std::uint32_t upper = 0;
    std::memcpy(&upper, from + 2, sizeof upper);
    const I32 places = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    std::uint32_t own = upper;
    const auto value = [&](I32 codes) __attribute__((always_inline)) {
      const I32 fifth = (static_cast<std::int32_t>(own & 0xffffU) - I32{}) >> places & 1;
      own >>= kLanes;
      return floats((codes | fifth << 4) - 16) * scale;
    };
    scaled_nibbles(from + 6, value, use);
  }
};

/// Twice the numbers of 4 bits, with a scale that is half a power of two.
struct Mxfp4Codes {
  static constexpr std::int64_t kBlock = 32;
  static constexpr std::int64_t kBytes = 17;

  template <class Isa, class F>
  [[gnu::always_inline]] static void block(const std::byte* from, float, std::int64_t, F&& use) {
    const std::uint32_t exponent = byte_at(from);
    const std::uint32_t bits = exponent < 2 ? 0x00200000U << exponent : (exponent - 1) << 23;
    const float scale = simd::bits_as<float>(bits);
    const auto value = [&](I32 codes) __attribute__((always_inline)) {
      return floats(twice_small_numbers(codes)) * scale;
    };
    scaled_nibbles(from + 1, value, use);
  }
};

struct Q4KCodes {
  static constexpr std::int64_t kBlock = 256;
  static constexpr std::int64_t kBytes = 144;

  template <class Isa, class F>
  [[gnu::always_inline]] static void block(const std::byte* from, float, std::int64_t, F&& use) {
    affine_block<Isa, false>(from, nullptr, from + 16, use);
  }
};

struct Q5KCodes {
  static constexpr std::int64_t kBlock = 256;
  static constexpr std::int64_t kBytes = 176;

  template <class Isa, class F>
  [[gnu::always_inline]] static void block(const std::byte* from, float, std::int64_t, F&& use) {
    affine_block<Isa, true>(from, from + 16, from + 48, use);
  }
};

struct Q6KCodes {
  static constexpr std::int64_t kBlock = 256;
  static constexpr std::int64_t kBytes = 210;

  /// A quarter of 128 elements.
  template <int kQuarter>
  [[gnu::always_inline]] static void quarter(const std::byte* lower, const std::byte* upper,
                                             const std::byte* scales, float scale, int begin,
                                             auto&& use) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const I32 low = nibbles_at<kQuarter / 2 * 4>(lower + kQuarter % 2 * 32 + i * kLanes);
      const I32 high = unsigned_at(upper + i * kLanes) >> 2 * kQuarter & 3;
      const float step =
          scale * static_cast<float>(static_cast<std::int8_t>(scales[2 * kQuarter + i]));
      use(begin + kQuarter * 32 + i * kLanes, floats((low | high << 4) - 32) * step);
    }
  }

  template <class Isa, class F>
  [[gnu::always_inline]] static void block(const std::byte* from, float, std::int64_t, F&& use) {
    const float scale = half_at<Isa>(from + 208);
    for (int half = 0; half < 2; ++half) {
      const std::byte* const lower = from + half * 64;
      const std::byte* const upper = from + 128 + half * 32;
      const std::byte* const scales = from + 192 + half * 8;
      const int begin = half * 128;
      quarter<0>(lower, upper, scales, scale, begin, use);
      quarter<1>(lower, upper, scales, scale, begin, use);
      quarter<2>(lower, upper, scales, scale, begin, use);
      quarter<3>(lower, upper, scales, scale, begin, use);
    }
  }
};

namespace {

/// The 16 elements from `place` of a block on; `rest`: of the row from the block on.
template <class Codes>
[[gnu::always_inline]] inline F32 load_of_block(const float* block, std::int64_t place,
                                                std::int64_t rest) {
  if constexpr (Codes::kBlock > kLanes) {
    return simd::load(block + place);  // blocks are whole
  } else {
    return simd::load_some(block + place, rest - place);
  }
}

template <class Codes>
[[gnu::always_inline]] inline void store_of_block(float* block, std::int64_t place,
                                                  std::int64_t rest, F32 elements) {
  if constexpr (Codes::kBlock > kLanes) {
    simd::store(block + place, elements);
  } else {
    simd::store_some(block + place, rest - place, elements);
  }
}

template <class Codes, class Isa>
[[gnu::always_inline]] inline void decode(Isa, const std::byte* codes, float scale, std::int64_t k,
                                          float* to) {
  for (std::int64_t p = 0; p < k; p += Codes::kBlock, codes += Codes::kBytes) {
    const std::int64_t left = k - p;
    Codes::template block<Isa>(
        codes, scale, left, [&](std::int64_t place, F32 elements) __attribute__((always_inline)) {
          store_of_block<Codes>(to + p, place, left, elements);
        });
  }
}

/// left * right + sum as row_dots has it: fused where the machine fuses.
[[gnu::always_inline]] inline F32 added(F32 sum, F32 left, F32 right) {
#pragma STDC FP_CONTRACT ON
  return sum + left * right;
}

/// How far after the rows that are read together are those that are fetched: whole groups of rows,
/// and at least what is read while memory answers.
[[gnu::always_inline]] inline std::int64_t bytes_ahead(std::int64_t together) {
  constexpr std::int64_t kLeast = 4096;
  return together * (1 + (kLeast - 1) / std::max<std::int64_t>(together, 1));
}

/// Fetches a block's lines, the first of whose elements has the number p in its row.
template <class Codes>
[[gnu::always_inline]] inline void fetch(const std::byte* block, std::int64_t p) {
  constexpr std::int64_t kLine = 64;
  if constexpr (2 * Codes::kBytes > kLine) {
    for (std::int64_t i = 0; i < Codes::kBytes; i += kLine) __builtin_prefetch(block + i, 0, 3);
  } else {
    constexpr std::int64_t kBlocks = kLine / Codes::kBytes;
    if (p / Codes::kBlock % kBlocks == 0) __builtin_prefetch(block, 0, 3);
  }
}

/// Elements of a few rows of A with columns whose codes are decoded in registers. Several columns,
/// as each sum waits for its last addition.
template <class Codes, int kRows, int kColumns, class Isa>
[[gnu::always_inline]] inline void coded_dots(Isa, const CodedProduct& x, std::int64_t column) {
  const std::byte* codes[kColumns];
  float scale[kColumns];
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    codes[j] = x.codes + (column + j) * x.row_bytes;
    scale[j] = x.scales == nullptr ? 0 : x.scales[column + j];
  }
  F32 sum[kRows][kColumns] = {};
  const std::int64_t ahead = bytes_ahead(kColumns * x.row_bytes);
  for (std::int64_t p = 0; p < x.k; p += Codes::kBlock) {
    const std::int64_t rest = x.k - p;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      fetch<Codes>(codes[j] + ahead, p);
      Codes::template block<Isa>(
          codes[j], scale[j], rest,
          [&](std::int64_t place, F32 elements) __attribute__((always_inline)) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
              const F32 left = load_of_block<Codes>(x.a + i * x.k + p, place, rest);
              sum[i][j] = added(sum[i][j], left, elements);
            }
          });
      codes[j] += Codes::kBytes;
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) x.c[i * x.n + column + j] = simd::sum_lanes(sum[i][j]);
  }
}

template <class Codes, int kRows, int kColumns, class Isa>
[[gnu::always_inline]] inline void decoded_in_registers(Isa isa, const CodedProduct& x,
                                                        std::int64_t column, std::int64_t end) {
  for (; column + kColumns <= end; column += kColumns) {
    coded_dots<Codes, kRows, kColumns>(isa, x, column);
  }
  for (; column < end; ++column) coded_dots<Codes, kRows, 1>(isa, x, column);
}

/// Whether all columns find the rows of A in the first cache, four at a time.
inline bool is_for_registers(const CodedProduct& x) {
  constexpr std::int64_t kMostRows = 8;
  constexpr std::int64_t kFirstCache = 6144;  // floats
  return x.m == 1 || (x.m <= kMostRows && std::min<std::int64_t>(x.m, 4) * x.k <= kFirstCache);
}

/// All rows of A, which are few. Codes are decoded twice for 5 rows and more, which
/// costs less than to write the elements and read them again.
template <class Codes, class Isa>
[[gnu::always_inline]] inline void decoded_for_rows(Isa isa, const CodedProduct& x,
                                                    std::int64_t column, std::int64_t end) {
  CodedProduct rest = x;
  for (; rest.m >= 4; rest.m -= 4, rest.a += 4 * x.k, rest.c += 4 * x.n) {
    decoded_in_registers<Codes, 4, 1>(isa, rest, column, end);
  }
  if (rest.m == 3) return decoded_in_registers<Codes, 3, 1>(isa, rest, column, end);
  if (rest.m == 2) return decoded_in_registers<Codes, 2, 1>(isa, rest, column, end);
  if (rest.m == 1) return decoded_in_registers<Codes, 1, 2>(isa, rest, column, end);
}

constexpr std::int64_t kPanel = 48;  // columns of a task

/// Columns of all rows of A: a tile of the weight is decoded, and stays in a core's cache.
template <class Codes, class Isa>
[[gnu::always_inline]] inline void tiled_panel(Isa isa, const CodedProduct& x, std::int64_t begin,
                                               std::int64_t end, std::vector<float>& tile) {
  constexpr std::int64_t kTile = 1 << 15;  // floats: 128 KiB
  constexpr std::int64_t kStep = 6;        // a multiple of the columns of row_dots
  const std::int64_t columns = std::clamp(kTile / x.k / kStep * kStep, kStep, kPanel);
  tile.resize(static_cast<std::size_t>(columns * x.k));
  for (std::int64_t column = begin; column < end; column += columns) {
    const std::int64_t count = std::min(columns, end - column);
    for (std::int64_t j = 0; j < count; ++j) {
      decode<Codes>(isa, x.codes + (column + j) * x.row_bytes,
                    x.scales == nullptr ? 0 : x.scales[column + j], x.k, tile.data() + j * x.k);
    }
    const row_dots::RowProduct product{x.m,         count, x.k,          x.a, x.k,
                                       tile.data(), x.k,   x.c + column, x.n, false};
    row_dots::transposed_panel(isa, product, 0, count);
  }
}

std::int64_t panels_of(const CodedProduct& product) {
  return product.m == 0 ? 0 : (product.n + kPanel - 1) / kPanel;
}

template <class Codes>
void panels(const CodedProduct& product, std::int64_t first, std::int64_t last) {
  std::vector<float> tile;
  simd::dispatch([&](auto isa) __attribute__((always_inline)) {
    const std::int64_t end = std::min(product.n, last * kPanel);
    if (is_for_registers(product)) {
      return decoded_for_rows<Codes>(isa, product, first * kPanel, end);
    }
    tiled_panel<Codes>(isa, product, first * kPanel, end, tile);
  });
}

}  // namespace

template <class Codes>
CodedTask coded_task(const CodedProduct& product) {
  return {product, panels<Codes>};
}

void coded_products(std::span<const CodedTask> tasks) {
  constexpr std::int64_t kGrainWork = 1 << 17;
  for_panels(
      tasks, kGrainWork, [](const CodedTask& task) { return panels_of(task.product); },
      [](const CodedTask& task) { return task.product.m * task.product.k * kPanel; },
      [](const CodedTask& task, std::int64_t first, std::int64_t last) {
        const CodedProduct& product = task.product;
        if (product.k == 0) {
          const std::int64_t begin = first * kPanel;
          const std::int64_t end = std::min(product.n, last * kPanel);
          for (std::int64_t row = 0; row < product.m; ++row) {
            std::fill(product.c + row * product.n + begin, product.c + row * product.n + end, 0.0F);
          }
          return;
        }
        task.panels(product, first, last);
      });
}

template <class Codes>
void decode_row(const std::byte* codes, float scale, std::int64_t k, float* to) {
  simd::dispatch([&](auto isa)
                     __attribute__((always_inline)) { decode<Codes>(isa, codes, scale, k, to); });
}

template CodedTask coded_task<HalfCodes>(const CodedProduct&);
template CodedTask coded_task<BFloat16Codes>(const CodedProduct&);
template CodedTask coded_task<Int8Codes>(const CodedProduct&);
template CodedTask coded_task<Q4_0Codes>(const CodedProduct&);
template CodedTask coded_task<Q4_1Codes>(const CodedProduct&);
template CodedTask coded_task<Q5_0Codes>(const CodedProduct&);
template CodedTask coded_task<Q8_0Codes>(const CodedProduct&);
template CodedTask coded_task<Q4KCodes>(const CodedProduct&);
template CodedTask coded_task<Q5KCodes>(const CodedProduct&);
template CodedTask coded_task<Q6KCodes>(const CodedProduct&);
template CodedTask coded_task<Mxfp4Codes>(const CodedProduct&);
template void decode_row<HalfCodes>(const std::byte*, float, std::int64_t, float*);
template void decode_row<BFloat16Codes>(const std::byte*, float, std::int64_t, float*);
template void decode_row<Int8Codes>(const std::byte*, float, std::int64_t, float*);
template void decode_row<Q4_0Codes>(const std::byte*, float, std::int64_t, float*);
template void decode_row<Q4_1Codes>(const std::byte*, float, std::int64_t, float*);
template void decode_row<Q5_0Codes>(const std::byte*, float, std::int64_t, float*);
template void decode_row<Q8_0Codes>(const std::byte*, float, std::int64_t, float*);
template void decode_row<Q4KCodes>(const std::byte*, float, std::int64_t, float*);
template void decode_row<Q5KCodes>(const std::byte*, float, std::int64_t, float*);
template void decode_row<Q6KCodes>(const std::byte*, float, std::int64_t, float*);
template void decode_row<Mxfp4Codes>(const std::byte*, float, std::int64_t, float*);

}  // namespace tessera::kernels
