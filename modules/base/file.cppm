export module tessera.base:file;

import :standard;

export namespace tessera {

/// Replaces a file by these bytes. Returns "", or why it cannot be written, in the system's words.
std::string write_file(const std::string& path, std::string_view bytes);

}  // namespace tessera
