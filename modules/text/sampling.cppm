export module tessera.text:sampling;

import tessera.base;

// Which token follows, by the logits of all tokens.

export namespace tessera::text {

/// The tokens of a text so far.
struct TextTokens {
  std::span<const std::int64_t> all = {};
  std::size_t prompt = 0;  // so many of them, the first ones, are the prompt
};

/// Settings with the meaning and the order that they have in transformers and in servers: what is
/// added to single logits first, then the penalties, the temperature, top_k, top_p and min_p.
struct SamplingOptions {
  double temperature = 0.8;       // 0: always the likeliest token
  std::int64_t top_k = 0;         // sample among the k likeliest; 0: among all
  double top_p = 1;               // among the likeliest whose probabilities reach this sum
  double min_p = 0;               // at least so likely as this, times the likeliest
  double repetition_penalty = 1;  // of tokens that are there already; above 1: they are less likely
  double frequency_penalty = 0;   // subtracted once for each time that a token was generated
  double presence_penalty = 0;    // subtracted once where a token was generated
  std::map<std::int64_t, double> logit_bias = {};  // added to the logits of these tokens

  /// Error (input) that begins with `thing`: a value outside its range.
  void check(const std::string& thing) const;
};

/// A token that may follow.
struct Candidate {
  std::int64_t token = 0;
  double probability = 0;
};

/// The tokens that may follow, in the order of their ids; their probabilities have the sum 1.
/// `only`: those that may follow, by their ids; null: all. Errors: a logit is not finite; (input)
/// logit_bias names a token that has no logit.
std::vector<Candidate> candidates(std::vector<double> logits, const TextTokens& before,
                                  const SamplingOptions& options,
                                  const std::vector<bool>* only = nullptr);

/// One of them; `noise` is uniform in [0, 1).
std::int64_t choose(std::span<const Candidate> from, double noise);

/// How likely the model finds a token, before any setting of the sampling.
struct TokenLikelihood {
  std::int64_t token = 0;
  double log_probability = 0;
};

/// The same of a token of a text, and of those that the model finds likeliest in its place.
struct TokenLikelihoods {
  TokenLikelihood own;
  std::vector<TokenLikelihood> likeliest;  // the likeliest one first
};

/// Of a token, and of so many of the likeliest (equally likely ones in the order of their ids), or
/// of all where there are fewer. Error (input): the token has no logit.
TokenLikelihoods likelihoods_of(std::span<const double> logits, std::int64_t token,
                                std::int64_t likeliest);

}  // namespace tessera::text
