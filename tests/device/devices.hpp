// The adversarial device of the tests. Include it after `import tessera.tensor;`.
#pragma once
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace tessera::testing {

using Values = std::vector<double>;

/// "adversary:INDEX", whose plugin is loaded first.
inline Device adversary(int index = 0) {
  static const bool loaded = [] {
    plugin::host().load(ADVERSARY);
    return true;
  }();
  (void)loaded;
  return find_device("adversary:" + std::to_string(index));
}

/// Waits until `done`, at most some seconds.
inline void wait_until(const std::function<bool()>& done) {
  for (int i = 0; i < 2000 && !done(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

/// After a run that has failed: waits for what its ranks have left in the device's streams.
inline void settle(Device device) {
  for (int errors = 0; errors < 100; ++errors) {
    try {
      synchronize(device);
      return;
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): of the run
    }
  }
}

}  // namespace tessera::testing
