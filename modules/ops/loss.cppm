module;
#include <cstdint>
export module tessera.ops:loss;

import tessera.tensor;

export namespace tessera::ops {

/// The SUM over rows of -log softmax(logits)[target]; logits [..., vocab], targets [...] (i64);
/// rows whose target is ignore_index count nothing. A scalar (f32; f64 for f64 logits),
/// Partial(sum) where rows are sharded. Its backward writes the logits' gradient once; no second
/// copy of the logits is kept.
///
/// With `loss_parallel` the vocabulary may be sharded: nobody gathers the logits. The ranks reduce
/// the rows' maxima, then two sums a row (of the exponentials, and the target's logit): 3 numbers a
/// row in two all-reduces; backward communicates nothing. Without it such logits are an error, as
/// operators do not communicate by themselves.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index = -100,
                     bool loss_parallel = false);
/// The loss of each row, [...].
Tensor cross_entropy_rows(const Tensor& logits, const Tensor& targets,
                          std::int64_t ignore_index = -100, bool loss_parallel = false);
/// The SUM over rows of -log_probabilities[target]: [..., vocab] and targets [...] (i64); rows
/// whose target is ignore_index count nothing. A sharded vocabulary gives Partial(sum): each rank
/// has the terms of its own classes. Nothing is communicated.
Tensor nll_loss(const Tensor& log_probabilities, const Tensor& targets,
                std::int64_t ignore_index = -100);
/// The SUM of (a - b)^2.
Tensor mse_loss(const Tensor& a, const Tensor& b);

}  // namespace tessera::ops
