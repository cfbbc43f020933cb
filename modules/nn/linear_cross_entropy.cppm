export module tessera.nn:linear_cross_entropy;

import tessera.base;
import tessera.tensor;

export namespace tessera::nn {

/// x softcap tanh'd: softcap tanh(x / softcap); x itself where softcap is 0.
Tensor soft_capped(const Tensor& x, double softcap);

/// Options of linear_cross_entropy.
struct LinearCrossEntropy {
  /// For how many rows of a rank logits are in memory at a time; 0: for all.
  std::int64_t rows = 0;
  std::int64_t ignore_index = -100;
  bool loss_parallel = false;
  /// Logits become soft_capped(logits, softcap).
  double softcap = 0;
  /// Called once in forward, with the logits of a part before they are capped; may throw.
  std::function<void(const Tensor& part)> check = {};
};

/// The loss of each row of cross_entropy_rows(soft_capped(linear(x, weight, bias))), [...]: x [...,
/// in], weight [classes, in], bias [classes] or undefined, targets [...] (i64). Part after part of
/// the rows goes through the product and the loss, and through their gradients in backward, which
/// computes the logits again: so memory holds the logits of a part and their gradient, instead of
/// all. Parts are cut along the last dim of the rows that no mesh axis shards; where there is none,
/// all rows are one part.
/// Compared with the whole form: losses and the gradient of x are the same operators' on fewer
/// rows; the gradient of weight is a sum over parts, in f32 where the operands have 16 bits. With
/// one part all bits are equal. With `loss_parallel`, each part reduces its numbers on its own.
/// Errors: those of the operators; in backward, that its graph is requested (create_graph).
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const Tensor& targets, const LinearCrossEntropy& options = {});

}  // namespace tessera::nn
