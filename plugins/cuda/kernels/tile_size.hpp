// The sizes of products' tiles.
#pragma once
#include <cstdint>

namespace tessera::cuda {

inline constexpr int product_tile = 64;

/// By tensor cores (mma_product.hpp): a block of 8 warps, each with 64 x 64 elements of the result,
/// which adds so many products at once while the tiles for the next three steps are copied.
inline constexpr int mma_rows = 128, mma_columns = 256, mma_depth = 32, mma_stages = 4;
inline constexpr int mma_threads = 256;
inline constexpr unsigned mma_memory = mma_stages * (mma_rows + mma_columns) * mma_depth * 2;
static_assert(mma_rows * mma_columns * 2 <= mma_memory);  // the result is there too

/// How many tiles an extent has.
constexpr std::int64_t product_tiles(std::int64_t extent, int tile = product_tile) {
  return (extent + tile - 1) / tile;
}

}  // namespace tessera::cuda
