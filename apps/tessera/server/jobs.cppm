export module tessera.app.server:jobs;

import tessera.app.base;
import tessera.text;
import :served_adapters;

// Answers that clients wait for. One thread has the model and makes several at the same time.

export namespace tessera::app {

/// Receives an answer while it is made; the thread that has the model calls the functions.
struct AnswerReceiver {
  std::function<void(const text::TextPart& part)> part;       // with each token
  std::function<void(const text::GeneratedText& whole)> end;  // the last call, or
  std::function<void(const std::exception& error)> failed;    // of kind interrupted: try it again
};

/// What a client waits for: it waits in a queue, then in an engine.
class ModelJob {
 public:
  ModelJob() = default;
  virtual ~ModelJob();
  ModelJob(const ModelJob&) = delete;
  ModelJob& operator=(const ModelJob&) = delete;

  /// The client has gone: no more is made, and nothing is received.
  void cancel() { cancelled_ = true; }
  bool cancelled() const { return cancelled_; }

  /// Gives the job to the engine, whose steps work on it while `wanted` is true: it is asked before
  /// each of them.
  static void begin(const std::shared_ptr<ModelJob>& job, const text::TextModel& model,
                    text::Engine& engine, const std::function<bool()>& wanted);
  /// Ends it, if it has not begun: the server stops.
  void refuse();

 private:
  /// What begin() submits; `self` keeps the job. Nothing: it has ended.
  virtual std::optional<text::EngineRequest> request(const std::shared_ptr<ModelJob>& self,
                                                     const text::TextModel& model,
                                                     const std::function<bool()>& wanted) = 0;
  /// Its client gets this error; of kind interrupted: it may try again.
  virtual void fail_with(const std::exception& error) = 0;

  std::atomic<bool> cancelled_ = false;
};

/// An answer of a text.
class AnswerJob : public ModelJob {
 public:
  AnswerJob(std::vector<std::int64_t> prompt, text::GenerationOptions options,
            std::chrono::seconds most_seconds, AnswerReceiver receiver,
            AdapterUse adapter = nullptr);

 private:
  std::optional<text::EngineRequest> request(const std::shared_ptr<ModelJob>& self,
                                             const text::TextModel& model,
                                             const std::function<bool()>& wanted) override;
  void fail_with(const std::exception& error) override { receiver_.failed(error); }
  void end(text::Continuation& continuation, bool wanted, const std::exception* error);

  std::vector<std::int64_t> prompt_;
  text::GenerationOptions options_;
  std::chrono::seconds most_seconds_;
  AnswerReceiver receiver_;
  AdapterUse adapter_;  // null: the model's own answer
};

/// The jobs that wait, in their order.
class JobQueue {
 public:
  explicit JobQueue(std::size_t most);
  ~JobQueue();

  /// Adds all of them or none. False: there are too many, or the queue is closed.
  bool add(const std::vector<std::shared_ptr<ModelJob>>& jobs);
  bool add(const std::shared_ptr<ModelJob>& job) { return add(std::vector{job}); }
  /// Cancels it. If it waits, its place is free at once.
  void leave(const std::shared_ptr<ModelJob>& job);
  /// The next one; null where none comes within this time, or the queue is closed.
  std::shared_ptr<ModelJob> take(std::chrono::milliseconds within);
  /// Refuses those that wait and all later ones.
  void close();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Tasks, one after the other in a thread of their own.
class TaskThread {
 public:
  explicit TaskThread(std::size_t most);
  /// Those that have not begun are left out.
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  /// False: as many as may wait are waiting. A task does not throw.
  bool add(std::function<void()> task);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Calls `force` unless it goes within `seconds` after `asked` has become true.
class LastMoment {
 public:
  LastMoment(std::chrono::milliseconds within, std::function<bool()> asked,
             std::function<void()> force);
  ~LastMoment();
  LastMoment(const LastMoment&) = delete;
  LastMoment& operator=(const LastMoment&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::app
