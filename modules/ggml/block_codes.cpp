#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <tessera/block_codes.hpp>
#include <tessera/half.hpp>
#include <vector>

namespace tessera {
namespace {

using kernels::Half;

constexpr int block = 32;
constexpr int half_block = block / 2;

constexpr int super_block = 256;  // of the types with scales of scales

float half_at(const std::byte* bytes) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return static_cast<float>(Half::from_bits(bits));
}

// ggml rounds each product before it adds: a fused multiplication would give other bits.
#pragma STDC FP_CONTRACT OFF

/// Elements are factors of one scale.
void decode_q8_0(const std::byte* from, float* to) {
  const float scale = half_at(from);
  for (int i = 0; i < block; ++i) {
    to[i] = static_cast<float>(static_cast<std::int8_t>(from[2 + i])) * scale;
  }
}

/// The two elements of a byte are half a block from each other.
template <class F>
void decode_nibbles(const std::byte* from, float* to, F&& value) {
  for (int i = 0; i < half_block; ++i) {
    const auto byte = static_cast<unsigned>(from[i]);
    to[i] = value(byte & 0xfU);
    to[i + half_block] = value(byte >> 4U);
  }
}

void decode_q4_0(const std::byte* from, float* to) {
  const float scale = half_at(from);
  decode_nibbles(from + 2, to,
                 [&](unsigned code) { return scale * (static_cast<float>(code) - 8.0F); });
}

void decode_q4_1(const std::byte* from, float* to) {
  const float scale = half_at(from);
  const float least = half_at(from + 2);
  decode_nibbles(from + 4, to, [&](unsigned code) {
    const float product = scale * static_cast<float>(code);
    return product + least;
  });
}

/// 4 bits of a floating point number, twice its value, with a scale that is half a power of two.
/// Source: ggml_e8m0_to_fp32_half in ggml-impl.h.
void decode_mxfp4(const std::byte* from, float* to) {
  constexpr std::array<float, 16> values = {0, 1,  2,  3,  4,  6,  8,  12,
                                            0, -1, -2, -3, -4, -6, -8, -12};
  const auto exponent = static_cast<std::uint32_t>(from[0]);
  const std::uint32_t bits = exponent < 2 ? 0x00200000U << exponent : (exponent - 1) << 23U;
  const float scale = std::bit_cast<float>(bits);
  decode_nibbles(from + 1, to, [&](unsigned code) { return scale * values.at(code); });
}

/// 5 bits: the upper ones of all elements are in one word.
void decode_q5_0(const std::byte* from, float* to) {
  const float scale = half_at(from);
  std::uint32_t upper = 0;
  std::memcpy(&upper, from + 2, sizeof upper);
  for (int i = 0; i < half_block; ++i) {
    const auto byte = static_cast<unsigned>(from[6 + i]);
    const auto value = [&](unsigned lower, int element) {
      const unsigned code = lower | ((upper >> static_cast<unsigned>(element) & 1U) << 4U);
      return scale * (static_cast<float>(code) - 16.0F);
    };
    to[i] = value(byte & 0xfU, i);
    to[i + half_block] = value(byte >> 4U, i + half_block);
  }
}

/// The scales of the 8 groups of a block with their minima, 6 bits each, in 12 bytes.
struct GroupScales {
  std::array<std::uint8_t, 8> scales = {};
  std::array<std::uint8_t, 8> minima = {};

  static GroupScales read(const std::byte* from) {
    GroupScales all;
    const auto at = [&](std::size_t i) { return static_cast<unsigned>(from[i]); };
    for (std::size_t i = 0; i < 4; ++i) {
      all.scales[i] = static_cast<std::uint8_t>(at(i) & 63U);
      all.minima[i] = static_cast<std::uint8_t>(at(i + 4) & 63U);
      all.scales[i + 4] = static_cast<std::uint8_t>((at(i + 8) & 0xfU) | (at(i) >> 6U << 4U));
      all.minima[i + 4] = static_cast<std::uint8_t>((at(i + 8) >> 4U) | (at(i + 4) >> 6U << 4U));
    }
    return all;
  }

