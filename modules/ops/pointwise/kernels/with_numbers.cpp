// Loops with calls of the C library stay scalar. Stands before the headers, as the warning is
// placed where the loop is inlined.
#pragma clang diagnostic ignored "-Wpass-failed"

#include "pointwise/functions/with_numbers.hpp"

#include "function_loops.hpp"
#include "pointwise/functions/losses.hpp"

namespace tessera::kernels {
namespace {

using namespace functions;  // NOLINT(google-build-using-namespace)

[[gnu::used]] constexpr KernelsOf instances[] = {&kernels_of<LeakyRelu, 1, 1>,
                                                 &kernels_of<GradientOf<LeakyRelu>, 2, 1>,
                                                 &kernels_of<Elu, 1, 1>,
                                                 &kernels_of<GradientOf<Elu>, 2, 1>,
                                                 &kernels_of<Softplus, 1, 2>,
                                                 &kernels_of<GradientOf<Softplus>, 2, 2>,
                                                 &kernels_of<Hardtanh, 1, 2>,
                                                 &kernels_of<GradientOf<Hardtanh>, 2, 2>,
                                                 &kernels_of<NanToNum, 1, 3>,
                                                 &kernels_of<SmoothL1, 2, 1>,
                                                 &kernels_of<LogisticLoss, 2, 0>,
                                                 &kernels_of<KlDiv, 2, 0>,
                                                 &kernels_of<KlDivOfLogarithm, 2, 0>};

}  // namespace
}  // namespace tessera::kernels
