export module tessera.evaluation:task_results;

import tessera.base;
import tessera.text;

// What a model makes of tasks.

export namespace tessera::evaluation {

/// A metric over all documents.
struct TaskScore {
  std::string metric;
  std::string filter = "none";
  double value = 0;
  std::optional<double> error = std::nullopt;  // the standard error, where it has a closed form
  bool higher_is_better = true;
};

/// What a model makes of a task.
struct TaskResult {
  std::string task;
  std::int64_t documents = 0;
  std::int64_t shots = 0;
  std::vector<TaskScore> scores;
};

/// How a task is asked.
struct TaskOptions {
  std::string folder = {};                           // of data sets: FOLDER/TASK/SPLIT.jsonl
  std::optional<std::int64_t> shots = std::nullopt;  // instead of the task's own number
  std::int64_t limit = 0;                            // documents that are asked at most; 0: all
  std::int64_t batch = 8;                            // texts that are generated at the same time
};

/// What a task asks of a model: made before a model computes, so that what is wrong with a task or
/// its documents ends a run at once. Errors (input): those of read_evaluation_task, templates that
/// cannot be rendered, documents that have not what the task needs.
class PreparedTask {
 public:
  PreparedTask(const std::string& file, const TaskOptions& options);
  ~PreparedTask();
  PreparedTask(PreparedTask&&) noexcept;

  const std::string& name() const;
  /// The scores that lm-evaluation-harness gives the model. Of several copies of the model, each
  /// asks its own documents, and all have the result. Errors (input): a text without tokens.
  TaskResult ask(const text::TextModel& model) const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace tessera::evaluation
