// What launchers on several machines say to each other, who have the run's key.
#include <string>
#include <string_view>

#include "launcher_text.hpp"
#include "target.hpp"

namespace {

/// The first letter says what message it is; what says the version of the sender comes from here.
const fuzz::Target launcher_message{
    "launcher_message", [](std::string_view input) {
      const char kind = input.empty() ? 'm' : input.front();
      input.remove_prefix(input.empty() ? 0 : 1);
      const std::string begin = kind == 'i' || kind == 's'
                                    ? tessera::collective::launcher_message_begin(kind == 's')
                                    : std::string();
      const std::string text =
          tessera::collective::launcher_message_text(begin + std::string(input));
      fuzz::expect(text.find('\x1b') == std::string::npos,
                   "launcher message: a terminal would obey its text");
    }};

}  // namespace
