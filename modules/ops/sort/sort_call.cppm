// Shared parts of operators that put elements in order.
module tessera.ops:sort_call;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :operands;
import :reduce;

namespace tessera::ops::sorting {

/// Writes the first out[0].shape()[dim] elements of each line along dim, in order, and their
/// indices.
void sort_lines(Workspace& w, const Tensor& x, const Dims& dim, bool descending,
                std::span<const Tensor> out);

/// The dim that is sorted along; none for a tensor without dims.
template <class Args>
inline Dims sorted_dim(const Call& call) {
  return operands::sorted_dims(call.op.name.c_str(), {call.args<Args>().dim}, call.in[0].dims());
}

/// topk() of a distributed x whose `dim` (counted from the front) may be sharded.
ValuesAndIndices topk_across_ranks(const Tensor& x, std::int64_t k, int dim, bool largest);

/// All dims but the sorted one.
void other_dims(const RuleContext& context, Strategies& strategies, const Dims& sorted);
/// The gradient of the values, back to where they came from along `dim`.
Tensor to_sources(const BackwardContext& context, const Tensor& grad, std::int64_t dim);

}  // namespace tessera::ops::sorting
