export module tessera.runs:run_record;

import tessera.base;
import :ledger;
import :spec;

// What a run says of itself: a text in each of its checkpoints, and a file in each of its exports.

export namespace tessera::runs {

/// A plugin that a run has loaded.
struct RecordedPlugin {
  std::string name;
  std::string version;
  std::string hash;  // of its library
};

/// A start of a run, and what it did until its last checkpoint.
struct Session {
  std::int64_t from = 0;                  // steps that were done when it began
  std::int64_t to = 0;                    // at its last checkpoint
  std::string begun = {};                 // UTC, "2026-12-01T03:50:12.345Z"
  std::string saved = {};                 // of its last checkpoint
  std::vector<std::string> command = {};  // empty: a program of its own
  std::string version = {};               // of Tessera
  std::string program = {};               // the hash of the program and of Tessera's library
  std::vector<RecordedPlugin> plugins = {};
  std::string system = {};     // "Linux x86_64"
  std::string processor = {};  // its model's name
  std::int64_t cores = 0;      // that the ranks of machine 0 may use
  std::int64_t machines = 1;
  std::string mesh = {};     // "mesh(shard=2)"
  std::string device = {};   // "cpu"
  std::int64_t threads = 0;  // of a rank
  /// The description by which its steps were taken, without outputs; and the values that determine
  /// the curve, with the hashes of data, tokenizer and starting weights.
  JsonText config = {};
  JsonText fingerprint = {};
  TimeBook ledger = {};  // of rank 0, until its last checkpoint
};

/// The numbers of a step; NaN where one is not finite.
struct CurvePoint {
  std::int64_t step = 0;  // from 1
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  std::optional<double> validation_loss = {};
};

/// The record of a run.
struct RunRecord {
  std::vector<Session> sessions = {};  // in their order
  std::int64_t left_out = 0;           // sessions between the first and the second that is kept
  std::vector<CurvePoint> curve = {};  // by steps; see thin_curve

  /// Steps that are done; 0: it has no session.
  std::int64_t step() const { return sessions.empty() ? 0 : sessions.back().to; }
};

/// At most so many sessions are kept, the first and the last ones; and so many points of steps, and
/// of validated steps.
constexpr std::size_t most_sessions = 32;
constexpr std::size_t most_points = 400;

/// The name of the text in checkpoints, and of the file in exports.
inline constexpr const char* record_text = "record";
inline constexpr const char* record_file = "record.json";

/// Leaves the last point, those of the steps that are multiples of the smallest power of two by
/// which they are at most most_points, and likewise of the validated steps.
void thin_curve(std::vector<CurvePoint>& curve);
/// Leaves most_sessions.
void limit_sessions(RunRecord& record);

/// As a JSON object. A session whose config or fingerprint is that of the next one does not repeat
/// it.
std::string to_json(const RunRecord& record);

/// A record from outside.
struct ReadRecord {
  RunRecord record = {};
  std::string problem = {};  // empty: it is whole; the text fits after "FILE: its record: "
};
/// Of a text that anybody may have written: bounded in size, members that are not known are a
/// problem, as are sessions and points that do not follow each other. Empty where it has one.
ReadRecord read_record(const std::string& json);

/// A description without outputs (log, sinks, trace, the folder of checkpoints), for people
/// elsewhere: paths below the working directory are relative, those below the home folder begin
/// with "~/".
std::string public_config(const RunSpec& spec);
/// A command without what its words set of outputs: "sinks=...". Paths as above.
std::vector<std::string> public_command(const std::vector<std::string>& words);
/// The same of one path.
std::string public_path(const std::string& path);
/// A path that begins with "~/" as one of this user; others as they are.
std::string own_path(const std::string& path);

}  // namespace tessera::runs
