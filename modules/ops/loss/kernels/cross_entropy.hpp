#pragma once
// Cross-entropy of logits against class numbers. T: float, double, BFloat16, Half; C = Compute<T>.

#include <cstdint>

#include "shared/kernels/types.hpp"

namespace tessera::kernels {

/// logits [rows, vocab] (contiguous); this part of the vocabulary holds the classes
/// [vocab_start, vocab_start + vocab). A target equal to ignore_index has loss and gradient 0.
struct CrossEntropyShape {
  std::int64_t rows = 0;
  std::int64_t vocab = 0;
  std::int64_t vocab_start = 0;
  std::int64_t ignore_index = -100;
};

/// loss[r] = log_sum_exp[r] - logits[r, target[r]] and log_sum_exp[r] (set for ignored rows too).
/// One pass over the logits. Returns the first row with a target that is neither ignored nor in the
/// vocabulary (its loss is then NaN), or -1.
template <class T>
std::int64_t cross_entropy_forward(const CrossEntropyShape& shape, const T* logits,
                                   const std::int64_t* targets, Compute<T>* loss,
                                   Compute<T>* log_sum_exp);

/// For a sharded vocabulary: of this part, maximum[r], sum[r] = sum of exp(logits - maximum), and
/// picked[r], the target's logit, 0 where the target is ignored or is in another part. The
/// whole's: M = max of maxima, log_sum_exp = M + log(sum of sum * exp(maximum - M)), loss = that -
/// sum of picked. With vocab = 0 maximum is -infinity and sum 0.
template <class T>
void cross_entropy_partial(const CrossEntropyShape& shape, const T* logits,
                           const std::int64_t* targets, Compute<T>* maximum, Compute<T>* sum,
                           Compute<T>* picked);

/// dlogits[r, v] = (exp(logits[r, v] - log_sum_exp[r]) - [vocab_start + v == target[r]]) *
/// dloss[r], and 0 in ignored rows, with the log_sum_exp of the whole vocabulary. dlogits may be
/// logits.
template <class T>
void cross_entropy_backward(const CrossEntropyShape& shape, const T* logits,
                            const std::int64_t* targets, const Compute<T>* log_sum_exp,
                            const Compute<T>* dloss, T* dlogits);

}  // namespace tessera::kernels
