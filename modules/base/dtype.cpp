module;
#include <fmt/format.h>

#include <optional>
#include <string_view>
module tessera.base;

namespace tessera {

std::string_view name_of(DType dtype) { return facts_of(dtype).name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (int i = 0; i < dtype_count; ++i) {
    if (const auto dtype = static_cast<DType>(i); name_of(dtype) == name) {
      return dtype;
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
  const auto width = [](DType dtype) { return dtype == DType::boolean ? 0 : size_of(dtype); };
  return width(a) > width(b) ? a : b;
}

}  // namespace tessera
