// The communicators' calls and waits as actions, so that modes see them.
module;
#include <functional>
#include <optional>
#include <string_view>
module tessera.dtensor;

import tessera.base;
import tessera.tensor;
import tessera.collective;

namespace tessera {
namespace {

/// Hands what the communicators of a thread do to its modes below distribution. Within an operator
/// that communicates they see nothing of it: the operator is what they have seen.
class CommunicatorActions final : public collective::Observer {
 public:
  void perform(const collective::Activity& activity, const std::function<void()>& run) override {
    if (!modes_installed()) {
      run();
      return;
    }
    using Kind = collective::Activity::Kind;
    Action action{.kind = activity.kind == Kind::issue ? ActionKind::collective : ActionKind::wait,
                  .name = activity.kind == Kind::wait_sources
                              ? std::string_view("readers of sources")
                              : collective::name_of(activity.call.kind),
                  .bytes = activity.bytes,
                  .ranks = activity.ranks};
    tessera::perform(action, run, ModeLevel::below_distribution);
  }
};

/// State of one thread, while it has modes.
struct ThreadActions {
  CommunicatorActions actions;
  collective::ObserverScope scope{actions};
};

std::optional<ThreadActions>& installed_here() {
  thread_local std::optional<ThreadActions> installed;
  return installed;
}

[[maybe_unused]] const bool set = [] {
  set_modes_slot([](bool installed) {
    if (installed) {
      installed_here().emplace();
    } else {
      installed_here().reset();
    }
  });
  return true;
}();

}  // namespace
}  // namespace tessera
