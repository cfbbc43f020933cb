export module tessera.runs:call_difference;

import tessera.base;
import :call_recorder;

// Two recordings of a step, compared.

export namespace tessera::runs {

/// What a recording has of an operand or a result.
struct RecordedTensor {
  std::string type = {};  // empty: it is absent
  std::vector<std::int64_t> shape = {};
  std::string parameter = {};  // whose memory it is
  std::string hash = {};       // empty: its values were not looked at
  double norm = 0;
  double largest = 0;
  std::int64_t odd = 0;  // elements that are not finite
  std::vector<float> sketch = {};
  bool has_values() const { return !hash.empty(); }
};

/// A call of a recording.
struct RecordedCall {
  CallPlace place = {};
  std::int64_t step = 0;
  std::string phase = {};  // "start" (a parameter before the step), "forward", "backward", ...
  std::string module = {};
  std::string op = {};
  std::string arguments = {};
  std::int64_t turn = 0;  // among the calls of this operator, module, phase and step, from 0
  bool communicates = false;
  std::vector<RecordedTensor> in = {};
  std::vector<RecordedTensor> out = {};
};

/// The distance of two tensors of one shape by their sketches, divided by the larger norm: an
/// estimate that is seldom wrong by more than a half. 0 where the bits are equal; infinite where
/// one has more elements that are not finite.
double distance_of(const RecordedTensor& a, const RecordedTensor& b);

/// The first call whose results differ.
struct CallDifference {
  RecordedCall first = {};
  RecordedCall second = {};
  std::vector<std::size_t> results = {};   // those that differ
  std::vector<std::size_t> operands = {};  // those whose bits differ
  double distance = 0;                     // of the result that differs most; see distance_of
  double before = 0;                       // of the operand that differs most
  bool other_arguments = false;
  /// Nothing that the operator read differs more than the tolerance allows.
  bool begins_here = false;
  /// Calls just before it that only one of both has: "second: gelu in model.layers.0.mlp".
  std::vector<std::string> unmatched = {};
};

/// A row of the data that is not the same.
struct RowDifference {
  std::int64_t step = 0;
  std::int64_t row = 0;
  std::string first = {};  // its place: "a.jsonl:17"
  std::string second = {};
};

/// What came of comparing two recordings.
struct RecordingComparison {
  std::optional<RowDifference> row = {};
  std::optional<CallDifference> call = {};  // none: nothing differs
  std::int64_t compared = 0;                // calls that both have, up to the first difference
  std::int64_t other_shapes = 0;            // of them, results that cannot be compared
  std::int64_t only_first = 0;
  std::int64_t only_second = 0;
};

/// Compares the recordings of two folders, call by call in the first one's order. Calls of the two
/// belong together that have the same step, phase, module and operator and are in the same turn
/// among such calls. Of recordings as executed each rank is compared with the same rank, and the
/// earliest difference of all ranks is told; one whose operands are equal goes first.
/// `tolerance`: results differ whose distance is more; 0: whose bits differ. Errors (input): a file
/// is missing, is not a recording, or is too large (20 million calls of a rank).
RecordingComparison compare_recordings(const std::string& first, const std::string& second,
                                       double tolerance);

/// An element that differs in a call whose tensors both recordings have stored whole.
struct ElementDifference {
  bool is_result = true;  // else an operand
  std::size_t tensor = 0;
  std::vector<std::int64_t> place = {};  // of the element that differs most
  double first = 0;
  double second = 0;
  std::int64_t differing = 0;  // elements whose bits differ
  std::int64_t elements = 0;
  std::string problem = {};  // other shapes or types
};

/// The difference of each operand and result that has one, operands first.
/// Errors (input): a file is missing or damaged.
std::vector<ElementDifference> compare_values(const std::string& first, const std::string& second);

}  // namespace tessera::runs
