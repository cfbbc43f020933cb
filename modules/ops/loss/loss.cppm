export module tessera.ops:loss;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

/// What a loss gives: that of each element or row, their sum, or their mean.
enum class Reduction { none, sum, mean };

/// How many of the targets (i64) are not ignore_index: a scalar, i64. Where they are sharded the
/// ranks reduce their counts, one number, so the result is Replicate: what the mean of a loss over
/// sharded rows divides by.
Tensor counted_rows(const Tensor& targets, std::int64_t ignore_index = -100);

/// The SUM over rows of -log softmax(logits)[target]; logits [..., vocab], targets [...] (i64);
/// rows whose target is ignore_index count nothing. A scalar (f32; f64 for f64 logits),
/// Partial(sum) where rows are sharded. Its backward writes the logits' gradient once; no second
/// copy of the logits is kept. `reduction` mean divides it by counted_rows(), none is
/// cross_entropy_rows().
///
/// With `loss_parallel` the vocabulary may be sharded: nobody gathers the logits. The ranks reduce
/// the rows' maxima, then two sums a row (of the exponentials, and the target's logit): 3 numbers a
/// row in two all-reduces; backward communicates nothing. Without it such logits are an error, as
/// operators do not communicate by themselves.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index = -100,
                     bool loss_parallel = false, Reduction reduction = Reduction::sum);
/// The loss of each row, [...].
Tensor cross_entropy_rows(const Tensor& logits, const Tensor& targets,
                          std::int64_t ignore_index = -100, bool loss_parallel = false);

// Of all elements; the mean divides by their global number, so shards give a Partial(sum).
/// -log_probs[row, target]; log_probs [..., classes], targets [...] (i64). Rows whose target is
/// ignore_index count nothing, and the mean divides by the number of the others, counted_rows().
Tensor nll_loss(const Tensor& log_probs, const Tensor& targets,
                Reduction reduction = Reduction::mean, std::int64_t ignore_index = -100);
Tensor mse_loss(const Tensor& a, const Tensor& b, Reduction reduction = Reduction::mean);
Tensor l1_loss(const Tensor& a, const Tensor& b, Reduction reduction = Reduction::mean);
/// Quadratic where |a - b| < beta (0.5 d^2 / beta), else |d| - 0.5 beta.
Tensor smooth_l1_loss(const Tensor& a, const Tensor& b, Reduction reduction = Reduction::mean,
                      double beta = 1);
/// The cross entropy of sigmoid(x) with targets between 0 and 1, exact for large |x|.
Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target,
                                        Reduction reduction = Reduction::mean);
/// target (log target - log_probs), where `target` holds probabilities or, with `log_target`, their
/// logarithms.
Tensor kl_div(const Tensor& log_probs, const Tensor& target, Reduction reduction = Reduction::mean,
              bool log_target = false);

}  // namespace tessera::ops
