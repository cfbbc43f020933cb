export module tessera.optim:clip;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.nn;

export namespace tessera::optim {

/// Treatment of a step whose gradients are not finite: an error, or the step is skipped.
enum class NonFinite : std::uint8_t { error, skip };

/// How gradients are limited. One of the two maxima at most.
struct Clipping {
  double max_norm = 0;   // of all gradients together; 0: any
  double norm = 2;       // which one: 1, 2, infinity, or another p > 0
  double max_value = 0;  // of each element's magnitude; 0: any
  NonFinite nonfinite = NonFinite::error;

  /// Error (input): a number that is negative or NaN, a norm that is not more than 0, both maxima.
  void check() const;
};

/// The norm over the gradients of all parameters together, whatever their meshes and layouts: each
/// element counts once. (sum |g|^p)^(1/p), or for p = infinity the largest |g|; not finite if a
/// gradient is not. The result is the same on every rank; sums are in double. At most one
/// collective of a scalar for each axis of each mesh.
double global_gradient_norm(std::span<const nn::ParameterPointer> parameters, double p = 2);

/// The sum of |g|^p (p = infinity: the largest |g|) as a local tensor (f64, no dims): what a
/// recorded step computes. norm_of_power makes the norm of it. `exact`: the bits do not depend on
/// the layouts of the gradients (ops::exact_sum).
Tensor gradient_norm_power(std::span<const nn::ParameterPointer> parameters, double p = 2,
                           bool exact = false);
double norm_of_power(double power, double p);

/// The sum of x's elements or of their squares as digits that `add` and redistribute add up without
/// rounding (ops::exact_sum): Partial where x is sharded or Partial.
Tensor exact_term(const Tensor& x, ops::ExactTerm term);

/// Factor of the gradients: min(1, max_norm / (norm + 1e-6)); 1 when max_norm is 0 (no
/// clipping).
double clip_factor(double norm, double max_norm);

/// Limits each element of the gradients to [-max_value, max_value]; NaN stays.
void clamp_gradients(std::span<const nn::ParameterPointer> parameters, const Number& max_value);

/// Limits the gradients, for a training loop of your own, and returns their norm before. All ranks
/// call it, after the gradients were reduced. Errors: see Clipping::check; a norm that is not
/// finite with NonFinite::error. With NonFinite::skip the gradients stay then: skip the step.
double clip_gradients(std::span<const nn::ParameterPointer> parameters, const Clipping& clipping);

}  // namespace tessera::optim
