// What elementwise operators share: the calls of the kernels of two operands, and of the functions
// with numbers among their arguments.
module;
#include "pointwise/kernels/functions.hpp"
module tessera.ops:pointwise_call;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :operands;
import :rules;

namespace tessera::ops::elementwise {

void apply_binary(kernels::BinaryOp op, const Tensor& a, const Tensor& b, Tensor& y);

template <kernels::BinaryOp op>
inline void binary_cpu(const Call& call, std::span<Tensor> out) {
  apply_binary(op, call.in[0], call.in[1], out[0]);
}

/// One floating type, all operands broadcast together.
void infer_function(const Call& call, ResultShapes& out);
void apply_function(kernels::FunctionOp op, const Call& call, Tensor& y);

template <kernels::FunctionOp op>
inline void function_cpu(const Call& call, std::span<Tensor> out) {
  apply_function(op, call, out[0]);
}

/// Registers a function, all of whose arguments are dynamic numbers, with its in-place and out
/// variants. Args: their aggregate; void where there are none.
template <class Args, kernels::FunctionOp op>
inline operands::PointwiseForms register_function(
    const char* schema,
    void (*backward)(const BackwardContext&, std::span<const Tensor>, std::span<Tensor>),
    const char* about, void (*rule)(const RuleContext&, Strategies&) = rules::pointwise,
    std::uint64_t saves_inputs = saves_all) {
  return operands::register_pointwise<Args>({.schema = schema,
                                             .infer = infer_function,
                                             .cpu = function_cpu<op>,
                                             .rule = rule,
                                             .backward = backward,
                                             .saves_inputs = saves_inputs,
                                             .about = about});
}

}  // namespace tessera::ops::elementwise
