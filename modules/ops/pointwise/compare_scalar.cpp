// Comparisons of a tensor with a number: bool results, no gradient.
module;
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>

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
using operands::ValueArgs;

void infer(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), DType::boolean});
}

/// The number as a 16-bit type holds it: the kernels compare in f32.
double rounded(DType type, double value) {
  if (type == DType::bf16 || type == DType::f16) {
    visit_floating(type, "compare",
                   [&]<class T>(T) { value = static_cast<float>(static_cast<T>(value)); });
  }
  return value;
}

template <class F>
void cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const double number = rounded(call.in[0].dtype(), call.args<ValueArgs>().value);
  apply_to_copies(kernels::kernels_of<F, 1, 1>(), call, {&number, 1}, out[0], w);
}

/// Not in 16 bits, whose number is rounded first.
template <class F>
Element element_of_number(const Call& call) {
  return size_of(call.in[0].dtype()) < sizeof(float) ? Element{} : element_of<F>();
}

template <class F>
const Op& comparison(const char* name, const char* about) {
  return register_op<ValueArgs>({.schema = std::string(name) + "_scalar(x)",
                                 .infer = infer,
                                 .cpu = in_workspace<cpu<F>>,
                                 .workspace = workspace_of_copies<cpu<F>>,
                                 .element = element_of_number<F>,
                                 .rule = rules::pointwise,
                                 .about = about});
}

const Op& eq_op = comparison<functions::Equal>("eq", "x == value.");
const Op& ne_op = comparison<functions::NotEqual>("ne", "x != value.");
const Op& lt_op = comparison<functions::Less>("lt", "x < value.");
const Op& le_op = comparison<functions::LessEqual>("le", "x <= value.");
const Op& gt_op = comparison<functions::Greater>("gt", "x > value.");
const Op& ge_op = comparison<functions::GreaterEqual>("ge", "x >= value.");

template <class T>
bool holds(double value) {
  // The largest i64 rounds to 2^63 as a double.
  return value >= static_cast<double>(std::numeric_limits<T>::lowest()) &&
         value < static_cast<double>(std::numeric_limits<T>::max()) + 1;
}

struct ScalarComparison {
  Tensor x;
  double value;
};

/// x in a type that holds the number: f32 for an integer tensor and a number that is not whole, as
/// in PyTorch; a wider type for a number outside of x's. Beyond all integers there is infinity.
ScalarComparison comparable(const Op& op, const Tensor& x, double value) {
  operands::given(op.name, "x", x);
  if (is_floating(x.dtype())) {
    return {x, value};
  }
  if (std::trunc(value) != value) {
    return {cast(x, DType::f32), value};
  }
  if (!holds<std::int64_t>(value)) {
    return {cast(x, DType::f64), std::copysign(std::numeric_limits<double>::infinity(), value)};
  }
  const bool fits = x.dtype() == DType::i64 ||
                    (x.dtype() == DType::i32 && holds<std::int32_t>(value)) ||
                    (x.dtype() == DType::u8 && holds<std::uint8_t>(value));
  return {fits ? x : cast(x, DType::i64), value};
}

Tensor compare(const Op& op, const Tensor& x, double value) {
  const ScalarComparison both = comparable(op, x, value);
  return call_one(op, {both.x}, ValueArgs{both.value});
}

}  // namespace

Tensor eq(const Tensor& x, double value) { return compare(eq_op, x, value); }
Tensor ne(const Tensor& x, double value) { return compare(ne_op, x, value); }
Tensor lt(const Tensor& x, double value) { return compare(lt_op, x, value); }
Tensor le(const Tensor& x, double value) { return compare(le_op, x, value); }
Tensor gt(const Tensor& x, double value) { return compare(gt_op, x, value); }
Tensor ge(const Tensor& x, double value) { return compare(ge_op, x, value); }

}  // namespace tessera::ops
