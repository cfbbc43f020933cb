export module tessera.ops:random;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

// Random number i of a call belongs to GLOBAL element i, so every layout gives the same bits. Each
// call takes numel() numbers (rounded up to 4) from the stream. A source is a RandomStream, or
// by_batch_row(name) for activations: then micro-batches use the same numbers as the whole step
// (StepContext).
/// Fills x in place: uniform in [low, high), or normal with a mean and a standard deviation.
Tensor uniform_(const Tensor& x, double low, double high, const RandomSource& source);
Tensor normal_(const Tensor& x, double mean, double standard_deviation, const RandomSource& source);
/// x / (1 - p) where the random number is >= p, else 0. The mask is not stored: backward recomputes
/// it.
Tensor dropout(const Tensor& x, double p, const RandomSource& source);
/// 1 with probability p, else 0: written to x, or one for each probability in p (in p's type).
Tensor bernoulli_(const Tensor& x, double p, const RandomSource& source);
Tensor bernoulli(const Tensor& p, const RandomSource& source);
/// Fills x (any type but bool) with integers of [low, high).
Tensor randint_(const Tensor& x, std::int64_t low, std::int64_t high, const RandomSource& source);
/// Fills x (i64, one dim) with a permutation of 0 to n - 1.
Tensor randperm_(const Tensor& x, RandomStream& stream);
/// Samples `count` positions (i64) from each row of weights [..., n], which must not be negative
/// and need not sum to 1. Without replacement, each position occurs at most once. Errors: a row
/// whose weights are all 0, or that has fewer positive weights than samples.
Tensor multinomial(const Tensor& weights, std::int64_t count, bool replacement,
                   const RandomSource& source);

}  // namespace tessera::ops
