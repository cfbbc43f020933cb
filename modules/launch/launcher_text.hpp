// What launchers say to each other, for those who look at it from outside.
#pragma once
#include <string>
#include <string_view>

namespace tessera::collective {

/// An introduction of a machine or of a spare one, or the first error of a machine, as lines that
/// can be shown. Error (input): it is none of these.
std::string launcher_message_text(std::string_view message);

/// How introductions of this version begin.
std::string launcher_message_begin(bool of_spare);

}  // namespace tessera::collective
