// Checks of texts from files.
#pragma once
#include <cstddef>
#include <string_view>

namespace tessera::data {

/// The first byte that is not a part of UTF-8; npos where there is none.
std::size_t invalid_utf8(std::string_view text);

}  // namespace tessera::data
