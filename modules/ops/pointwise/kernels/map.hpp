#pragma once
// Elementwise loops for functions that an operator's own source defines, one element at a time.

#include <array>
#include <cstdint>
#include <utility>

#include "elementwise.hpp"

namespace tessera::kernels {

/// y[i] = f(operands[0][i], ...), all contiguous and of one floating type. f takes and returns
/// double for f64, else float. y may be an operand.
template <std::size_t N, class F>
void map(DType dtype, std::int64_t count, const std::array<const void*, N>& operands, void* y,
         F f) {
  using elementwise::Access;
  const auto loop = [&]<class C>(C) {
    const auto block = [&]<std::size_t... at>(std::index_sequence<at...>) {
      elementwise::run<N>(count, {Access::contiguous(dtype, operands[at])...},
                          Access::contiguous(dtype, y),
                          [&](std::int64_t n, const std::array<const void*, N>& in, void* result) {
                            for (std::int64_t i = 0; i < n; ++i) {
                              static_cast<C*>(result)[i] = f(static_cast<const C*>(in[at])[i]...);
                            }
                          });
    };
    block(std::make_index_sequence<N>{});
  };
  dtype == DType::f64 ? loop(double{}) : loop(float{});
}

}  // namespace tessera::kernels
