// The sizes of attention's tiles, by tensor cores.
#pragma once

namespace tessera::cuda {

/// A tile that a block goes through has so many elements.
inline constexpr int attention_tile = 4096;

/// The shared memory of a block that has so many rows of its own, two pairs of tiles, and two
/// numbers for each of their rows.
constexpr unsigned attention_memory(int rows, int width) {
  return static_cast<unsigned>(rows * width * 2 + 4 * attention_tile * 2 +
                               4 * attention_tile / width * 4);
}

}  // namespace tessera::cuda
