export module tessera.text:likelihood;

import tessera.base;
import :sampling;
import :text_model;

export namespace tessera::text {

/// The sum of the logarithms of the probabilities of those tokens, after the first one, that
/// `scored` marks, each after all tokens before it. `scored` has as many values as there are
/// tokens. Error (input): more tokens than the model computes.
double log_likelihood(const TextModel& model, std::span<const std::int64_t> tokens,
                      std::span<const std::uint8_t> scored);

/// Of each token after the first one, how likely it is after all tokens before it, and so many of
/// the likeliest in its place. Nothing that is kept for texts is lost. Errors (input): more tokens
/// than the model computes; a token that it does not have.
std::vector<TokenLikelihoods> prompt_likelihoods(const TextModel& model,
                                                 std::span<const std::int64_t> tokens,
                                                 std::int64_t likeliest);

}  // namespace tessera::text
