export module tessera.runs:recorder;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;

// Records the calls of one rank during some steps, with times.

export namespace tessera::runs {

/// A tensor of a recorded call: its type, its shape and, of a distributed one, its layout.
struct TracedTensor {
  DType dtype = DType::f32;
  Dims shape = {};
  SpecHandle spec = {};
};

/// Something that has a begin and an end on the thread of its rank. Slices nest.
struct TraceSlice {
  std::string_view category;  // "operator", "local operator", "module", "phase", "wait", ...
  std::string name;
  std::int64_t begin =
      0;                 // nanoseconds of the steady clock, which the processes of a machine share
  std::int64_t end = 0;  // 0: an error left it
  const std::string* module = nullptr;
  bool backward = false;
  std::vector<TracedTensor> in = {};
  std::vector<TracedTensor> out = {};
  // For the communicators' calls.
  bool collective = false;
  std::int64_t bytes = 0;
  std::vector<int> ranks = {};
  std::string group = {};
  std::uint64_t sequence = 0;
};

/// Bytes in use by category, from a time on.
struct TraceMemory {
  std::int64_t at = 0;
  std::array<std::int64_t, memory_category_count> bytes = {};
};

/// A call of a communicator from its issue until it was complete.
struct TraceSpan {
  std::size_t issue = 0;  // its slice
  std::int64_t end = 0;
};

/// A call of a communicator that ran in a stream.
struct StreamedCall {
  TraceSlice slice = {};  // in the stream
  std::int64_t queued = 0;
};

/// What one rank has recorded.
struct RankTrace {
  std::vector<TraceSlice> slices;  // of the rank's thread, by begin
  std::vector<StreamedCall> streamed;
  std::vector<TraceSpan> spans;
  std::vector<TraceMemory> memory;
};

/// While one exists, what the calling thread does is recorded: by a mode above and one below
/// distribution, and by an observer of the communicators.
class TraceRecorder {
 public:
  TraceRecorder();
  ~TraceRecorder();
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  /// Ends the recording, and returns what there is.
  RankTrace finish();

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace tessera::runs
