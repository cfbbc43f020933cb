// How many Specs something holds.
#pragma once

#include <cstddef>
#include <cstdint>

/// Makes Specs of shapes that no test has until those that nothing holds are dropped, and counts
/// what is left. No other thread may make Specs meanwhile.
inline std::size_t held_specs() {
  static std::int64_t extent = 1'000'000;
  const auto layout = tessera::Layout::replicated(tessera::DeviceMesh::make({"held_specs"}, {1}));
  for (std::size_t before = tessera::Spec::kept();;) {
    tessera::Spec::make(layout, {++extent}, tessera::DType::u8);
    const std::size_t now = tessera::Spec::kept();
    if (now <= before) {
      return now - 1;  // without the one that was just made
    }
    before = now;
  }
}
