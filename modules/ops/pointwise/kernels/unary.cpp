// Loops with calls of the C library stay scalar. Stands before the headers, as the warning is
// placed where the loop is inlined.
#pragma clang diagnostic ignored "-Wpass-failed"

#include "pointwise/functions/unary.hpp"

#include <array>

#include "function_loops.hpp"

namespace tessera::kernels {
namespace {

using functions::GradientOf;

template <class F>
constexpr KernelsOf gradient_of() {
  if constexpr (F::linear) {
    return nullptr;  // it is its own gradient
  } else {
    return &kernels_of<GradientOf<F>, 2, 0>;
  }
}

template <class... F>
constexpr auto instances_of(functions::List<F...> /*all*/) {
  return std::array{KernelsOf{&kernels_of<F, 1, 0>}..., gradient_of<F>()...};
}

[[gnu::used]] constexpr auto instances = instances_of(functions::UnaryFunctions{});
[[gnu::used]] constexpr std::array forms_of_gelu{
    KernelsOf{&kernels_of<functions::Gelu, 1, 0>},
    KernelsOf{&kernels_of<functions::GeluTanh, 1, 0>},
    KernelsOf{&kernels_of<GradientOf<functions::Gelu>, 2, 0>},
    KernelsOf{&kernels_of<GradientOf<functions::GeluTanh>, 2, 0>}};

}  // namespace
}  // namespace tessera::kernels
