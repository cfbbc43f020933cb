// Shared parts of losses: their checks, their reduction, and classes that ranks share.
module tessera.ops:loss_call;

import tessera.base;
import tessera.tensor;
import :loss;

namespace tessera::ops::losses {

/// Errors: a or b is undefined, or their shapes differ.
void check_same_shape(const char* op, const Tensor& a, const Tensor& b);
/// The losses of all elements, reduced.
Tensor reduced(const Tensor& each, Reduction reduction);

/// cross_entropy() with class weights or label smoothing.
Tensor weighted_cross_entropy(const Tensor& logits, const Tensor& targets,
                              const CrossEntropyOptions& options);

/// Which classes a call's scores [..., classes] are of; a rank may hold some of them.
struct Classes {
  std::int64_t first;
  std::int64_t count;  // of all ranks
};
/// `whole`: of a local call, the Spec of the scores that its own are part of.
inline Classes classes_of(const SpecArgument& whole, const Tensor& scores) {
  return whole ? Classes{local_offset(*whole).back(), whole->shape.back()}
               : Classes{0, scores.shape().back()};
}

}  // namespace tessera::ops::losses
