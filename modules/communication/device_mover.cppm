module tessera.communication:device_mover;

import tessera.base;
import tessera.device;
import tessera.calls;
import tessera.ranks;
import :communicator;
import :device_group;
import :engine;
import :group_view;
import :operation;

namespace tessera::collective {

/// Moves the calls of a group between the memories of its ranks' devices, in one stream. What moves
/// follows from the call's form. The engine of the group announces each call to the other members,
/// without data, so that calls are compared, recorded and observed as those of the host.
class DeviceMover {
 public:
  /// `own_order`: whether reductions may be the group's own.
  DeviceMover(Engine& engine, Stream stream, std::unique_ptr<DeviceGroup> group, bool own_order);
  /// What is queued is done, or the group was aborted.
  ~DeviceMover();
  DeviceMover(const DeviceMover&) = delete;
  DeviceMover& operator=(const DeviceMover&) = delete;

  /// Queues the call. Its memory is the device's.
  void issue(const Operation& operation);

  // Messages: `call` is CallKind::send or receive, its root the other member. The host tells the
  // receiver of each; what one member sends to another one moves in that order.
  /// Queues it. The memory must stay until the stream has sent it: see keep().
  void send(const Call& call, const void* source, int tag);
  /// Queues it, when the sender has queued it; the host waits for that. What the sender has sent
  /// before with other tags is received too, and kept. Errors: another type or count.
  void receive(const Call& call, void* destination, int tag);
  /// Keeps memory until the message that was queued last has been sent.
  void keep(std::shared_ptr<void> memory);

  const Stream& stream() const { return stream_; }
  /// The first call that the device has not completed. Any thread may call it.
  struct PendingCall {
    Call call;
    std::uint64_t sequence = 0;
    int peer = 0;  // global: a member that has not issued it, or else the next one
  };
  std::optional<PendingCall> oldest();
  /// See DeviceGroup. Any thread may call them.
  void abort() noexcept;
  std::string failure();
  const Engine& engine() const { return engine_; }

 private:
  struct InFlight {
    Call call;
    AnnouncedCall announced;
    std::optional<Event> done;  // none: its work is being queued
    int peer = -1;              // of a message: the other member
    std::shared_ptr<void> kept{};
  };
  /// A message that has come before the one that was asked for.
  struct EarlyMessage {
    int from;
    int tag;
    Call call;
    std::unique_ptr<DeviceMemory> memory;
  };
  /// Tells the group of the segments of its device.
  class Registration;

  void copy(const Operation& op, Read (*read)(const ReadRequest&), bool for_all, bool results);
  /// Where what all ranks read alike is a whole form of the group's, in one array. Whether it was
  /// queued.
  bool copy_whole(const Operation& op, const Segment& array, Read (*read)(const ReadRequest&),
                  bool results);
  void reduce(const Operation& op);
  /// Where all arrays are reduced whole, or in rows of one length. Whether it was queued.
  bool reduce_in_own_order(const Operation& op);
  /// Copies what is sent where something is received, or copied, in its place. The memory stays
  /// until the messages are queued.
  std::unique_ptr<DeviceMemory> stage_overwritten(std::vector<DeviceMessage> written);
  void forget_completed();
  void queue_message(const Call& call, void* data);

  Engine& engine_;
  const GroupView& view_;
  Stream stream_;
  std::unique_ptr<DeviceGroup> group_;
  const bool own_order_;
  std::shared_ptr<Registration> registration_;
  std::atomic<bool> aborted_{false};
  std::mutex mutex_;
  std::deque<InFlight> in_flight_;
  std::vector<EarlyMessage> early_;
  std::vector<std::shared_ptr<void>> sent_;  // memory of messages that have left
  std::uint64_t messages_ = 0;               // queued so far
  std::vector<DeviceMessage> sends_;         // scratch
  std::vector<DeviceMessage> receives_;
  std::vector<DeviceMessage> own_;  // copies within this rank, by destination
  std::vector<const void*> own_sources_;
};

}  // namespace tessera::collective
