#pragma once
// The element types, for modules and for plain sources (kernels) alike.

#include <cstddef>
#include <cstdint>

namespace tessera {

/// The element types. Names and meaning are the field's: bf16 is the upper half of an f32. A bool
/// element is one byte that contains 0 or 1. f8e4m3 is the variant without infinities (torch's
/// float8_e4m3fn). The numbers are stored and sent: a new type comes last.
enum class DType : std::uint8_t { f32, f64, bf16, f16, i64, i32, u8, boolean, i8, f8e4m3, f8e5m2 };

enum class DTypeClass : std::uint8_t { floating, signed_integer, unsigned_integer, boolean };

/// All that differs between element types but the code of kernels, which follows from the C++ type
/// (element_types.hpp).
struct DTypeFacts {
  const char* name;           // in texts, configs and stored programs
  const char* safetensors;    // in safetensors files
  const char* torch;          // in PyTorch's files, as a pickle names it
  const char* torch_storage;  // the storage there
  const char* element;        // the C++ type of an element, in generated code
  std::uint8_t bytes;         // of an element
  DTypeClass kind;
  /// Whether elements are only stored, moved and converted. Only operators that declare
  /// Op::moves_elements take them.
  bool stored_only;
  /// The type in which sums over ranks of devices are formed.
  DType sums;
  /// The bits that are all set in a value that is not finite; 0: all values are finite.
  std::uint64_t not_finite;
};

/// Storage in PyTorch's files of types that are newer than typed storages.
inline constexpr const char* torch_untyped_storage = "torch.storage UntypedStorage";

/// In the order of DType. A new type has a row here and its C++ type in element_types.hpp.
inline constexpr DTypeFacts dtype_facts[] = {
    {"f32", "F32", "torch float32", "torch FloatStorage", "float", 4, DTypeClass::floating, false,
     DType::f32, 0x7f80'0000U},
    {"f64", "F64", "torch float64", "torch DoubleStorage", "double", 8, DTypeClass::floating, false,
     DType::f64, 0x7ff0'0000'0000'0000U},
    {"bf16", "BF16", "torch bfloat16", "torch BFloat16Storage", "BFloat16", 2, DTypeClass::floating,
     false, DType::f32, 0x7f80U},
    {"f16", "F16", "torch float16", "torch HalfStorage", "Half", 2, DTypeClass::floating, false,
     DType::f32, 0x7c00U},
    {"i64", "I64", "torch int64", "torch LongStorage", "std::int64_t", 8,
     DTypeClass::signed_integer, false, DType::i64, 0},
    {"i32", "I32", "torch int32", "torch IntStorage", "std::int32_t", 4, DTypeClass::signed_integer,
     false, DType::i64, 0},
    {"u8", "U8", "torch uint8", "torch ByteStorage", "std::uint8_t", 1,
     DTypeClass::unsigned_integer, false, DType::i64, 0},
    {"bool", "BOOL", "torch bool", "torch BoolStorage", "bool", 1, DTypeClass::boolean, false,
     DType::boolean, 0},
    {"i8", "I8", "torch int8", "torch CharStorage", "std::int8_t", 1, DTypeClass::signed_integer,
     true, DType::i64, 0},
    {"f8e4m3", "F8_E4M3", "torch float8_e4m3fn", torch_untyped_storage, "Float8E4M3", 1,
     DTypeClass::floating, true, DType::f32, 0x7fU},  // no infinities
    {"f8e5m2", "F8_E5M2", "torch float8_e5m2", torch_untyped_storage, "Float8E5M2", 1,
     DTypeClass::floating, true, DType::f32, 0x7cU}};
inline constexpr int dtype_count = sizeof(dtype_facts) / sizeof(dtype_facts[0]);

constexpr const DTypeFacts& facts_of(DType dtype) { return dtype_facts[static_cast<int>(dtype)]; }

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) { return facts_of(dtype).bytes; }

constexpr bool is_floating(DType dtype) { return facts_of(dtype).kind == DTypeClass::floating; }

/// The integer all of whose bits are 1, as its type holds it; true for bool.
constexpr double all_bits(DType dtype) {
  switch (facts_of(dtype).kind) {
    case DTypeClass::boolean:
      return 1;
    case DTypeClass::unsigned_integer:
      return static_cast<double>(~std::uint64_t{0} >> (64 - 8 * size_of(dtype)));
    default:
      return -1;
  }
}

constexpr bool is_stored_only(DType dtype) { return facts_of(dtype).stored_only; }

}  // namespace tessera
