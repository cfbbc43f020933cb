// Include it after the imports of tessera.
#pragma once
#include <future>

namespace tessera::app {

/// Runs `body` as a rank on a thread of its own: what it books of memory, what it remembers of
/// operators and the numbers that it draws go with the thread.
template <class Body>
auto as_rank(int rank, const Body& body) {
  return std::async(std::launch::async,
                    [&] {
                      set_current_rank(rank);
                      return body();
                    })
      .get();
}

}  // namespace tessera::app
