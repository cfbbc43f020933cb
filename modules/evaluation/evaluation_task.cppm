module;
#include <nlohmann/json.hpp>
module tessera.evaluation:evaluation_task;

import tessera.base;

namespace tessera::evaluation {

/// What is asked of a model.
enum class RequestKind : std::uint8_t {
  multiple_choice,        // which of several texts is the likeliest
  loglikelihood,          // how likely a text is, and whether it is the greedy one
  loglikelihood_rolling,  // how likely a whole document is
  generate_until,         // a text
};

/// What a task makes of a document: a member of it, a template in Jinja, or a value.
struct TaskField {
  nlohmann::json value;  // null: there is none
  bool given() const { return !value.is_null(); }
};

/// A step that changes an answer before it is scored.
struct AnswerFilter {
  enum class Kind : std::uint8_t { regex, strip, lower, upper, map, take_first };
  Kind kind = Kind::take_first;
  std::string pattern = {};
  std::int64_t group = 0;         // which of the matches; below 0: from the end
  std::string fallback = {};      // where there is none
  nlohmann::json words = {};      // of map
  nlohmann::json otherwise = {};  // of map; null: nothing
};

/// Answers as they are scored, by a name.
struct FilterChain {
  std::string name = "none";
  std::vector<AnswerFilter> filters = {};
};

/// How an answer is compared.
struct ExactMatch {
  bool ignore_case = false;
  bool ignore_punctuation = false;
  bool ignore_numbers = false;
  std::vector<std::string> ignored = {};  // regular expressions
};

/// A score of each document, and what it becomes for all of them.
struct TaskMetric {
  std::string name;
  bool higher_is_better = true;
  ExactMatch match = {};  // of exact_match
};

/// Where the documents of a task are.
struct TaskData {
  std::map<std::string, std::vector<std::string>> files = {};  // JSONL, by split
  std::string name = {};  // of a dataset that is not in files; empty: it is
};

/// A task of lm-evaluation-harness.
struct EvaluationTask {
  std::string file;
  std::string name;
  RequestKind kind = RequestKind::generate_until;
  TaskData data;
  std::optional<std::string> training_split;
  std::optional<std::string> validation_split;
  std::optional<std::string> test_split;
  TaskField text;
  TaskField target;
  TaskField choice;
  TaskField description;
  TaskField answer_prefix;  // gen_prefix: what an answer begins with
  std::string target_delimiter = " ";
  // Examples with their answers, before the question.
  std::int64_t shots = 0;
  std::optional<std::string> shots_split;
  nlohmann::json shots_documents = {};  // a list, instead of a split
  bool first_shots = false;             // the first ones, not drawn ones
  std::string shots_delimiter = "\n\n";
  std::vector<std::string> until = {};
  std::int64_t most_tokens = 256;
  double temperature = 0;
  std::vector<FilterChain> filters = {};  // at least one
  std::vector<TaskMetric> metrics = {};

  /// The split whose documents are asked.
  const std::string& asked_split() const;
};

/// The task that a YAML file of lm-evaluation-harness describes. Errors (input) that name the file
/// and list all that is wrong: functions of Python, keys and values that are not supported.
EvaluationTask read_evaluation_task(const std::string& file);

}  // namespace tessera::evaluation
