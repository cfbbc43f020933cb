// Calls of tests that may block, and that nobody watches.
#pragma once
#include "library_function.hpp"

namespace tessera::cuda {

class WatchedByHand {
 public:
  static const WatchedThread& nobody() {
    static const WatchedThread made;
    return made;
  }
};

}  // namespace tessera::cuda
