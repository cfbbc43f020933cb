// The files of data.text.
#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace tessera::app {

/// Expands names of files, folders (all regular files below them, sorted by path, without hidden
/// and empty ones) and shell patterns. A file that is named twice is used once, at its first place.
/// Throws one Error (input) that lists every name without a file and every file that is empty or
/// not text.
std::vector<std::filesystem::path> find_text_files(std::span<const std::string> names);

}  // namespace tessera::app
