// Who is told of the lines that this process logs, besides its terminal.
#pragma once
#include <functional>
#include <memory>
#include <string_view>

namespace tessera {

struct LogEntry {
  int level = 0;  // the number of its LogLevel, which a header cannot name
  std::string_view text = {};
};

/// While it lives, `told` gets every line that log() writes, without the rank in front. It is
/// called by the threads that log, several at a time, and may log itself. A call that has begun may
/// end after the listener: `told` owns what it uses. It must not throw.
class LogListener {
 public:
  using Told = std::function<void(const LogEntry& line)>;
  explicit LogListener(Told told);
  LogListener(const LogListener&) = delete;
  LogListener& operator=(const LogListener&) = delete;
  ~LogListener();

 private:
  std::shared_ptr<const Told> told_;
};

/// What log() calls.
void tell_log_listeners(const LogEntry& line);

}  // namespace tessera
