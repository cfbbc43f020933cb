// Calls of the driver and of CUDA's libraries that may block. Include it after the import of
// tessera.base.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "library_function.hpp"

namespace tessera::cuda {

/// Runs calls that may block on threads of their own, while the calling thread looks at the other
/// ranks as in every wait for a device. A call that does not return ends at the time limit of waits
/// with an error that names the call and the device, as do all later ones at once. Where
/// an error ends the wait, the call may still run: it must hold whatever it uses. Copies are the
/// same watch.
class CallWatch {
 public:
  /// `thing`: the device, for errors. `enter` is called first on each thread; null: nothing is.
  explicit CallWatch(std::string thing, std::function<void()> enter = {});
  /// Of calls before there are ranks.
  static CallWatch without_ranks(std::string thing);

  /// What function(const WatchedThread&) returns, or the error that it raises. `name`: of the
  /// library's function.
  template <class Function>
  auto call(const char* name, Function function) const {
    using Made = std::invoke_result_t<Function, const WatchedThread&>;
    const auto made = std::make_shared<std::optional<Made>>();
    run(name, [made, function = std::move(function)](const WatchedThread& watched) mutable {
      made->emplace(function(watched));
    });
    return std::move(**made);
  }
  /// Of calls that give something back: an error goes to the log, unless another rank has failed.
  template <class Function>
  void end(const char* name, Function function) const noexcept {
    give_back(name, [function = std::move(function)](const WatchedThread& watched) mutable {
      function(watched);
    });
  }
  /// Of calls that end what has failed: waits for at most 2 s, and not again where a call of the
  /// process has lasted longer.
  void leave(std::function<void(const WatchedThread&)> function) const noexcept;

 private:
  class Pending;
  class Started;

  void run(const char* name, std::function<void(const WatchedThread&)> function) const;
  void give_back(const char* name,
                 std::function<void(const WatchedThread&)> function) const noexcept;
  [[noreturn]] void refuse(double limit) const;
  Started start(std::function<void(const WatchedThread&)> function) const;

  std::string thing_;
  std::function<void()> enter_;
  std::shared_ptr<std::atomic<const char*>> hangs_;  // the call that has not returned; null: none
  bool alone_ = false;
};

}  // namespace tessera::cuda
