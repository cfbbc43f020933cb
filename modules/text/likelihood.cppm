export module tessera.text:likelihood;

import tessera.base;
import :text_model;
import :text_engine;

export namespace tessera::text {

/// The sum of the logarithms of the probabilities of those tokens, after the first one, that
/// `scored` marks, each after all tokens before it. `scored` has as many values as there are
/// tokens. Error (input): more tokens than the model computes.
double log_likelihood(const TextModel& model, std::span<const std::int64_t> tokens,
                      std::span<const std::uint8_t> scored);

/// Tokens, of which those from `first` on are scored; the first token is not.
struct ScoredText {
  std::vector<std::int64_t> tokens;
  std::int64_t first = 1;
};

/// How likely the scored tokens of a text are, each after all tokens before it.
struct TextLikelihood {
  double log_probability = 0;  // the sum of their logarithms
  bool greedy = true;          // each is the likeliest token in its place
};

/// Of so many texts, which the engine computes together: beginnings that texts share are computed
/// once, so those with the same beginning should follow each other. `text` makes the n-th one when
/// it is needed, `done` receives its likelihood. The engine has no other requests. Errors (input):
/// more tokens than the model computes; those of Engine::submit.
void score_texts(const TextModel& model, Engine& engine, std::size_t texts,
                 const std::function<ScoredText(std::size_t)>& text,
                 const std::function<void(std::size_t, const TextLikelihood&)>& done);

}  // namespace tessera::text
