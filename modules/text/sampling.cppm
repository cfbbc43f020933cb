export module tessera.text:sampling;

import tessera.base;

// Which token follows, by the logits of all tokens.

export namespace tessera::text {

/// Settings with the meaning and the order that they have in transformers: the penalty first, then
/// the temperature, top_k, top_p and min_p.
struct SamplingOptions {
  double temperature = 0.8;       // 0: always the likeliest token
  std::int64_t top_k = 0;         // sample among the k likeliest; 0: among all
  double top_p = 1;               // among the likeliest whose probabilities reach this sum
  double min_p = 0;               // at least so likely as this, times the likeliest
  double repetition_penalty = 1;  // of tokens that are there already; above 1: they are less likely

  /// Error (input) that begins with `thing`: a value outside its range.
  void check(const std::string& thing) const;
};

/// A token that may follow.
struct Candidate {
  std::int64_t token = 0;
  double probability = 0;
};

/// The tokens that may follow, in the order of their ids; their probabilities have the sum 1.
/// `before`: the tokens so far. Error: a logit is not finite.
std::vector<Candidate> candidates(std::vector<double> logits, std::span<const std::int64_t> before,
                                  const SamplingOptions& options);

/// One of them; `noise` is uniform in [0, 1).
std::int64_t choose(std::span<const Candidate> from, double noise);

}  // namespace tessera::text
