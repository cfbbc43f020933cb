// Bytes as text (RFC 4648), with the padding.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

std::string to_base64(std::string_view bytes);
/// None: the text is not base64.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace tessera
