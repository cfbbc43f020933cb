export module tessera.evaluation:stored_answers;

import tessera.base;
import tessera.text;

// What a model has answered, in a file.

export namespace tessera::evaluation {

/// What a model answers to a document.
struct TaskAnswer {
  std::vector<text::TextLikelihood> likelihoods = {};  // of the texts that it was asked about
  std::string text = {};                               // or what it generated
};

/// What was answered, for whoever reads the file.
struct StoredQuestion {
  std::string task;
  std::size_t document = 0;
  std::string text;
  std::string target;  // the right answer, a JSON value
};

/// Answers of one model to documents, as lines of JSON in a file that grows while a task is asked:
/// a run that ends early goes on where it was, and one can read what the model said. An answer is
/// found by all that it depends on: the tokens that were asked, and how.
class StoredAnswers {
 public:
  /// Reads what the file has; it need not be there. A line that is damaged, as by a run that was
  /// killed, counts as none. Errors (input): the file cannot be read or written; its answers are of
  /// another model (other files, or files that have changed).
  StoredAnswers(const std::string& file, const text::ModelFiles& model);
  ~StoredAnswers();
  StoredAnswers(const StoredAnswers&) = delete;
  StoredAnswers& operator=(const StoredAnswers&) = delete;

  /// How many lines were damaged.
  std::int64_t damaged() const;
  /// The answer to this; null: there is none yet. As long as nothing is added.
  const TaskAnswer* find(const std::string& asked) const;
  void add(const std::string& asked, const TaskAnswer& answer, const StoredQuestion& question);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::evaluation
