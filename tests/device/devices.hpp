// The adversarial device of the tests. Include it after `import tessera.tensor;`.
#pragma once
#include <string>
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

}  // namespace tessera::testing
