#pragma once
// Threads inside one rank. The number of threads belongs to the calling thread (a rank is a
// process, or one thread of a test process) and is 1 until set_threads: then everything runs
// inline.

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace tessera::kernels {

/// A reference to something callable, for calls that end before it goes away.
template <class Signature>
class FunctionRef;

template <class Result, class... Arguments>
class FunctionRef<Result(Arguments...)> {
 public:
  template <class Callable>
    requires(!std::is_same_v<std::remove_cvref_t<Callable>, FunctionRef>)
  FunctionRef(
      Callable&&
          callable)  // NOLINT(google-explicit-constructor,bugprone-forwarding-reference-overload)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
        call_([](void* object, Arguments... arguments) -> Result {
          return (*static_cast<std::add_pointer_t<Callable>>(object))(
              std::forward<Arguments>(arguments)...);
        }) {}

  Result operator()(Arguments... arguments) const {
    return call_(object_, std::forward<Arguments>(arguments)...);
  }

 private:
  void* object_;
  Result (*call_)(void*, Arguments...);
};

/// Sets how many threads work for the calling thread (at least 1). No other library starts threads:
/// oneDNN computes each piece of a product in the thread that calls it.
void set_threads(int count);

/// How many threads work for the calling thread.
int threads();

/// Which of the threads() of a loop the body of parallel_for runs in: 0, the caller, up to
/// threads() - 1 as the caller of the loop counts them; 0 outside of a loop. For memory that each
/// thread needs.
int thread_number();

namespace detail {
void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain,
                  FunctionRef<void(std::int64_t, std::int64_t)> body);
}  // namespace detail

/// Calls body(first, last) on disjoint pieces that together are [begin, end), and returns when all
/// are done. A piece has a multiple of `grain` elements, except the last one. Which pieces there
/// are depends on the number of threads, so a body must compute each element alone: a reduction
/// splits by its own fixed block size and loops over blocks here. A nested call runs inline. An
/// exception of the body reaches the caller (the first one).
template <class Body>
void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain, Body&& body) {
  if (begin >= end) return;
  if (end - begin <= grain || threads() == 1) {
    body(begin, end);
  } else {
    detail::parallel_for(begin, end, grain, body);
  }
}

}  // namespace tessera::kernels