  void write(std::byte* to) const {
    for (std::size_t i = 0; i < 4; ++i) {
      const auto upper = [](unsigned six_bits) { return six_bits >> 4U << 6U; };
      to[i] = static_cast<std::byte>(scales[i] | upper(scales[i + 4]));
      to[i + 4] = static_cast<std::byte>(minima[i] | upper(minima[i + 4]));
      to[i + 8] = static_cast<std::byte>((scales[i + 4] & 0xfU) | ((minima[i + 4] & 0xfU) << 4U));
    }
  }
};

/// 4 bits, and with `upper` a fifth one of each element: groups of 32 with a scale and a minimum.
void decode_groups(const std::byte* from, const std::byte* upper, const std::byte* lower,
                   float* to) {
  const float scale = half_at(from);
  const float minimum = half_at(from + 2);
  const GroupScales groups = GroupScales::read(from + 4);
  for (std::size_t group = 0; group < 8; ++group) {
    const float step = scale * static_cast<float>(groups.scales[group]);
    const float least = minimum * static_cast<float>(groups.minima[group]);
    for (std::size_t i = 0; i < block; ++i) {
      unsigned code = static_cast<unsigned>(lower[group / 2 * block + i]) >> group % 2 * 4U & 0xfU;
      if (upper != nullptr) {
        code |= (static_cast<unsigned>(upper[i]) >> group & 1U) << 4U;
      }
      const float product = step * static_cast<float>(code);
      to[group * block + i] = product - least;
    }
  }
}

void decode_q4_k(const std::byte* from, float* to) { decode_groups(from, nullptr, from + 16, to); }
void decode_q5_k(const std::byte* from, float* to) {
  decode_groups(from, from + 16, from + 48, to);
}

constexpr std::size_t q6_k_upper = 128;
constexpr std::size_t q6_k_scales = 192;
constexpr std::size_t q6_k_scale = 208;

/// Where the code of an element is: which half of a byte, and which 2 bits of another one.
struct CodePlace {
  std::size_t lower, upper;
  unsigned lower_shift, upper_shift;

