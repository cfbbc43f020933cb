export module tessera.text:token_guesses;

import tessera.base;

// Tokens that may follow a text, which a model checks together.

export namespace tessera::text {

/// What followed the last tokens of a text when they were in it before (Saxena, Prompt Lookup
/// Decoding, 2023): of the places where most of them were, from two to four, the latest. At most
/// `most` tokens; none: the last two were not in it before. A text that repeats itself to its end
/// is continued as if it went on so. Looks at the last 65,536 tokens.
std::vector<std::int64_t> repeated_tokens(std::span<const std::int64_t> tokens, std::int64_t most);

/// How many guesses for a text are worth checking, by how many of the last ones were right.
class GuessCount {
 public:
  /// At most `most`.
  std::int64_t next(std::int64_t most);
  /// So many of `guessed` were right.
  void learn(std::int64_t guessed, std::int64_t right);

 private:
  static constexpr std::int64_t first = 4;

  std::int64_t count_ = first;
  std::int64_t pause_ = 0;  // steps without a guess, now
  std::int64_t longest_pause_ = 0;
};

}  // namespace tessera::text
