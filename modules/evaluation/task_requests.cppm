module tessera.evaluation:task_requests;

import tessera.base;
import tessera.tokenize;
import tessera.text;
import :evaluation_task;
import :task_results;
import :task_texts;

// What a model is asked, in tokens, as lm-evaluation-harness asks models of transformers.

namespace tessera::evaluation {

/// What a document asks of a model: the likelihoods of texts, or an answer.
struct TaskRequest {
  std::vector<text::ScoredText> scored;
  std::vector<std::int64_t> prompt;
};

/// Makes requests of questions.
class TaskRequests {
 public:
  /// All must outlive it. Errors (input): questions are asked in a chat, and the model has no
  /// template; answers are longer than the model is meant for.
  TaskRequests(const text::TextModel& model, const EvaluationTask& task, const TaskChat& chat);
  ~TaskRequests();

  /// Errors (input): the template does not allow the messages; a text has nothing before it, and
  /// the tokenizer has no token that begins texts.
  TaskRequest request(const TaskQuestion& question) const;
  /// How many texts it scores.
  std::size_t count(const TaskQuestion& question) const;
  /// The answer as it is scored: cut before the first of the task's stops.
  std::string answer(const text::GeneratedText& text) const;
  /// How answers are generated.
  text::GenerationOptions generation(std::int64_t batch) const;

 private:
  using Tokens = std::vector<std::int64_t>;

  std::string context(std::span<const TaskMessage> messages) const;
  std::string delimiter() const;
  Tokens encoded(std::string_view text, bool special) const;
  std::int64_t prefix() const;
  text::ScoredText after(std::string_view context, const std::string& continuation) const;
  std::vector<text::ScoredText> windows(const std::string& document) const;
  text::ScoredText cut(Tokens tokens, std::int64_t first) const;
  Tokens prompt(const std::string& context) const;

  const text::TextModel& model_;
  const EvaluationTask& task_;
  const tokenize::Tokenizer& tokenizer_;
  TaskChat chat_;
  std::optional<text::ChatFormat> format_;  // none: messages are joined
};

}  // namespace tessera::evaluation
