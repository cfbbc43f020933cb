module;
#include <chrono>
#include <cstdint>
module tessera.calls;

import tessera.base;
import :clock;

namespace tessera::collective {

std::int64_t steady_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace tessera::collective
