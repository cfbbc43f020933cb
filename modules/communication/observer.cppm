export module tessera.communication:observer;

import tessera.base;
import tessera.calls;

export namespace tessera::collective {

/// Activity of a rank with a communicator.
struct Activity {
  enum class Kind : std::uint8_t {
    issue,         // a call is issued, and its source published
    wait,          // the rank waits for a call that it has issued
    wait_sources,  // and until its peers have read the sources of all of them
  };
  Kind kind = Kind::issue;
  Call call = {};                   // of wait_sources: empty
  std::span<const int> ranks = {};  // the group: global ranks
  std::string_view group = {};      // its name: "" but for a communicator with a purpose of its own
  /// The number of the call in its group, the same on all ranks; of a message, of this rank alone.
  std::uint64_t sequence = 0;
  /// Bytes that the rank must receive; of all_reduce: of its reduced parts and of the gathered
  /// ones.
  std::int64_t bytes = 0;
};
/// "issue", "wait", "wait_sources".
std::string_view name_of(Activity::Kind kind);

/// A call that ran in a stream and not on the rank's thread. Times are nanoseconds of the steady
/// clock.
struct StreamedActivity {
  Activity activity = {};   // its issue
  std::int64_t queued = 0;  // by the rank's thread
  std::int64_t began = 0;   // in the stream
  std::int64_t ended = 0;
  std::int64_t waited_from = 0;  // by the rank's thread; 0: it did not wait
  std::int64_t waited_until = 0;
};

class Engine;

/// Sees what the communicators of a thread do, below everything that uses them, on every transport.
class Observer {
 public:
  Observer() = default;
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;
  virtual ~Observer();

  /// The activity is about to happen; `run` carries it out. A call that is not run is not issued,
  /// and complete.
  virtual void perform(const Activity& activity, const std::function<void()>& run);
  /// A call that was issued under the observer is complete: its destination holds the result, and
  /// no peer reads its source. Called at most once for a call, on the thread that has completed
  /// it if that is the observer's, and before the end of a wait for it. Must not use communicators.
  virtual void completed(const Activity& activity);
  /// A call that the thread has queued in a stream has ended, some time ago.
  virtual void streamed(const StreamedActivity& activity);

 private:
  friend struct Observers;
  friend class ObserverScope;
  std::map<std::pair<const Engine*, std::uint64_t>, Activity> in_flight_;  // by ticket
  Observer* outer_ = nullptr;
};

/// Within the scope `observer` sees the activities of the calling thread, before the observers of
/// outer scopes.
class ObserverScope {
 public:
  explicit ObserverScope(Observer& observer);
  ~ObserverScope();
  ObserverScope(const ObserverScope&) = delete;
  ObserverScope& operator=(const ObserverScope&) = delete;

 private:
  Observer& observer_;
};

/// Within the scope `observer` is the calling thread's only one.
class LoneObserverScope {
 public:
  explicit LoneObserverScope(Observer& observer);
  ~LoneObserverScope();
  LoneObserverScope(const LoneObserverScope&) = delete;
  LoneObserverScope& operator=(const LoneObserverScope&) = delete;

 private:
  Observer* before_;
};

/// Whether the calling thread has an observer.
bool is_observed();
/// Tells the calling thread's observers.
void report_streamed(const StreamedActivity& activity);

/// Observes a stream's thread, for observers of the thread that queued the calls.
class StreamRecord final : public Observer {
 public:
  void perform(const Activity& activity, const std::function<void()>& run) override;
  void completed(const Activity& activity) override;
  /// The calls, in their order, with the times in the stream.
  inline const std::vector<StreamedActivity>& calls() const { return calls_; }

 private:
  std::vector<StreamedActivity> calls_;
};

}  // namespace tessera::collective
