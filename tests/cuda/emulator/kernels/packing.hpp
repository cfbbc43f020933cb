// plugins/cuda/kernels/packing.hpp for the emulator.
#pragma once
#include <cstdint>
#include <tessera/float8.hpp>
#include <tessera/half.hpp>

namespace tessera::cuda {

template <class T>
inline std::uint32_t rounded_pair(float low, float high) {
  const auto one = [](float x) -> std::uint32_t { return x != x ? 0x7fffU : T(x).bits; };
  return one(low) | one(high) << 16;
}

}  // namespace tessera::cuda
