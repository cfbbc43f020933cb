export module tessera.conformance:call_kinds;

import tessera.base;
import tessera.tensor;
import tessera.collective;

// Records the calls that communicators send.

export namespace tessera::conformance {

/// Which kinds of calls the communicators of this rank issue.
class CallKinds final : public collective::Observer {
 public:
  void perform(const collective::Activity& activity, const std::function<void()>& run) override {
    if (activity.kind == collective::Activity::Kind::issue) {
      kinds.insert(kind_of(activity.call.kind));
    }
    run();
  }
  std::set<Communicates> kinds;

 private:
  /// Declaration that an operator needs which issues such a call.
  static Communicates kind_of(collective::CallKind kind) {
    using collective::CallKind;
    switch (kind) {
      case CallKind::all_reduce:
      case CallKind::all_reduce_segments:
        return Communicates::all_reduce;
      case CallKind::all_gather:
      case CallKind::all_gather_segments:
        return Communicates::all_gather;
      case CallKind::reduce_scatter:
      case CallKind::reduce_scatter_segments:
        return Communicates::reduce_scatter;
      case CallKind::all_to_all:
      case CallKind::all_to_all_counts:
      case CallKind::shift:
      case CallKind::send:  // of messages that all ranks exchange
      case CallKind::receive:
        return Communicates::all_to_all;
      case CallKind::broadcast:
        return Communicates::broadcast;
      default:
        return Communicates::planned;  // no operator with a group may declare it
    }
  }
};

}  // namespace tessera::conformance