  explicit CodePlace(std::size_t element)
      : lower(element / 128 * 64 + element % 64),
        upper(q6_k_upper + element / 128 * 32 + element % 32),
        lower_shift(element % 128 / 64 * 4),
        upper_shift(static_cast<unsigned>(element % 128 / 32 * 2)) {}
};

/// 6 bits: groups of 16 with a scale of 8 bits.
void decode_q6_k(const std::byte* from, float* to) {
  const float scale = half_at(from + q6_k_scale);
  for (std::size_t i = 0; i < super_block; ++i) {
    const CodePlace at(i);
    const unsigned code = (static_cast<unsigned>(from[at.lower]) >> at.lower_shift & 0xfU) |
                          (static_cast<unsigned>(from[at.upper]) >> at.upper_shift & 3U) << 4U;
    const float step =
        scale * static_cast<float>(static_cast<std::int8_t>(from[q6_k_scales + i / 16]));
    to[i] = step * (static_cast<float>(code) - 32.0F);
  }
}

/// The first value of the largest size.
float extreme_of(std::span<const float> values) {
  float extreme = 0;
  float largest = 0;  // clang 19 has a wrong result for |x| > |extreme|
  for (const float value : values) {
    if (std::abs(value) > largest) {
      largest = std::abs(value);
      extreme = value;
    }
  }
  return extreme;
}

/// Writes a scale, and says whether it is finite there.
bool write_half(float value, std::byte* to) {
  const Half stored(value);
  std::memcpy(to, &stored.bits, sizeof stored.bits);
  return std::isfinite(static_cast<float>(stored));
}

bool encode_q8_0(const float* from, std::byte* to) {
  float largest = 0;
  for (int i = 0; i < block; ++i) {
    largest = std::max(largest, std::abs(from[i]));
  }
  const float scale = largest / 127;
  const float inverse = scale == 0 ? 0 : 1 / scale;
  for (int i = 0; i < block; ++i) {
    // Codes are at most 127 in size, except where the inverse of a subnormal scale is infinite.
    const float code = std::round(from[i] * inverse);
    to[2 + i] = static_cast<std::byte>(static_cast<std::int8_t>(std::isfinite(code) ? code : 0));
  }
  return write_half(scale, to);
}

/// Codes of 4 or 5 bits around their middle, which is that of 0; the element of the largest size
/// has code 0. Returns the scale.
float codes_around_zero(const float* from, float middle, std::array<unsigned, block>& codes) {
  const float extreme = extreme_of({from, block});
  const float scale = extreme / -middle;
  const float inverse = scale == 0 ? 0 : 1 / scale;
  for (std::size_t i = 0; i < block; ++i) {
    const float code = from[i] * inverse + (middle + 0.5F);
    // Not finite: the inverse of a subnormal scale.
    codes[i] = std::isfinite(code) ? static_cast<unsigned>(std::clamp(code, 0.0F, 2 * middle - 1))
                                   : static_cast<unsigned>(middle);
  }
  return scale;
}

bool encode_q4_0(const float* from, std::byte* to) {
  std::array<unsigned, block> codes{};
  const float scale = codes_around_zero(from, 8, codes);
  for (std::size_t i = 0; i < half_block; ++i) {
    to[2 + i] = static_cast<std::byte>(codes[i] | codes[i + half_block] << 4U);
  }
  return write_half(scale, to);
}

bool encode_q5_0(const float* from, std::byte* to) {
  std::array<unsigned, block> codes{};
  const float scale = codes_around_zero(from, 16, codes);
  std::uint32_t upper = 0;
  for (std::size_t i = 0; i < block; ++i) {
    upper |= static_cast<std::uint32_t>(codes[i] >> 4U) << i;
  }
  std::memcpy(to + 2, &upper, sizeof upper);
  for (std::size_t i = 0; i < half_block; ++i) {
    to[6 + i] = static_cast<std::byte>((codes[i] & 0xfU) | (codes[i + half_block] & 0xfU) << 4U);
  }
  return write_half(scale, to);
}

/// To nearest, ties to even, of |x| < 2^22: by a sum whose last bit is 1. Larger ones wrap, as in
/// ggml.
int nearest(float x) {
  const float sum = x + 0x1.8p23F;
  std::uint32_t bits = 0;
  std::memcpy(&bits, &sum, sizeof bits);
  return static_cast<int>(bits & 0x007fffffU) - 0x00400000;
}

/// What a search for a group's scale and minimum tries: so many divisions of its range, in steps of
/// a tenth of a code from `first` on.
struct GroupSearch {
  int most;  // the largest code
  float first;
  int steps;
};
constexpr GroupSearch search_of_q4_k{15, -1.0F, 20};
constexpr GroupSearch search_of_q5_k{31, -0.5F, 15};

/// A group of 32 elements as scale * code - minimum.
struct FittedGroup {
  float scale = 0;
  float minimum = 0;  // of the elements, negated: 0 or more
  std::array<int, block> codes = {};
};

/// The scale and minimum of least weighted squares among those that the search tries, as ggml's:
/// all sums are in its order, in f32, so that the bits are the same.
class GroupFit {
 public:
  GroupFit(const float* x, const GroupSearch& search) : x_(x), search_(search) {
    float squares = 0;
    for (int i = 0; i < block; ++i) squares += x[i] * x[i];
    const float mean = std::sqrt(squares / block);
    for (std::size_t i = 0; i < block; ++i) weights_[i] = mean + std::abs(x[i]);
  }

