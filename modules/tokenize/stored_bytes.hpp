#pragma once
#include <string>
#include <string_view>

namespace tessera::tokenize {

/// The bytes that a text in base64 stands for. Error (input) that begins with `where`: it is none.
std::string bytes_in_base64(std::string_view text, const std::string& where);

}  // namespace tessera::tokenize
