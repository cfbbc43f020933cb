// `tessera serve` as a process of its own.
#pragma once
#include <sys/types.h>

#include <cstdio>
#include <string>
#include <vector>

namespace server_test {

class Served {
 public:
  /// With the trained model, greedy, at any free port; waits until it listens.
  explicit Served(const std::vector<std::string>& more);
  /// With another model.
  Served(const std::string& model, const std::vector<std::string>& more);
  ~Served();
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

  struct Ended {
    int code = -1;
    double seconds = 0;
  };
  /// Sends a signal and waits for the end.
  Ended stop(int signal);
  Ended stop();
  /// Bytes of memory that the process has had at most.
  std::size_t peak_bytes() const;
  /// Bytes of memory that it has.
  std::size_t bytes() const;
  /// The processes that it has started, with those of these: the first launched the others.
  std::vector<pid_t> processes() const;
  /// Waits for the end.
  Ended wait();
  /// Threads that it has.
  int threads() const;

  int port = 0;

 private:
  pid_t process_ = -1;
  std::FILE* output_ = nullptr;
};

/// The file of the trained model's template, with the marks of Hermes' and Qwen's models around
/// calls.
std::string template_with_calls();

}  // namespace server_test
