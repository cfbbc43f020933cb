module tessera.evaluation:task_scores;

import tessera.base;
import tessera.text;
import :answer_filters;
import :evaluation_task;
import :stored_answers;
import :task_results;
import :task_texts;

// Scores of what a model answers.

namespace tessera::evaluation {

/// A score of a document, and how much it counts.
struct DocumentScore {
  double value = 0;
  double weight = 1;
};

/// Scores answers by the metrics of a task: for each metric of each chain of filters one.
class TaskMetrics {
 public:
  /// The task must outlive it. Errors (input): a regular expression of the task.
  explicit TaskMetrics(const EvaluationTask& task);

  /// How many scores a document has.
  std::size_t count() const;
  /// The scores of a document. Errors (input): those of AnswerFilters and AnswerMatch; the task's
  /// right answer is none of its choices.
  std::vector<DocumentScore> document(const TaskQuestion& question, const TaskAnswer& answer) const;
  /// The n-th score of all documents.
  TaskScore total(std::size_t number, std::span<const DocumentScore> documents) const;

 private:
  const EvaluationTask& task_;
  std::vector<AnswerFilters> filters_;
  std::vector<AnswerMatch> matches_;  // of each metric
};

}  // namespace tessera::evaluation
