// The size of a product's tile.
#pragma once
#include <cstdint>

namespace tessera::cuda {

inline constexpr int product_tile = 64;

/// How many tiles an extent has.
constexpr std::int64_t product_tiles(std::int64_t extent) {
  return (extent + product_tile - 1) / product_tile;
}

}  // namespace tessera::cuda
