// The stored types of GGUF's tensors: plain elements, and blocks of 32 or 256 elements with their
// scales.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/dtype.hpp>

namespace tessera {

struct GgufStoredType {
  std::uint32_t number = 0;   // in the file
  std::string_view name;      // "Q8_0"
  std::int64_t elements = 1;  // of a block
  std::int64_t bytes = 0;
  DType dtype = DType::f32;  // of a block's elements: what they are decoded to
  /// From a block to its elements; null: the elements are stored as they are.
  void (*decode)(const std::byte* block, float* elements) = nullptr;
  /// Returns false where a scale is not finite. Null: nothing is written in this type.
  bool (*encode)(const float* elements, std::byte* block) = nullptr;
};

/// Null: the type is not read here.
const GgufStoredType* gguf_type(std::uint32_t number);
const GgufStoredType* gguf_type(std::string_view name);
/// The type that has plain elements of this one; null: GGUF has none.
const GgufStoredType* gguf_type(DType dtype);
/// "Q6_K", of types that are not read too, or the number.
std::string gguf_type_name(std::uint32_t number);
/// "F32, F64...": those that are read.
std::string gguf_types_read();

}  // namespace tessera
