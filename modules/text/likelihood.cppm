export module tessera.text:likelihood;

import tessera.base;
import :text_model;

export namespace tessera::text {

/// The sum of the logarithms of the probabilities of those tokens, after the first one, that
/// `scored` marks, each after all tokens before it. `scored` has as many values as there are
/// tokens. Error (input): more tokens than the model computes.
double log_likelihood(const TextModel& model, std::span<const std::int64_t> tokens,
                      std::span<const std::uint8_t> scored);

}  // namespace tessera::text
