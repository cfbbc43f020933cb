export module tessera.base:file;

import :standard;

export namespace tessera {

/// Where a file or folder of this name is: the name itself, or what links say. Nothing need be
/// there. What is behind a link of /proc (a stream such as /dev/stdout) keeps that link's name.
std::string output_place(const std::string& path);

/// Whether this name is of something that text only passes through: a pipe, a device, a standard
/// stream.
bool is_stream(const std::string& path);

/// Gives the file of this name these bytes: all of them, or it stays as it was. A link leads to the
/// file that is written. A file that is there keeps its mode and its owner; a new one has the mode
/// of the umask. A stream is written as it is. Returns "", or why it cannot be written, in the
/// system's words.
std::string write_file(const std::string& path, std::string_view bytes);
/// Writes several parts, one after the other.
std::string write_file(const std::string& path, std::span<const std::string_view> parts);

}  // namespace tessera
