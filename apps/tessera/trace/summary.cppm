export module tessera.app.trace:summary;

import tessera.app.base;
import :read;

// `tessera trace summary`: where the time of a trace went.

export namespace tessera::app {

/// Times of one rank in one call of a communicator, in microseconds. A call cannot complete
/// before the last rank of its group has issued it. From a rank's own issue until then the call is
/// in flight; what of that time the rank does not wait is hidden. The data itself is copied while a
/// rank waits, so that time is always exposed. A call in a stream is in flight from when it was
/// queued until it has ended, the copy included.
struct CallTimes {
  std::string name;  // "all_reduce"
  std::string group;
  int rank = 0;
  std::int64_t bytes = 0;
  double exposed = 0;  // issuing and waiting
  double hidden = 0;
  int last = 0;           // the rank that issued the call last
  double waited_for = 0;  // how long the rank waited for that one
};
std::vector<CallTimes> call_times(const TraceData& trace);

/// Tables: time by operator, module and collective, which rank waited for which, the share of
/// communication that was hidden, peaks of memory.
std::string trace_summary(const TraceData& trace);

}  // namespace tessera::app
