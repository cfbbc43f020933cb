// Numbers and shapes in JSON that others may have written.
#pragma once
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "tessera/json.hpp"

namespace tessera::checkpoint_detail {

/// A whole number of at least 0 that fits; nothing for anything else.
inline std::optional<std::int64_t> natural(const nlohmann::json& value) {
  if (!value.is_number_unsigned()) {
    return std::nullopt;
  }
  const auto number = value.get<std::uint64_t>();
  if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(number);
}

/// A list of such numbers, at most `most`.
inline std::optional<std::vector<std::int64_t>> naturals(const nlohmann::json& value,
                                                         std::size_t most) {
  if (!value.is_array() || value.size() > most) {
    return std::nullopt;
  }
  std::vector<std::int64_t> numbers;
  for (const nlohmann::json& entry : value) {
    const auto number = natural(entry);
    if (!number) {
      return std::nullopt;
    }
    numbers.push_back(*number);
  }
  return numbers;
}

/// The bytes of a tensor; nothing when they do not fit into 63 bits.
inline std::optional<std::int64_t> byte_count(const std::vector<std::int64_t>& shape,
                                              std::size_t element) {
  auto bytes = static_cast<std::int64_t>(element);
  bool empty = false;
  for (const std::int64_t extent : shape) {
    empty = empty || extent == 0;
    if (extent != 0 && __builtin_mul_overflow(bytes, extent, &bytes)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : bytes;
}

}  // namespace tessera::checkpoint_detail
