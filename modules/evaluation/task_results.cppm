export module tessera.evaluation:task_results;

import tessera.base;
import tessera.text;
import :stored_answers;

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

/// Whether questions are asked in a conversation, by the model's chat template.
struct TaskChat {
  bool asked = false;
  bool one_turn = false;           // examples are a part of the question, not turns
  std::string template_file = {};  // empty: the tokenizer's
};

/// How a task is asked.
struct TaskOptions {
  std::string folder = {};                           // of data sets: FOLDER/TASK/SPLIT.jsonl
  std::optional<std::int64_t> shots = std::nullopt;  // instead of the task's own number
  std::int64_t limit = 0;                            // documents that are asked at most; 0: all
  std::string system = {};                           // what comes before the task's description
  TaskChat chat = {};
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
  /// asks its own documents, and all have the result. The engine has no other requests. `kept`:
  /// answers that are there already, and where the others go; none: nothing is kept. Errors
  /// (input): a text without tokens; answers that are longer than the model is meant for; a
  /// conversation that the template does not allow.
  TaskResult ask(const text::TextModel& model, text::Engine& engine,
                 StoredAnswers* kept = nullptr) const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace tessera::evaluation
