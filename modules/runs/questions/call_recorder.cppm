export module tessera.runs:call_recorder;

import tessera.base;
import tessera.tensor;
import tessera.nn;

// The calls of operators of a step, with what tells whether two values are equal, in files.

export namespace tessera::runs {

/// Which calls of a step are recorded, and of which values.
enum class RecordedView : std::uint8_t {
  executed,  // what each rank executes, with its own values: for runs of one layout
  written,   // the operators of the program, with global values: for runs of several layouts
};
/// "executed", "written".
std::string_view name_of(RecordedView view);
/// Error (input): there is no such view.
RecordedView recorded_view(const std::string& name);

/// A call of a recording, by its number in the file of its rank.
struct CallPlace {
  int rank = 0;
  std::int64_t number = 0;
};

/// What is recorded of steps that are computed again.
struct RecordingRequest {
  std::string folder = {};  // that gets the files; it is there
  std::int64_t first = 0;   // the first step that is recorded, from 1; 0: only that of the replay
  RecordedView view = RecordedView::executed;
  std::optional<CallPlace> values = {};  // the call whose tensors are stored whole, besides
  bool captured = false;                 // by a captured program, which makes the same calls
};

/// The file of a rank in a folder of a recording.
std::string recording_file(const std::string& folder, int rank);
/// That of the tensors that are stored whole, and that of the rows of the steps.
std::string values_file(const std::string& folder);
std::string rows_file(const std::string& folder);

/// Sums by which two tensors are compared that are not both there: element i is added to or
/// subtracted from one of these numbers, by a hash of i (a count sketch). The squares of the
/// differences of two sketches are, in the mean, the square of the distance of the tensors.
inline constexpr std::size_t sketch_size = 64;

/// Records the calls of this thread's steps while it exists, and changes nothing of them. Bounded:
/// it keeps a line of text for each call, not its tensors. Each call's line has its phase, its
/// module, the operator with its arguments, and of each operand and result the type, the shape, the
/// hash of the bytes, the norm and the sketch. Operands are looked at before the call. What a
/// collective has not yet completed is looked at when it is.
class CallRecorder {
 public:
  /// Error: the file cannot be written.
  CallRecorder(const RecordingRequest& request, nn::Module& model);
  ~CallRecorder();
  CallRecorder(const CallRecorder&) = delete;
  CallRecorder& operator=(const CallRecorder&) = delete;
  /// The calls from here on are those of a step. Writes the parameters as its first calls. 0: calls
  /// from here on are of none, and are not recorded.
  void begin_step(std::int64_t step);
  /// Error: what was recorded has not arrived in the file.
  void finish();

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace tessera::runs
