// Functions of a library that is opened at run time. Their types say whether a call may block, and
// the tables of functions (driver_api.hpp and its like) take no others.
#pragma once
#include <type_traits>

namespace tessera::cuda {

/// What a call may wait for.
enum class Waits {
  never,     // nothing
  for_room,  // in a stream's queue, which the host keeps (CudaDriver::keep_room)
  accepted,  // nothing: whether the library has accepted the call is asked afterwards
  watched,   // other ranks, or a driver that does not answer
};

/// Who has one is on a thread that another thread watches: CallWatch gives it to the calls that it
/// runs. Calls that may block need it.
class WatchedThread {
 private:
  friend class CallWatch;
  friend class WatchedByHand;  // tests have it
  WatchedThread() = default;
};

template <Waits waits, class Signature>
class LibraryFunction;

template <Waits waits, class R, class... Arguments>
class LibraryFunction<waits, R(Arguments...)> {
 public:
  using Pointer = R (*)(Arguments...);
  static constexpr Waits what = waits;

  R operator()(Arguments... arguments) const
    requires(waits != Waits::watched)
  {
    return function_(arguments...);
  }
  R operator()(const WatchedThread&, Arguments... arguments) const
    requires(waits == Waits::watched)
  {
    return function_(arguments...);
  }
  /// Null: the library has it not.
  const void* address() const { return reinterpret_cast<const void*>(function_); }
  explicit operator bool() const { return function_ != nullptr; }
  void set(void* found) { function_ = reinterpret_cast<Pointer>(found); }

 private:
  Pointer function_ = nullptr;
};

template <class Signature>
using Immediate = LibraryFunction<Waits::never, Signature>;
template <class Signature>
using Queueing = LibraryFunction<Waits::for_room, Signature>;
template <class Signature>
using Accepted = LibraryFunction<Waits::accepted, Signature>;
template <class Signature>
using Blocking = LibraryFunction<Waits::watched, Signature>;

}  // namespace tessera::cuda
