// The emulated device of the tests. Include it after the imports of tessera.base and
// tessera.tensor.
#pragma once
#include <cstdint>

namespace tessera::testing {

/// The plugin's device, on the emulator; the plugin is loaded when it is first asked for.
Device cuda(int index = 0);
/// Another order of streams, blocks and threads for each call.
void next_order();
/// 0, 1, 2, ... in f32.
Tensor counted(std::int64_t count);

}  // namespace tessera::testing