  FittedGroup best() {
    float least = x_[0];
    float largest = x_[0];
    weight_sum_ = weights_[0];
    sum_ = weight_sum_ * x_[0];
    for (std::size_t i = 1; i < block; ++i) {
      least = std::min(least, x_[i]);
      largest = std::max(largest, x_[i]);
      weight_sum_ += weights_[i];
      sum_ += weights_[i] * x_[i];
    }
    least = std::min(least, 0.0F);
    if (largest == least) {
      return {.scale = 0, .minimum = -least};
    }
    const auto most = static_cast<float>(search_.most);
    const float inverse = most / (largest - least);
    FittedGroup found{.scale = 1 / inverse, .minimum = least};
    encode(inverse, least, found.codes);
    float error = error_of(found);
    for (int step = 0; step <= search_.steps; ++step) {
      const float divided = search_.first + 0.1F * static_cast<float>(step) + most;
      FittedGroup tried;
      encode(divided / (largest - least), least, tried.codes);
      if (fit(tried)) {
        const float own = error_of(tried);
        if (own < error) {
          error = own;
          least = tried.minimum;
          found = tried;
        }
      }
    }
    found.minimum = -found.minimum;
    return found;
  }

 private:
  void encode(float inverse, float least, std::array<int, block>& codes) const {
    for (std::size_t i = 0; i < block; ++i) {
      codes[i] = std::clamp(nearest(inverse * (x_[i] - least)), 0, search_.most);
    }
  }

  /// The scale and (not negated) minimum of least squares for these codes; false: there are none.
  bool fit(FittedGroup& group) const {
    float codes = 0;
    float squares = 0;
    float products = 0;
    for (std::size_t i = 0; i < block; ++i) {
      const auto code = static_cast<float>(group.codes[i]);
      const float weighted = weights_[i] * code;
      codes += weighted;
      squares += weighted * code;
      products += weighted * x_[i];
    }
    const float determinant = weight_sum_ * squares - codes * codes;
    if (!(determinant > 0)) {
      return false;
    }
    group.scale = (weight_sum_ * products - sum_ * codes) / determinant;
    group.minimum = (squares * sum_ - codes * products) / determinant;
    if (group.minimum > 0) {
      group.minimum = 0;
      group.scale = products / squares;
    }
    return true;
  }

  float error_of(const FittedGroup& group) const {
    float error = 0;
    for (std::size_t i = 0; i < block; ++i) {
      const float value = group.scale * static_cast<float>(group.codes[i]) + group.minimum;
      const float difference = value - x_[i];
      error += weights_[i] * (difference * difference);
    }
    return error;
  }

  const float* x_;
  GroupSearch search_;
  std::array<float, block> weights_ = {};
  float weight_sum_ = 0;
  float sum_ = 0;
};

/// The codes of 8 groups, and their scales and minima in 6 bits, in the first 16 bytes of a block.
bool encode_groups(const float* from, const GroupSearch& search,
                   std::array<int, super_block>& codes, std::byte* to) {
  std::array<FittedGroup, 8> groups;
  float largest_scale = 0;
  float largest_minimum = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    groups[i] = GroupFit(from + i * block, search).best();
    largest_scale = std::max(largest_scale, groups[i].scale);
    largest_minimum = std::max(largest_minimum, groups[i].minimum);
  }
  constexpr float most = 63;
  const float inverse_scale = largest_scale > 0 ? most / largest_scale : 0;
  const float inverse_minimum = largest_minimum > 0 ? most / largest_minimum : 0;
  const auto six_bits = [](float x) {
    return std::min<std::uint8_t>(63, static_cast<std::uint8_t>(nearest(x)));
  };
  GroupScales small;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    small.scales[i] = six_bits(inverse_scale * groups[i].scale);
    small.minima[i] = six_bits(inverse_minimum * groups[i].minimum);
  }
  small.write(to + 4);
  const bool finite = write_half(largest_scale / most, to);
  const bool all_finite = write_half(largest_minimum / most, to + 2) && finite;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const float step = half_at(to) * static_cast<float>(small.scales[i]);
    const float least = half_at(to + 2) * static_cast<float>(small.minima[i]);
    for (std::size_t j = 0; j < block; ++j) {
      const std::size_t element = i * block + j;
      codes[element] = step == 0
                           ? groups[i].codes[j]
                           : std::clamp(nearest((from[element] + least) / step), 0, search.most);
    }
  }
  return all_finite;
}

