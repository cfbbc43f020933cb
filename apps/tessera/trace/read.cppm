export module tessera.app.trace:read;

import tessera.app.base;

// Reads a trace file back.

export namespace tessera::app {

/// A slice of a trace file. Times are in microseconds.
struct FileSlice {
  std::string category;
  std::string name;
  double begin = 0;
  double end = 0;
  double own = 0;           // without the slices within it
  bool within = false;      // the local operator that carries out an operator of the same name
  std::string module = {};  // empty: outside of modules
  bool backward = false;
  // For the communicators' calls.
  bool collective = false;
  std::int64_t bytes = 0;
  std::string group = {};  // the ranks, and the group's name
  std::int64_t call = 0;
  double queued = 0;  // of a call in a stream: when the rank's thread has queued it

  /// Whether the rank waits: for a message of another rank, or for anything else.
  bool waits_for_message() const;
  bool waits() const;
};

struct TraceData {
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  std::string mesh;
  std::vector<std::vector<FileSlice>> ranks;      // of each rank's thread, by begin
  std::vector<std::vector<FileSlice>> streamed;   // of each rank's streams
  std::vector<std::vector<double>> memory_peaks;  // of each rank, by category
  std::vector<std::string> categories;            // of memory
};

/// Errors (input): the file cannot be read, is not a trace of `tessera train`, or is cut off or
/// damaged; the text says where.
TraceData read_trace(const std::string& file);

}  // namespace tessera::app
