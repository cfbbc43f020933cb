module;
#include <nlohmann/json.hpp>
module tessera.evaluation:answer_filters;

import tessera.base;
import :evaluation_task;

// Answers as they are compared.

namespace tessera::evaluation {

/// A regular expression of Python's, by PCRE2. Matches take a bounded number of steps.
class Pattern {
 public:
  /// Error (input): it is none, or uses what PCRE2 does not have; `where` begins it.
  Pattern(const std::string& pattern, const std::string& where);
  ~Pattern();
  Pattern(Pattern&&) noexcept;

  /// re.findall: each match, or of several groups the first one that is not empty.
  std::vector<std::string> find_all(const std::string& text) const;
  /// Of several groups, where no match has a text in one of them, find_all() has empty texts.
  bool has_several_groups() const;
  /// re.sub with nothing.
  std::string without(const std::string& text) const;

 private:
  struct Match;
  struct State;
  std::vector<Match> matches(const std::string& text) const;
  std::unique_ptr<State> state_;
};

/// The answer after a chain of filters; null: a map has no word for it. Error (input): a pattern.
nlohmann::json filtered(const FilterChain& chain, const std::string& answer,
                        const std::string& where);

/// Whether an answer is one of the texts. Error (input): a pattern.
bool matches_exactly(const ExactMatch& options, const std::string& answer,
                     const std::vector<std::string>& right, const std::string& where);

}  // namespace tessera::evaluation
