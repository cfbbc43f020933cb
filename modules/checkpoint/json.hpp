// JSON that others may have written: parsed without surprises.
#pragma once
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoint_detail {

struct ParsedJson {
  nlohmann::json value;
  std::string problem;  // empty: the text is an object in which no name stands twice
};

inline ParsedJson parse_object(std::string_view text) {
  ParsedJson result;
  std::vector<std::set<std::string>> names;  // of the objects that are open
  const auto look = [&](int, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    if (event == nlohmann::json::parse_event_t::object_start) {
      names.emplace_back();
    } else if (event == nlohmann::json::parse_event_t::object_end) {
      names.pop_back();
    } else if (event == nlohmann::json::parse_event_t::key) {
      const auto name = value.get<std::string>();
      if (!names.back().insert(name).second && result.problem.empty()) {
        result.problem = "the name '" + name + "' stands twice";
      }
    }
    return true;
  };
  try {
    result.value = nlohmann::json::parse(text.begin(), text.end(), look);
    if (!result.value.is_object() && result.problem.empty()) {
      result.problem = "it is not a JSON object";
    }
  } catch (const nlohmann::json::parse_error& error) {
    result.problem = "it is not JSON in UTF-8, see byte " + std::to_string(error.byte);
  } catch (const nlohmann::json::exception&) {  // a number beyond every type's range
    result.problem = "it is not JSON that can be held: a number is out of range";
  }
  return result;
}

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
