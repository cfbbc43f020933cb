// Not every type and function has vector instructions; the others stay scalar loops. Stands before
// the headers, as the warning is placed where the loop is inlined.
#pragma clang diagnostic ignored "-Wpass-failed"

#include "pointwise/functions/arithmetic.hpp"

#include "function_loops.hpp"

namespace tessera::kernels {

void add(DType dtype, std::int64_t count, const void* a, const void* b, double alpha, void* y) {
  apply(kernels_of<functions::AddScaled, 2, 1>(), dtype, count, {{a, b}}, {{alpha}}, y);
}

namespace {

using namespace functions;  // NOLINT(google-build-using-namespace)

[[gnu::used]] constexpr KernelsOf instances[] = {
    &kernels_of<Add, 2, 0>,        &kernels_of<Add, 1, 1>,
    &kernels_of<Sub, 2, 0>,        &kernels_of<Mul, 2, 0>,
    &kernels_of<Mul, 1, 1>,        &kernels_of<Div, 2, 0>,
    &kernels_of<Maximum, 2, 0>,    &kernels_of<Minimum, 2, 0>,
    &kernels_of<AddScaled, 2, 1>,  &kernels_of<SubScaled, 2, 1>,
    &kernels_of<Lerp, 3, 0>,       &kernels_of<Lerp, 2, 1>,
    &kernels_of<Addcmul, 3, 1>,    &kernels_of<Addcdiv, 3, 1>,
    &kernels_of<Clamp, 1, 2>,      &kernels_of<GradientOf<Clamp>, 2, 2>,
    &kernels_of<BitwiseAnd, 2, 0>, &kernels_of<BitwiseOr, 2, 0>,
    &kernels_of<BitwiseXor, 2, 0>, &kernels_of<BitwiseXor, 1, 1>,
    &kernels_of<Pow, 2, 0>,        &kernels_of<Pow, 1, 1>,
    &kernels_of<Atan2, 2, 0>,      &kernels_of<Fmod, 2, 0>,
    &kernels_of<Remainder, 2, 0>,  &kernels_of<FloorDivide, 2, 0>};

}  // namespace
}  // namespace tessera::kernels
