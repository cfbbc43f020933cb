// Reductions of values that are not numbers.
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.collective;

using namespace tessera;
using namespace tessera::collective;

namespace {

/// Element i is NaN on rank i % (ranks + 1), so on none for the last of them; `convert` makes a
/// number of the type, `is_nan` looks at one.
template <class T, class Convert, class IsNan>
void check(DType dtype, Convert convert, IsNan is_nan) {
  for (const int ranks : {2, 3}) {
    for (const ReduceOp op : {ReduceOp::max, ReduceOp::min, ReduceOp::sum, ReduceOp::product}) {
      run_threads(ranks, [&](World& world) {
        constexpr std::size_t count = 40;  // with and without vector instructions
        std::vector<T> values;
        for (std::size_t i = 0; i < count; ++i) {
          const bool nan =
              i % static_cast<std::size_t>(ranks + 1) == static_cast<std::size_t>(world.rank());
          values.push_back(convert(nan ? std::numeric_limits<float>::quiet_NaN()
                                       : static_cast<float>(1 + world.rank())));
        }
        std::vector<T> out(count);
        world.everyone().all_reduce(values.data(), out.data(), count, dtype, op);
        for (std::size_t i = 0; i < count; ++i) {
          const bool expected =
              i % static_cast<std::size_t>(ranks + 1) < static_cast<std::size_t>(ranks);
          if (is_nan(out[i]) != expected) {
            fail("element " + std::to_string(i) + " of " + std::string(name_of(dtype)) + " by " +
                 std::string(name_of(op)) + " on " + std::to_string(ranks) + " ranks");
          }
        }
      });
    }
  }
}

}  // namespace

TEST_CASE("a NaN of any rank is the sum, the product, the maximum and the minimum") {
  const auto isnan = [](auto x) { return std::isnan(x); };
  check<float>(DType::f32, [](float x) { return x; }, isnan);
  check<double>(DType::f64, [](float x) { return static_cast<double>(x); }, isnan);
  check<_Float16>(
      DType::f16, [](float x) { return static_cast<_Float16>(x); },
      [](_Float16 x) { return x != x; });
  check<std::uint16_t>(
      DType::bf16,
      [](float x) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16); },
      [](std::uint16_t x) { return (x & 0x7fff) > 0x7f80; });
}
