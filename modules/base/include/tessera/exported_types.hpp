// Numbers of element types in programs of torch.export (ScalarType of its schema).
#pragma once
#include <cstdint>
#include <optional>

#include "tessera/dtype.hpp"

namespace tessera {

/// The type of such a number; none: there is no such type here (complex numbers, int16).
constexpr std::optional<DType> exported_dtype(std::int64_t number) {
  switch (number) {
    case 1:
      return DType::u8;
    case 2:
      return DType::i8;
    case 4:
      return DType::i32;
    case 5:
      return DType::i64;
    case 6:
      return DType::f16;
    case 7:
      return DType::f32;
    case 8:
      return DType::f64;
    case 12:
      return DType::boolean;
    case 13:
      return DType::bf16;
    case 29:
      return DType::f8e4m3;
    case 30:
      return DType::f8e5m2;
    default:
      return std::nullopt;
  }
}

}  // namespace tessera
