// Which signals the threads of a process block, and which have a handler: see proc_pid_status(5).
#pragma once
#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

namespace tessera::testing {

/// Bit n - 1 is signal n.
struct ThreadSignals {
  std::string name;
  bool ended = false;  // the system still lists it, without its handlers
  std::uint64_t blocked = 0;
  std::uint64_t ignored = 0;
  std::uint64_t handled = 0;
};

inline std::uint64_t bits_of(std::initializer_list<int> signals) {
  std::uint64_t bits = 0;
  for (const int signal : signals) {
    bits |= std::uint64_t{1} << (signal - 1);
  }
  return bits;
}

inline ThreadSignals read_thread_signals(const std::filesystem::path& status) {
  ThreadSignals found;
  std::ifstream file(status);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    if (key == "Name:") {
      words >> found.name;
    } else if (key == "State:") {
      std::string state;
      words >> state;
      found.ended = state == "X" || state == "Z";
    }
    for (const auto& [name, bits] :
         {std::pair("SigBlk:", &found.blocked), std::pair("SigIgn:", &found.ignored),
          std::pair("SigCgt:", &found.handled)}) {
      if (key == name) {
        words >> std::hex >> *bits;
      }
    }
  }
  return found;
}

/// The threads that a process has at the moment.
inline std::vector<ThreadSignals> thread_signals(pid_t process) {
  std::vector<ThreadSignals> threads;
  std::error_code gone;
  const std::filesystem::path tasks = "/proc/" + std::to_string(process) + "/task";
  for (std::filesystem::directory_iterator at(tasks, gone), end; !gone && at != end;
       at.increment(gone)) {
    ThreadSignals found = read_thread_signals(at->path() / "status");
    if (!found.name.empty() && !found.ended) {  // else it has just ended
      threads.push_back(found);
    }
  }
  return threads;
}

/// Threads in which a handler may interrupt what they compute, each with the signals: "".
inline std::string interruptible(const std::vector<ThreadSignals>& threads) {
  // Faults of a thread's own instructions, and the two signals that the C library sends to all
  // threads for setuid and pthread_cancel, which no mask of a program's has.
  std::uint64_t others =
      bits_of({SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, 32, 33});
#if __has_feature(thread_sanitizer)  // whose own thread leaves it open, and writes to no pipe
  others |= bits_of({SIGPIPE});
#endif
  std::ostringstream text;
  for (const ThreadSignals& thread : threads) {
    if (const std::uint64_t open = thread.handled & ~thread.blocked & ~others; open != 0) {
      text << thread.name << " may be interrupted by signals " << std::hex << open << "; ";
    }
  }
  return text.str();
}

}  // namespace tessera::testing
