export module tessera.sinks:event;

import tessera.base;

export namespace tessera::sinks {

/// Numbers by the names that the metrics file has for them. A member of an object there has both
/// names: "memory_peaks/total".
using NamedNumbers = std::vector<std::pair<std::string, double>>;

/// The record of a run, which is the first event.
struct RunStart {
  std::string run = {};      // identity: a run that is continued has it again
  std::string name = {};     // for people: that of its config
  std::string version = {};  // of Tessera
  std::string host = {};
  std::string config = "{}";  // all keys, a JSON object of objects and lists
  std::int64_t ranks = 1;
  std::int64_t steps = 0;  // of the whole run
  std::int64_t done = 0;   // after which it begins here
  bool continues = false;  // sinks may know the run already
};

/// Numbers of a step. Steps are counted from 1.
struct StepNumbers {
  std::int64_t step = 0;
  NamedNumbers numbers = {};
};

/// A phase, which ends at the event's time.
struct PhaseSpan {
  std::string name = {};  // "setup", "step", "validation", "save"
  std::int64_t step = 0;  // of which it is a part; 0: of none
  double seconds = 0;
};

/// A line that the run has logged, or a note on its terminal.
struct LogLine {
  LogLevel level = LogLevel::info;
  std::string text = {};
};

/// How a run has ended.
enum class Outcome : std::uint8_t {
  done,
  interrupted,  // by a request
  failed,
};

/// The last event.
struct RunEnd {
  Outcome outcome = Outcome::done;
  std::int64_t step = 0;  // the last one
  std::string text = {};  // of the error
};

/// What an event may be.
using EventContent = std::variant<RunStart, StepNumbers, PhaseSpan, LogLine, RunEnd>;

/// What a run tells.
struct Event {
  double time = 0;  // seconds since 1970, UTC
  EventContent content = {};
};

/// Seconds since 1970.
double time_now();

/// "info", ...
std::string_view word_of(LogLevel level);
/// "done", ...
std::string_view word_of(Outcome outcome);

/// One line of JSON without its end (docs/sinks.md has the members); NaN and infinities are null.
std::string to_json(const Event& event);

/// About the memory that it takes.
std::size_t bytes_of(const Event& event);

}  // namespace tessera::sinks
