// Text files that a user or a model's folder names: read within a stated size, so that no file
// fills the memory.
#pragma once
#include <cstddef>
#include <istream>
#include <string>

namespace tessera {

/// The bytes of a file, or of what a pipe gives up to its end. Error (input): it cannot be read, is
/// a folder, or has more than `most` bytes; `what` names it there ("the config").
std::string input_text(const std::string& path, std::size_t most = std::size_t{1} << 28,
                       const std::string& what = "it");

/// The next line without its end; false: there is none, or it cannot be read. Error (input), with
/// the file's name: it has more than `most` bytes.
bool next_line(std::istream& stream, const std::string& path, std::string& line,
               std::size_t most = std::size_t{32} << 20);

}  // namespace tessera
