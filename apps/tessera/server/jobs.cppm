export module tessera.app.server:jobs;

import tessera.app.base;
import tessera.app.generation;

// Answers that clients wait for. One thread has the model and makes them one after the other.

export namespace tessera::app {

/// An answer that is being made. The client's thread reads it.
class AnswerJob {
 public:
  AnswerJob(std::vector<std::int64_t> prompt, GenerationOptions options,
            std::chrono::seconds most_seconds);
  ~AnswerJob();

  /// Waits for text that was not read yet, or the end. Empty: the answer has ended.
  std::string read();
  /// Waits for the end. Error: what stopped it.
  GeneratedText wait();
  /// The client has gone: no more is made.
  void cancel();

  /// Makes the answer, while `wanted` is true; who waits learns of an error. It has ended
  /// afterwards.
  void run(const TextModel& model, Decoding& decoding, const std::function<bool()>& wanted);
  /// Ends it with this error, if it has not begun.
  void refuse(const std::string& why);

 private:
  bool add(const std::string& part);
  void end(GeneratedText text, std::optional<std::string> problem);

  struct State;
  std::vector<std::int64_t> prompt_;
  GenerationOptions options_;
  std::chrono::seconds most_seconds_;
  std::unique_ptr<State> state_;
};

/// The jobs that wait, in their order.
class JobQueue {
 public:
  explicit JobQueue(std::size_t most);
  ~JobQueue();

  /// False: there are too many, or the queue is closed.
  bool add(std::shared_ptr<AnswerJob> job);
  /// The next one; null where none comes within this time, or the queue is closed.
  std::shared_ptr<AnswerJob> take(std::chrono::milliseconds within);
  /// Refuses those that wait and all later ones.
  void close();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::app
