#pragma once
// The element types, for modules and for plain sources (kernels) alike.

#include <cstddef>
#include <cstdint>

namespace tessera {

/// The element types. Names and meaning are the field's: bf16 is the upper half of an f32. A bool
/// element is one byte that contains 0 or 1. f8e4m3 is the variant without infinities (torch's
/// float8_e4m3fn). The numbers are stored and sent: a new type comes last.
enum class DType : std::uint8_t { f32, f64, bf16, f16, i64, i32, u8, boolean, i8, f8e4m3, f8e5m2 };

/// All that differs between element types but the code of kernels (visit_dtype.hpp).
struct DTypeFacts {
  const char* name;         // in texts, configs and stored programs
  const char* safetensors;  // in safetensors files
  const char* element;      // the C++ type of an element, in generated code
  std::uint8_t bytes;       // of an element
  bool floating;
  /// Whether elements are only stored, moved and converted. Only operators that declare
  /// Op::moves_elements take them.
  bool stored_only;
  /// The bits that are all set in a value that is not finite; 0: all values are finite.
  std::uint64_t not_finite;
};

/// In the order of DType. A new type has a row here, its C++ type in visit_dtype.hpp, its storage
/// in PyTorch's files (torch_types.cppm) and its cases on GPUs (plugins/cuda/kernels/memory.hpp);
/// the compiler names those that are missing.
inline constexpr DTypeFacts dtype_facts[] = {
    {"f32", "F32", "float", 4, true, false, 0x7f80'0000U},
    {"f64", "F64", "double", 8, true, false, 0x7ff0'0000'0000'0000U},
    {"bf16", "BF16", "BFloat16", 2, true, false, 0x7f80U},
    {"f16", "F16", "Half", 2, true, false, 0x7c00U},
    {"i64", "I64", "std::int64_t", 8, false, false, 0},
    {"i32", "I32", "std::int32_t", 4, false, false, 0},
    {"u8", "U8", "std::uint8_t", 1, false, false, 0},
    {"bool", "BOOL", "bool", 1, false, false, 0},
    {"i8", "I8", "std::int8_t", 1, false, true, 0},
    {"f8e4m3", "F8_E4M3", "Float8E4M3", 1, true, true, 0x7fU},  // no infinities
    {"f8e5m2", "F8_E5M2", "Float8E5M2", 1, true, true, 0x7cU}};
inline constexpr int dtype_count = sizeof(dtype_facts) / sizeof(dtype_facts[0]);

constexpr const DTypeFacts& facts_of(DType dtype) { return dtype_facts[static_cast<int>(dtype)]; }

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) { return facts_of(dtype).bytes; }

constexpr bool is_floating(DType dtype) { return facts_of(dtype).floating; }

constexpr bool is_stored_only(DType dtype) { return facts_of(dtype).stored_only; }

}  // namespace tessera
