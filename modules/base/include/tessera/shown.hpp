// Text from outside, of a config, a command line or a file, as an error shows it.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace tessera {

/// The text itself, or where it is longer than `most` bytes its beginning and its end with "..."
/// between them and its length behind: an error stays readable whatever it names. Not cut within a
/// character of UTF-8.
std::string shown(std::string_view text, std::size_t most = 120);

/// The text as a terminal may get it. Control characters but for line ends and tabs, those that
/// change the direction of a text, and bytes that are not UTF-8 are written as "\x1b" or "\u202e".
std::string terminal_text(std::string_view text);
/// The same in one line, with ends of lines and tabs written too, cut as by shown(): a name or a
/// word of another machine.
std::string terminal_line(std::string_view text, std::size_t most = 120);

/// The text as one word of a shell's command, in single quotes where it needs them.
std::string shell_word(std::string_view text);

}  // namespace tessera