/// The lower 4 bits of two groups in the halves of a byte.
void write_nibbles(const std::array<int, super_block>& codes, std::byte* to) {
  for (std::size_t i = 0; i < super_block / 2; ++i) {
    const std::size_t first = i / block * 2 * block + i % block;
    to[i] = static_cast<std::byte>((static_cast<unsigned>(codes[first]) & 0xfU) |
                                   (static_cast<unsigned>(codes[first + block]) & 0xfU) << 4U);
  }
}

bool encode_q4_k(const float* from, std::byte* to) {
  std::array<int, super_block> codes{};
  const bool finite = encode_groups(from, search_of_q4_k, codes, to);
  write_nibbles(codes, to + 16);
  return finite;
}

bool encode_q5_k(const float* from, std::byte* to) {
  std::array<int, super_block> codes{};
  const bool finite = encode_groups(from, search_of_q5_k, codes, to);
  for (std::size_t i = 0; i < block; ++i) {
    unsigned upper = 0;
    for (std::size_t group = 0; group < 8; ++group) {
      upper |= (static_cast<unsigned>(codes[group * block + i]) >> 4U) << group;
    }
    to[16 + i] = static_cast<std::byte>(upper);
  }
  write_nibbles(codes, to + 48);
  return finite;
}

constexpr float no_scale = 1e-15F;  // smaller ones are 0
constexpr std::size_t small_group = 16;

/// The scale of 16 elements with codes from -32 to 31, of least squares among 19 that are tried; as
/// ggml's. Elements count by their squares.
float scale_of_group(const float* x, std::array<int, super_block>& codes, std::size_t begin) {
  const float extreme = extreme_of({x, small_group});
  if (std::abs(extreme) < no_scale) {
    return 0;
  }
  std::array<int, small_group> own{};
  float products = 0;
  float squares = 0;
  const auto encode = [&](float inverse) {
    products = squares = 0;
    for (std::size_t i = 0; i < small_group; ++i) {
      own[i] = std::clamp(nearest(inverse * x[i]), -32, 31);
      const auto code = static_cast<float>(own[i]);
      const float weight = x[i] * x[i];
      products += weight * x[i] * code;
      squares += weight * code * code;
    }
  };
  const auto take = [&] {
    for (std::size_t i = 0; i < small_group; ++i) codes[begin + i] = own[i] + 32;
  };
  encode(-32 / extreme);
  take();
  float scale = squares != 0 ? products / squares : 0;
  float best = scale * products;
  for (int step = -9; step <= 9; ++step) {
    if (step == 0) {
      continue;
    }
    encode(-(32 + 0.1F * static_cast<float>(step)) / extreme);
    if (squares > 0 && products * products > best * squares) {
      take();
      scale = products / squares;
      best = scale * products;
    }
  }
  return scale;
}

