module;
#include <fmt/format.h>

#include <array>
#include <optional>
#include <string_view>
module tessera.base;

namespace tessera {
namespace {
constexpr std::array<std::string_view, dtype_count> names = {
    "f32", "f64", "bf16", "f16", "i64", "i32", "u8", "bool", "i8", "f8e4m3", "f8e5m2"};
}

std::string_view name_of(DType dtype) { return names[static_cast<std::size_t>(dtype)]; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) {
      return static_cast<DType>(i);
    }
  }
  return std::nullopt;
}

DType promote(DType a, DType b) {
  if (a == b) {
    return a;
  }
  if (is_stored_only(a) || is_stored_only(b)) {
    const DType stored = is_stored_only(a) ? a : b;
    fail({.thing = "promote",
          .wrong = fmt::format("{} and {} have no common type, as {} is only stored", name_of(a),
                               name_of(b), name_of(stored)),
          .advice = "cast it to f32 first"});
  }
  if (is_floating(a) != is_floating(b)) {
    return is_floating(a) ? a : b;
  }
  if (is_floating(a)) {
    if (a == DType::f64 || b == DType::f64) {
      return DType::f64;
    }
    return DType::f32;  // f32 with a half, or bf16 with f16
  }
  const auto rank = [](DType dtype) {
    switch (dtype) {
      case DType::boolean:
        return 0;
      case DType::u8:
        return 1;
      case DType::i32:
        return 2;
      default:
        return 3;
    }
  };
  return rank(a) > rank(b) ? a : b;
}

}  // namespace tessera
