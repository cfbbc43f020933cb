export module tessera.ops:loss;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

/// The result of a loss: one loss per element or row, their sum, or their mean.
enum class Reduction { none, sum, mean };

/// The number of targets (i64) that are not ignore_index: a scalar, i64. If the targets are
/// sharded, the ranks all-reduce their counts (one number), so the result is Replicate. The mean of
/// a loss over sharded rows divides by it.
Tensor counted_rows(const Tensor& targets, std::int64_t ignore_index = -100);

/// Options of cross_entropy.
struct CrossEntropyOptions {
  Reduction reduction = Reduction::mean;
  std::int64_t ignore_index = -100;
  /// The share of each target's probability that is spread evenly over all classes, 0 to 1.
  double label_smoothing = 0;
  /// [vocab]: the weight of each class, a constant (it gets no gradient); of a distributed loss,
  /// Replicate. Undefined: all weights are 1.
  Tensor weight = {};
  bool loss_parallel = false;
};

/// -log softmax(logits)[target] over rows; logits [..., vocab], targets [...] (i64); rows whose
/// target is ignore_index are ignored. The mean (default) is that over the rows of all ranks that
/// are not ignored; with class weights it is divided by the sum of the weights of their targets.
/// The result is f32 (f64 for f64 logits): a scalar, Partial(sum) if rows are sharded, or for
/// Reduction::none the loss of each row. Backward writes the logits' gradient once and keeps no
/// second copy of the logits.
/// With `loss_parallel` the vocabulary may be sharded, and the logits are not gathered. The ranks
/// reduce each row's maximum, then two sums per row (of the exponentials, and of the target's
/// logit): 3 numbers per row in two all-reduces. Backward does not communicate. Without it, a
/// sharded vocabulary is an error.
/// With `label_smoothing` s, the loss of a row is (1 - s) w[target] nll + s / vocab times the sum
/// over classes c of w[c] (-log softmax(logits)[c]). The second term is composed of other
/// operators: backward holds tensors of the logits' size, and a sharded vocabulary costs further
/// reductions of one number per row, in forward and backward.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options = {});
/// The loss of each row, [...].
Tensor cross_entropy_rows(const Tensor& logits, const Tensor& targets,
                          std::int64_t ignore_index = -100, bool loss_parallel = false);

/// The losses of rows, and what their gradient begins with: both [...].
struct RowLosses {
  Tensor losses;
  Tensor log_sums;  // the logarithms of the sums of exponentials over all classes
};
/// cross_entropy_rows() and its gradient, for who computes it by hand. `dlosses`: [...], of the
/// type of the losses. The result has the shape and type of the logits.
RowLosses cross_entropy_with_sums(const Tensor& logits, const Tensor& targets,
                                  std::int64_t ignore_index = -100, bool loss_parallel = false);
Tensor cross_entropy_grad(const Tensor& dlosses, const Tensor& logits, const Tensor& targets,
                          const Tensor& log_sums, std::int64_t ignore_index = -100,
                          bool loss_parallel = false);

// Losses of all elements; the mean divides by their global number, so shards give a Partial(sum).
/// -log_probs[row, target]; log_probs [..., classes], targets [...] (i64). Rows whose target is
/// ignore_index are ignored; the mean divides by counted_rows(), the number of the other rows.
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
/// target (log target - log_probs), where `target` contains probabilities or, with `log_target`,
/// their logarithms.
Tensor kl_div(const Tensor& log_probs, const Tensor& target, Reduction reduction = Reduction::mean,
              bool log_target = false);

}  // namespace tessera::ops
