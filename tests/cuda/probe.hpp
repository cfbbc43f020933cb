// The structures of the kernels of probe.cu.
#pragma once
#include <cstdint>

/// Arrays of `count` elements, or whatever the kernel says.
struct Probe {
  const float* from;
  float* to;
  std::int64_t count;
};

/// The sum of several arrays.
struct ProbeList {
  const float* from[64];
  float* to;
  std::int64_t arrays, count;
};
