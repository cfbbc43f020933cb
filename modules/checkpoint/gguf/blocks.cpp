#include "blocks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tessera/half.hpp>
#include <vector>

namespace tessera::checkpoint_detail {
namespace {

using kernels::Half;

constexpr int block = 32;
constexpr int half_block = block / 2;

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
  const Half stored(scale);
  std::memcpy(to, &stored.bits, sizeof stored.bits);
  return std::isfinite(static_cast<float>(stored));
}

constexpr GgufStoredType types[] = {{0, "F32", 1, 4, DType::f32},
                                    {1, "F16", 1, 2, DType::f16},
                                    {2, "Q4_0", block, 18, DType::f32, decode_q4_0},
                                    {3, "Q4_1", block, 20, DType::f32, decode_q4_1},
                                    {8, "Q8_0", block, 34, DType::f32, decode_q8_0, encode_q8_0},
                                    {24, "I8", 1, 1, DType::i8},
                                    {26, "I32", 1, 4, DType::i32},
                                    {27, "I64", 1, 8, DType::i64},
                                    {28, "F64", 1, 8, DType::f64},
                                    {30, "BF16", 1, 2, DType::bf16}};

/// ggml's names by number, of types that are not read.
constexpr std::string_view names[] = {
    "",       "",      "",      "",       "Q4_2", "Q4_3", "Q5_0",    "Q5_1",   "",        "Q8_1",
    "Q2_K",   "Q3_K",  "Q4_K",  "Q5_K",   "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S",
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

}  // namespace tessera::checkpoint_detail
