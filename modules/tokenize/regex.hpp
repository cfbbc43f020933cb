// Regular expressions of tokenizers' files, by PCRE2.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text.hpp"

namespace tessera::tokenize {

/// A part of a text that matches, or one between two matches.
struct Match {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  bool matches = false;
};

/// Who wrote a pattern: \s, \d, \w, \h and (?m) differ between the engines.
enum class Dialect {
  ruby,  // Oniguruma, which Hugging Face's tokenizers use: ^ and $ match at every line
  rust,  // as tiktoken
};

/// Safe to use from several threads at once.
class Regex {
 public:
  /// `where` begins the errors (input): the pattern is invalid, or uses what PCRE2 does not have.
  Regex(std::string_view pattern, Dialect dialect, const std::string& where);
  /// A pattern that is the text itself.
  static Regex literal(std::string_view text);

  /// Appends the parts of `text`, valid UTF-8, which cover it without gaps. Positions count from
  /// the beginning of `text` and are moved by `shift`. Error (input): the matches take more steps
  /// than `allowance` has left.
  void find_all(std::string_view text, std::uint32_t shift, Allowance& allowance,
                std::vector<Match>& parts) const;

 private:
  struct State;
  class Search;
  Regex() = default;
  std::shared_ptr<State> state_;
};

/// The pattern in PCRE2's syntax (UTF, UCP, multiline). For tests.
std::string pcre2_pattern(std::string_view pattern, Dialect dialect, const std::string& where);

}  // namespace tessera::tokenize
