module;
#include "matmul/kernels/gemm.hpp"
module tessera.ops:linear_call;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

// What linear and its gradients have in common with their forms in blocks.
namespace tessera::ops {

/// linear with StepContext::feature_blocks. Errors: features that the blocks divide along one dim
/// only, where ranks share the other; 16 bits; a bias that would be added within the sum over
/// blocks.
Tensor linear_in_blocks(const Tensor& x, const Tensor& weight, const Tensor& bias);

/// A product as a kernel takes it.
struct Product {
  kernels::Gemm shape = {};
  Matrix a = {};
  Matrix b = {};
};
/// y [..., n] = x [..., k] times weight, or its transpose.
Product rows_times(Workspace& w, const Tensor& x, const Tensor& weight, bool weight_transposed,
                   const Tensor& y);
/// Contiguous y [out, in] = dy [..., out] transposed times x [..., in].
Product columns_times(Workspace& w, const Tensor& dy, const Tensor& x, const Tensor& y);

/// The shape of operand 0 [..., n] times weight, operand 1, whose dim `results` becomes the last
/// one and whose other is summed over. Errors: operands that do not fit.
Dims rows_shape(const Call& call, int results);
/// The shape [out, in] of the gradient of weight from dy [..., out] and x [..., in]. Errors: other
/// rows.
Dims columns_shape(const Call& call);

/// Whether ranks may share a dim of an operand.
using MayShare = std::function<bool(std::size_t operand, int dim)>;
/// Adds the strategies of the same products.
void rows_strategies(const RuleContext& context, Strategies& strategies, int results,
                     const MayShare& may_share);
void columns_strategies(const RuleContext& context, Strategies& strategies,
                        const MayShare& may_share);

}  // namespace tessera::ops
