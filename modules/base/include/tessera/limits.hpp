// Limits of the system: an error that is due to one names it, with its value. Threads, which are
// what such limits are reached by most often.
#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace tessera {

struct SystemLimit {
  std::string name;  // "this user's limit on processes (`ulimit -u`)"
  std::uint64_t all = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t used = 0;
  std::uint64_t left() const { return all > used ? all - used : 0; }
};

/// Of processes and their threads: of the machine, this user and the control groups around this
/// process, the one of which least is left.
SystemLimit limit_of_tasks();
/// Of memory, likewise. What is in use is not counted.
SystemLimit limit_of_memory();
// Of this process.
SystemLimit limit_of_address_space();
SystemLimit limit_of_data();

/// Why a call of the system failed, by its errno: the system's words, and where a limit is the
/// reason, which one, and its value.
std::string reason_of(int error);
/// What an exception says, and where a limit is the reason (std::bad_alloc, std::system_error), as
/// reason_of.
std::string reason_of(const std::exception& error);

/// Starts a thread. Error (run) that begins with `what`: the system has no further one.
std::thread start_thread(const std::string& what, std::function<void()> body);
/// Calls the body in a thread of its own, and returns when it has ended. Its exception is thrown
/// on. Errors: as start_thread.
void in_own_thread(const std::string& what, const std::function<void()>& body);

/// Threads that are waited for at the end, also by an exception.
class Threads {
 public:
  Threads() = default;
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() { join(); }
  /// Errors: as start_thread.
  void start(const std::string& what, std::function<void()> body) {
    threads_.push_back(start_thread(what, std::move(body)));
  }
  void join() {
    for (std::thread& thread : threads_) {
      thread.join();
    }
    threads_.clear();
  }

 private:
  std::vector<std::thread> threads_;
};

}  // namespace tessera
