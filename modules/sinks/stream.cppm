export module tessera.sinks:stream;

import tessera.base;
import :event;
import :feed;

export namespace tessera::sinks {

/// What one run tells, for all of its sinks. Threads may tell at the same time.
class EventStream {
 public:
  void add(std::unique_ptr<SinkFeed> feed);
  /// Now. A text of more than 64 KiB is cut.
  void tell(EventContent content);
  /// The last event, after which no other one is taken. Waits for the sinks, all at the same time.
  void finish(RunEnd end);
  /// In the order of add().
  std::vector<FeedCounts> counts() const;

 private:
  std::vector<std::unique_ptr<SinkFeed>> feeds_;
  std::atomic<bool> ended_{false};
};

}  // namespace tessera::sinks
