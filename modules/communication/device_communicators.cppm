module tessera.communication:device_communicators;

import tessera.base;
import tessera.device;
import tessera.calls;
import :communicator;
import :work;

namespace tessera::collective {

class WorldState;

/// The communicators of a rank whose data moves between devices, and what is in flight there. Which
/// groups have one is decided by all members alike: each tells the others whether it has a plugin.
class DeviceCommunicators {
 public:
  explicit DeviceCommunicators(WorldState& state);
  DeviceCommunicators(const DeviceCommunicators&) = delete;
  DeviceCommunicators& operator=(const DeviceCommunicators&) = delete;
  ~DeviceCommunicators();

  /// See World::communicator_on.
  Communicator* find(Device device, std::span<const int> ranks, std::string_view name);

  // What waits for devices look at; any thread may call them.
  struct PendingCall {
    Call call;
    std::uint64_t sequence = 0;
    int peer = 0;  ///< global: for whom the device may wait
    std::string group;
  };
  /// A call that a device has not completed: of each group the first one, of all groups any.
  std::optional<PendingCall> oldest();
  /// A problem of a device's group that no wait has raised; empty: none.
  std::string failure();
  /// The run has failed: ends what is queued.
  void abort() noexcept;

  /// What was queued is done. The communicators end later.
  void close();

 private:
  struct Entry;
  void agree(Entry& entry, const std::string& kind);

  WorldState& state_;
  std::mutex mutex_;  // held while members agree
  std::vector<std::unique_ptr<Entry>> entries_;
  std::mutex movers_mutex_;
  std::vector<DeviceMover*> movers_;
};

}  // namespace tessera::collective
