#pragma once
#include <string>
#include <string_view>

namespace tessera::tokenize {

/// The bytes that a text in base64 (RFC 4648) stands for. Error (input) that begins with `where`:
/// it is none.
std::string from_base64(std::string_view text, const std::string& where);

}  // namespace tessera::tokenize
