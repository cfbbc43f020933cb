// Not every type has vector instructions; the others stay scalar loops. Stands before the headers,
// as the warning is placed where the loop is inlined.
#pragma clang diagnostic ignored "-Wpass-failed"

#include "pointwise/functions/comparisons.hpp"

#include <array>

#include "function_loops.hpp"

namespace tessera::kernels {
namespace {

using namespace functions;  // NOLINT(google-build-using-namespace)

/// Kernels of two elements, and of an element and a number.
template <class... F>
constexpr auto compared(List<F...> /*all*/) {
  return std::array{KernelsOf{&kernels_of<F, 2, 0>}..., KernelsOf{&kernels_of<F, 1, 1>}...};
}

[[gnu::used]] constexpr auto comparisons =
    compared(List<Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual>{});
[[gnu::used]] constexpr KernelsOf tests[] = {
    &kernels_of<LogicalAnd, 2, 0>, &kernels_of<LogicalOr, 2, 0>, &kernels_of<LogicalXor, 2, 0>,
    &kernels_of<LogicalNot, 1, 0>, &kernels_of<IsNan, 1, 0>,     &kernels_of<IsInfinite, 1, 0>,
    &kernels_of<IsFinite, 1, 0>};

}  // namespace
}  // namespace tessera::kernels
