module tessera.communication:remote_sender;

import tessera.base;
import tessera.calls;
import tessera.machines;
import :group_view;
import :operation;

namespace tessera::collective {

/// Sends what this rank publishes to the machines of the group's other members, with the bytes that
/// the members there read.
class RemoteSender {
 public:
  explicit RemoteSender(const GroupView& group) : group_(group) {}
  /// A call that has been published.
  void send_call(const Operation& op) const;
  /// This rank's piece, which the first phase of the call has reduced.
  void send_result(const Operation& op) const;
  /// A message to a member on another machine. It is copied: a send never waits. Without a source,
  /// its data is not sent.
  void send_message(const Call& call, const void* source, int to, int tag,
                    std::uint64_t order) const;

 private:
  class Body;
  /// The head of a message about a call of the group.
  Writer head(Topic topic, std::uint64_t sequence, const Call& call) const;
  void send(const Operation& op, const GroupView::Machine& machine, Topic topic,
            const Body& body) const;

  const GroupView& group_;
};

}  // namespace tessera::collective
