// Bytes of a file in memory, however they came there.
module tessera.checkpoint:file_bytes;

import tessera.base;

namespace tessera::checkpoint_detail {

/// Bytes that are read where they are, and checked afterwards.
class FileBytes {
 public:
  virtual ~FileBytes();
  virtual std::span<const std::byte> bytes() const = 0;
  /// Error (input) that names the file: what was read since the object was made was not there.
  virtual void check_intact() const = 0;
  /// Pages that these bytes fill may leave this process' memory; they come again when they are
  /// read.
  virtual void drop(std::span<const std::byte> bytes) const = 0;
};

}  // namespace tessera::checkpoint_detail
