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

/// A chain of filters, ready for answers.
class AnswerFilters {
 public:
  /// Errors (input): a regular expression; `where` begins them.
  AnswerFilters(const FilterChain& chain, const std::string& where);

  const std::string& name() const { return name_; }
  /// The answer after all of them; null: a map has no word for it. Errors (input): an expression
  /// takes too many steps; a match that is not there.
  nlohmann::json of(const std::string& answer) const;

 private:
  struct Step {
    AnswerFilter filter;
    std::optional<Pattern> pattern;
  };
  std::string selected(const Step& step, const std::string& answer) const;

  std::string name_;
  std::string where_;
  std::vector<Step> steps_;
};

/// Compares answers with texts.
class AnswerMatch {
 public:
  /// Errors (input): a regular expression; `where` begins them.
  AnswerMatch(const ExactMatch& options, const std::string& where);
  /// Error (input): an expression takes too many steps.
  bool is_one_of(const std::string& answer, const std::vector<std::string>& right) const;

 private:
  std::string compared(std::string text) const;

  ExactMatch options_;
  std::vector<Pattern> ignored_;
};

}  // namespace tessera::evaluation