bool encode_q6_k(const float* from, std::byte* to) {
  std::array<int, super_block> codes{};
  std::array<float, super_block / small_group> scales{};
  for (std::size_t i = 0; i < scales.size(); ++i) {
    scales[i] = scale_of_group(from + i * small_group, codes, i * small_group);
  }
  if (!std::ranges::all_of(scales, [](float scale) { return std::isfinite(scale); })) {
    return false;  // squares that are too large
  }
  const float extreme = extreme_of(scales);
  std::fill_n(to, q6_k_scale + 2, std::byte{0});
  if (std::abs(extreme) < no_scale) {
    return true;
  }
  const float inverse = -128.0F / extreme;
  const bool finite = write_half(1 / inverse, to + q6_k_scale);
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const auto small = static_cast<std::int8_t>(std::min(127, nearest(inverse * scales[i])));
    to[q6_k_scales + i] = static_cast<std::byte>(small);
    const float step = half_at(to + q6_k_scale) * static_cast<float>(small);
    for (std::size_t j = i * small_group; j < (i + 1) * small_group && step != 0; ++j) {
      codes[j] = std::clamp(nearest(from[j] / step), -32, 31) + 32;
    }
  }
  for (std::size_t i = 0; i < super_block; ++i) {
    const CodePlace at(i);
    const auto code = static_cast<unsigned>(codes[i]);
    to[at.lower] |= static_cast<std::byte>((code & 0xfU) << at.lower_shift);
    to[at.upper] |= static_cast<std::byte>(code >> 4U << at.upper_shift);
  }
  return finite;
}

constexpr GgufStoredType types[] = {
    {0, "F32", 1, 4, DType::f32},
    {1, "F16", 1, 2, DType::f16},
    {2, "Q4_0", block, 18, DType::f32, decode_q4_0, encode_q4_0},
    {3, "Q4_1", block, 20, DType::f32, decode_q4_1},
    {6, "Q5_0", block, 22, DType::f32, decode_q5_0, encode_q5_0},
    {8, "Q8_0", block, 34, DType::f32, decode_q8_0, encode_q8_0},
    {12, "Q4_K", super_block, 144, DType::f32, decode_q4_k, encode_q4_k},
    {13, "Q5_K", super_block, 176, DType::f32, decode_q5_k, encode_q5_k},
    {14, "Q6_K", super_block, 210, DType::f32, decode_q6_k, encode_q6_k},
    {24, "I8", 1, 1, DType::i8},
    {26, "I32", 1, 4, DType::i32},
    {27, "I64", 1, 8, DType::i64},
    {28, "F64", 1, 8, DType::f64},
    {30, "BF16", 1, 2, DType::bf16},
    {39, "MXFP4", block, 17, DType::f32, decode_mxfp4}};

/// ggml's names by number, of types that are not read.
constexpr std::string_view names[] = {
    "",       "",      "",      "",       "Q4_2", "Q4_3", "",        "Q5_1",   "",        "Q8_1",
    "Q2_K",   "Q3_K",  "",      "",       "",     "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S",
    "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "",     "I16",  "",        "",       "",        "IQ1_M"};

template <class F>
const GgufStoredType* find_type(F&& fits) {
  const auto* const found = std::ranges::find_if(types, fits);
  return found == std::end(types) ? nullptr : found;
}

}  // namespace

const GgufStoredType* gguf_type(std::uint32_t number) {
  return find_type([&](const GgufStoredType& type) { return type.number == number; });
}

const GgufStoredType* gguf_type(std::string_view name) {
  return find_type([&](const GgufStoredType& type) { return type.name == name; });
}

const GgufStoredType* gguf_type(DType dtype) {
  return find_type(
      [&](const GgufStoredType& type) { return type.elements == 1 && type.dtype == dtype; });
}

std::string gguf_type_name(std::uint32_t number) {
  if (const GgufStoredType* const type = gguf_type(number); type != nullptr) {
    return std::string(type->name);
  }
  return number < std::size(names) && !names[number].empty() ? std::string(names[number])
                                                             : fmt::format("number {}", number);
}

std::string gguf_types_read() {
  std::vector<std::string_view> all;
  for (const GgufStoredType& type : types) {
    all.push_back(type.name);
  }
  return fmt::format("{}", fmt::join(all, ", "));
}

}  // namespace tessera
