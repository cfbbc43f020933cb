// Tests of each element: isnan, isinf, isfinite. bool results, no gradient.
module;
#include "pointwise/functions/comparisons.hpp"
#include "pointwise/kernels/apply.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :pointwise_call;

namespace tessera::ops {
namespace {

using namespace elementwise;

void infer_test(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), DType::boolean});
}

template <class F>
const Op& test(const char* schema, const char* about) {
  return register_op({.schema = schema,
                      .infer = infer_test,
                      .cpu = in_workspace<copied_cpu<F, 1>>,
                      .workspace = workspace_of_copies<copied_cpu<F, 1>>,
                      .element = element<F>,
                      .rule = rules::pointwise,
                      .about = about});
}

const Op& isnan_op = test<functions::IsNan>("isnan(x)", "True if x is NaN.");
const Op& isinf_op = test<functions::IsInfinite>("isinf(x)", "True if x is infinite.");
const Op& isfinite_op =
    test<functions::IsFinite>("isfinite(x)", "True if x is neither NaN nor infinite.");

}  // namespace

Tensor isnan(const Tensor& x) { return call_one(isnan_op, {x}); }
Tensor isinf(const Tensor& x) { return call_one(isinf_op, {x}); }
Tensor isfinite(const Tensor& x) { return call_one(isfinite_op, {x}); }

}  // namespace tessera::ops
