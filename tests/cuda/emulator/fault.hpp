// An error that the emulator found in a program.
#pragma once
#include <stdexcept>
#include <string>

namespace emulator {

/// Raised where the host's own stack runs, never within a kernel's thread.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace emulator
