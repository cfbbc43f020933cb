// Mapped ranges whose file may become shorter while they are read.
module tessera.checkpoint:mapping;

import tessera.base;

namespace tessera::checkpoint_detail {

/// A mapped range of a file. Reading a page that the file no longer has raises SIGBUS, which kills
/// the process; the handler of this module puts pages of zeros in the place of the lost ones and
/// notes the loss. Reading by position (pread) has no such signal, but is four times slower where
/// only some columns of a matrix are read, and every loaded byte would be copied once more.
class WatchedRange {
 public:
  /// Installs the handler at first use. Signals for other addresses go to the handler that was
  /// there before, or end the process as without this module.
  WatchedRange(const void* begin, std::size_t bytes);
  ~WatchedRange();
  WatchedRange(const WatchedRange&) = delete;
  WatchedRange& operator=(const WatchedRange&) = delete;

  /// Whether a page could not be read since the range was made. What was read of it is zeros.
  bool lost() const;

 private:
  struct Entry;
  friend struct BusErrorHandler;
  Entry* entry_;
};

}  // namespace tessera::checkpoint_detail
