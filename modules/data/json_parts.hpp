// The parts of a JSON text as they are written, so that numbers keep their digits.
#pragma once
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <utility>
#include <vector>

namespace tessera::data {

/// What a record may have.
inline constexpr JsonLimits record_limits{
    .bytes = std::size_t{1} << 26, .values = 1'000'000, .depth = 64};

/// The members of an object in their order. The text must be valid.
std::vector<std::pair<std::string, std::string_view>> members_as_written(std::string_view object);
/// The elements of a list. The text must be valid.
std::vector<std::string_view> elements_as_written(std::string_view list);
/// Whether two values are equal, whole numbers of any size included. The texts must be valid.
bool same_value(std::string_view a, std::string_view b);

}  // namespace tessera::data
