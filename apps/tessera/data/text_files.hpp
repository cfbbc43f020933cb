// Which files data.text means.
#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace tessera::app {

/// The files behind names of files, folders (all regular files below, sorted by path, without
/// hidden and empty ones) and shell patterns. A file that is reached twice is taken once, where it
/// came first. Throws one Error (input) that lists every name that leads to nothing and every file
/// that is empty or no text.
std::vector<std::filesystem::path> find_text_files(std::span<const std::string> names);

}  // namespace tessera::app
