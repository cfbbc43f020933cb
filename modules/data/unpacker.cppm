export module tessera.data:unpacker;

import tessera.base;

// The content of compressed files, from their beginning on.

export namespace tessera::data {

/// How a file is compressed.
enum class Compression : std::uint8_t { none, gzip, zstd };

/// By the end of the file's name: ".gz", ".zst".
Compression compression_of(std::string_view path);

/// The first bytes of what is in a file, at most `most`; of a file whose name ends in ".gz" or
/// ".zst", of what is compressed there. Errors (input): it cannot be read; those of Unpacker.
std::string first_bytes(const std::string& path, std::size_t most);

/// Gives the content of a compressed file piece by piece: gzip with all its members, zstd with all
/// its frames.
class Unpacker {
 public:
  /// Error (input): the file cannot be read.
  Unpacker(std::string path, Compression compression);
  Unpacker(const Unpacker&) = delete;
  Unpacker& operator=(const Unpacker&) = delete;
  ~Unpacker();

  /// Fills `out` from its beginning on; returns how many bytes there were: fewer than `out` has
  /// only at the end. Errors (input) with the file: it is not compressed so; it ends too early, or
  /// has other bytes behind its end; a checksum is wrong; it needs a dictionary, or a window of
  /// more than 128 MiB.
  std::size_t read(std::span<std::byte> out);
  /// Bytes of the file that were read.
  std::size_t packed() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::data
