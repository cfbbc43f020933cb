export module tessera.sinks:feed;

import tessera.base;
import :event;
import :sink;

export namespace tessera::sinks {

/// What a sink may cost.
struct FeedLimits {
  // What waits in the queue. Beyond it, the oldest events are dropped, but for starts and ends.
  std::size_t events = 4096;
  std::size_t bytes = std::size_t{8} << 20;
  // What the sink gets at once.
  std::size_t batch = 512;
  std::size_t batch_bytes = std::size_t{1} << 20;
  double pause = 0.2;         // seconds between two looks at the queue
  double first_retry = 0.25;  // seconds after a sink was not available; it doubles up to
  double longest_retry = 30;
  int tries = 10;  // of events without a start or an end; then they are dropped
};

/// What became of the events that a sink was told.
struct FeedCounts {
  std::uint64_t told = 0;
  std::uint64_t delivered = 0;
  std::uint64_t dropped = 0;      // the queue was full
  std::uint64_t refused = 0;      // the sink failed with them
  std::uint64_t undelivered = 0;  // were left at the end
  bool hangs = false;             // the sink did not return at the end
  std::uint64_t lost() const { return dropped + refused + undelivered; }
};

/// A sink with its thread and its queue. Whoever tells never waits for it.
class SinkFeed {
 public:
  /// `name` begins its warnings: "sinks[0] (prometheus)". Error (run): no thread can be started.
  SinkFeed(std::string name, std::unique_ptr<Sink> sink, const FeedLimits& limits = {});
  SinkFeed(const SinkFeed&) = delete;
  SinkFeed& operator=(const SinkFeed&) = delete;
  ~SinkFeed();

  /// Puts an event into the queue: a lock and no system call but where the queue is full.
  void tell(const std::shared_ptr<const Event>& event);
  /// No further events are told; the sink is given what there is. `most`: seconds, if its patience
  /// is longer.
  void end(double most = no_limit);
  /// Ends it, waits until its patience is over, and warns of what was lost. The thread of a sink
  /// that does not return is left alone, with what it uses.
  void finish();
  FeedCounts counts() const;

  static constexpr double no_limit = 1e9;

 private:
  class State;
  std::shared_ptr<State> state_;
  bool finished_ = false;
};

}  // namespace tessera::sinks
