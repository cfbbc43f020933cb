// Activations with numbers: leaky_relu, elu, softplus, hardtanh. Those without are in
// functions/unary.hpp.
module;
#include "pointwise/functions/with_numbers.hpp"
#include "pointwise/kernels/apply.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :pointwise_call;

namespace tessera::ops {
namespace {

struct SlopeArgs {
  Dynamic<double> negative_slope;
};
struct SoftplusArgs {
  Dynamic<double> beta;
  Dynamic<double> threshold;
};
struct HardtanhArgs {
  Dynamic<double> min_val;
  Dynamic<double> max_val;
};

using namespace elementwise;
using operands::AlphaArgs;
using operands::PointwiseForms;

const PointwiseForms leaky_relu_forms = register_with_numbers<functions::LeakyRelu, SlopeArgs, 1>(
    "leaky_relu", "x if x > 0, else negative_slope x.");
const PointwiseForms elu_forms = register_with_numbers<functions::Elu, AlphaArgs, 1>(
    "elu", "x if x > 0, else alpha (exp(x) - 1).");
const PointwiseForms softplus_forms = register_with_numbers<functions::Softplus, SoftplusArgs, 2>(
    "softplus", "log(1 + exp(beta x)) / beta; x if beta x > threshold.");
const PointwiseForms hardtanh_forms = register_with_numbers<functions::Hardtanh, HardtanhArgs, 2>(
    "hardtanh", "x limited to [min_val, max_val].");

Tensor floating_operand(const Tensor& x) {
  return is_floating(x.dtype()) ? x : cast(x, DType::f32);
}

}  // namespace

Tensor leaky_relu(const Tensor& x, double negative_slope) {
  operands::given("leaky_relu", "x", x);
  return call_one(leaky_relu_forms.op, {floating_operand(x)}, SlopeArgs{negative_slope});
}

Tensor elu(const Tensor& x, double alpha) {
  operands::given("elu", "x", x);
  return call_one(elu_forms.op, {floating_operand(x)}, AlphaArgs{alpha});
}

Tensor hardtanh(const Tensor& x, double low, double high) {
  operands::given("hardtanh", "x", x);
  return call_one(hardtanh_forms.op, {floating_operand(x)}, HardtanhArgs{low, high});
}

Tensor softplus(const Tensor& x, double beta, double threshold) {
  operands::given("softplus", "x", x);
  return call_one(softplus_forms.op, {floating_operand(x)}, SoftplusArgs{beta, threshold});
}

}  // namespace tessera::ops
