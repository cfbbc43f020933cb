module;
#include <cstdint>
export module tessera.ops:loss;

import tessera.tensor;

export namespace tessera::ops {

/// The SUM over rows of -log softmax(logits)[target]; logits [rows, vocab], targets [rows] (i64);
/// rows whose target is ignore_index count nothing. A scalar (f32; f64 for f64 logits),
/// Partial(sum) where rows are sharded. Its backward writes the logits' gradient once; no second
/// copy of the logits is kept.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index = -100);
/// The loss of each row, [rows].
Tensor cross_entropy_rows(const Tensor& logits, const Tensor& targets,
                          std::int64_t ignore_index = -100);
/// The SUM of (a - b)^2.
Tensor mse_loss(const Tensor& a, const Tensor& b);

}  // namespace tessera::ops
