// Parts of the softmaxes that gradients of other families call.
module tessera.ops:norm_call;

import tessera.base;
import tessera.tensor;

namespace tessera::ops {

/// The operators of these names: the gradient by softmax's (log_softmax's) operand, of its result
/// y.
Tensor softmax_backward(const Tensor& dy, const Tensor& y, std::int64_t dim);
Tensor log_softmax_backward(const Tensor& dy, const Tensor& y, std::int64_t dim,
                            bool loss_parallel);

}  // namespace tessera::ops
