// Files that a command writes where the user says.
#pragma once
#include <string>

namespace tessera::app {

/// Replaces the file. Error (input) that begins with `thing`: it cannot be written.
void write_output(const std::string& thing, const std::string& path, const std::string& text);

/// Writes a file of an export: the text and a line end. Error: it cannot be written.
void write_text(const std::string& path, const std::string& text);

}  // namespace tessera::app
