export module tessera.conformance:call_kinds;

import tessera.base;
import tessera.tensor;
import tessera.collective;

// Records the calls that communicators send.

export namespace tessera::conformance {

/// Which kinds of calls the communicators of this rank issue; of variants, what they are variants
/// of.
class CallKinds final : public collective::Observer {
 public:
  void perform(const collective::Activity& activity, const std::function<void()>& run) override {
    if (activity.kind == collective::Activity::Kind::issue) {
      kinds.insert(collective::base_of(activity.call.kind));
    }
    run();
  }
  std::set<collective::CallKind> kinds;
};

}  // namespace tessera::conformance
