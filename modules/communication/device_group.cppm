export module tessera.communication:device_group;

import tessera.base;
import tessera.plugin;
import tessera.device;

export namespace tessera::collective {

/// How collectives of tensors on devices move; the same on all ranks of a group.
enum class DeviceCollectives : std::uint8_t {
  ordered,    ///< by the plugin of the kind "collectives"; reductions along the host's tree
  own_order,  ///< likewise, with reductions of the plugin's where it has them: other bits
  host,       ///< through the host's memory, also where there is a plugin
};

/// Bytes in the device's memory that go to a member of a group, or come from it. What a member
/// sends to itself it receives in the same call.
struct DeviceMessage {
  int member = 0;
  void* data = nullptr;
  std::size_t bytes = 0;  // more than 0
};

/// destination[i] = the reduction over r of sources[r][i], along a binary tree over r: ((0 1) (2
/// 3)) ((4 5) (6 7)). Sums and products of f32, bf16 and f16 are formed in f32 and rounded once;
/// `avg` is the sum times the f32 (f64) reciprocal of the number of sources. The destination is one
/// of the sources, or apart from them.
struct Combination {
  void* destination = nullptr;
  std::span<const void* const> sources = {};
  std::int64_t count = 0;  // elements
  DType type = DType::f32;
  ReduceOp reduce = ReduceOp::sum;
  bool destination_f32 = false;  // the destination is f32, though the sources are bf16 or f16
  bool accumulate = false;       // add to the destination
};
/// Computes it in the host's memory: with the bits that every device must have.
void combine_on_host(const Combination& c);

/// A reduction over a group in an order of the group's own. `count` elements of each member's
/// source are reduced to the destination of all, or, if it is scattered, row r of them to that of
/// member r: its source has as many rows as there are members. The destination may be the source,
/// or this rank's row of it.
struct GroupReduction {
  const void* source = nullptr;
  void* destination = nullptr;
  std::int64_t count = 0;  // elements
  bool scattered = false;
};

/// The ranks of a group on their devices, as one of them uses them: what a plugin of the kind
/// "collectives" implements. It moves bytes between members and reduces elements in the device's
/// memory, and knows no collective: Tessera derives each of them from these functions, and compares
/// the calls of the members. All functions but `abort` and `failure` queue work and return. Work of
/// a queue may wait for work of other members, so the device's other queues move on meanwhile. All
/// members queue what belongs together in one order, in one queue each. A device whose work runs
/// when it is queued waits for the other members there. Errors of queued work are raised by the
/// driver's waits, or named by `failure`.
class DeviceGroup {
 public:
  using Queue = DeviceDriver::Queue;
  DeviceGroup() = default;
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;
  /// Called when nothing is queued any more, or after abort().
  virtual ~DeviceGroup();

  /// Queues messages to and from members. Those of one call travel at once: none waits for
  /// another one. What a member sends to another one arrives there in its order, and is received
  /// with the same numbers of bytes. The memory of receives overlaps nothing.
  virtual void exchange(Queue queue, std::span<const DeviceMessage> sends,
                        std::span<const DeviceMessage> receives) = 0;
  /// Queues a reduction in the device's memory. Nothing travels.
  virtual void combine(Queue queue, const Combination& combination) = 0;

  // Forms of an exchange that a device may do faster. Each returns whether it was queued: the same
  // on all members, always. Without a body of the plugin's, exchange() does it.
  /// `bytes` of each member, one after the other, to `destination` on all of them. `source` may be
  /// this rank's part of the destination.
  virtual bool all_gather(Queue queue, const void* source, void* destination, std::size_t bytes);
  /// `bytes` of member `root` to all; its source may be its destination. Others have no source.
  virtual bool broadcast(Queue queue, const void* source, void* destination, std::size_t bytes,
                         int root);

  /// Queues reductions of elements of the type, whose bits need not be those of combine(). Called
  /// only where the run has chosen them (DeviceCollectives::own_order). Returns whether they were
  /// queued: the same on all members, always. Without a body of the plugin's, exchange() and
  /// combine() do it.
  virtual bool reduce_in_own_order(Queue queue, std::span<const GroupReduction> reductions,
                                   DType type, ReduceOp reduce);

  /// A segment of the device's memory that messages may come from and go to, and its end. Called
  /// for each that there is when the group is made, and by threads that allocate later.
  virtual void register_memory(void* data, std::size_t bytes);
  virtual void unregister_memory(void* data, std::size_t bytes) noexcept;

  /// Ends what is queued as soon as possible, wherever other members are: the run has failed.
  /// Called from any thread, once; only the destructor follows.
  virtual void abort() noexcept = 0;
  /// A problem of the group that no wait of the host has raised; empty: none. Called often while
  /// the host waits for the device, from any thread.
  virtual std::string failure();
};

/// One member's request for a group. All members make it at about the same time.
struct DeviceGroupRequest {
  Device device = {};
  int rank = 0;  // in the group
  int size = 1;
  /// The members' global ranks, in the group's order. A group is another one of the same members if
  /// this rank has been in one before.
  std::span<const int> ranks = {};
  /// What make_id of member 0 has returned, on all members.
  std::span<const std::byte> id = {};
  /// To be called at least ten times a second while `join`, or a function of the group, lets the
  /// host wait for other members: raises an error when one of them has failed, or calls another
  /// function. Valid as long as the group.
  WaitCheck check = {};
};

/// Collectives between the devices of one kind, as a plugin offers them.
struct CollectivesOffer {
  /// Bytes by which the members of a new group find each other, on any machines. Called by member
  /// 0, with its request, which has no id yet.
  std::function<std::vector<std::byte>(const DeviceGroupRequest& request)> make_id;
  /// Returns when all members have called it, or earlier. Errors end the run.
  std::function<std::unique_ptr<DeviceGroup>(const DeviceGroupRequest& request)> join;
  /// Of the library that moves the data, for people: "NCCL 2.28.9". May be empty.
  std::string library = {};
};

/// The plugin kind "collectives", whose name is that of the kind of device:
///     registrar.add<CollectivesPlugin>("cuda", [] { return CollectivesOffer{...}; });
/// Collectives of tensors on such devices use it where it is found, otherwise the host's memory.
/// The factory does not open a device; its errors end the run (a library that is missing).
class CollectivesPlugin {
 public:
  static constexpr plugin::Kind plugin_kind{"collectives"};
  using Factory = std::function<CollectivesOffer()>;
};

}  // namespace tessera::collective
