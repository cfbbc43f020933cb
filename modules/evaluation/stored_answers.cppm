export module tessera.evaluation:stored_answers;

import tessera.base;
import tessera.text;

// What a model has answered, in a file.

export namespace tessera::evaluation {

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
  /// The answer to this, a JSON value; none: there is none yet.
  std::optional<std::string> find(const std::string& asked) const;
  /// Writes an answer, with what else a reader may want to know, both JSON values.
  void add(const std::string& asked, const std::string& answer, const std::string& about);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::evaluation
