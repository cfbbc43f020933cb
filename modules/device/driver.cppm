export module tessera.device:driver;

import tessera.base;

export namespace tessera {

/// Facts of a device.
struct DeviceProperties {
  std::string description;  // for people: "adversary 0"
  std::size_t memory = 0;   // bytes that it has for tensors; 0: not known
  /// How far results may be from those of the CPU in f32, as a share of 1 + their value; in other
  /// floating types as many times their epsilon. 0: the same bits.
  double tolerance = 0;
};

/// Between which memories a copy goes. `on_device`: of one device, or of two devices of one kind.
/// `from_pinned`: to the device, from memory of allocate_pinned().
enum class CopyKind : std::uint8_t { to_device, to_host, on_device, from_pinned };

/// A look at whether a wait of the host is in vain, which then raises an error.
using WaitCheck = std::function<void()>;

/// One device, as its kind implements it: memory, queues of work, marks in queues, copies. Stream
/// order is the only order: what is queued runs after what was queued before in the same queue, and
/// after the marks that the queue waits for; nothing else is promised. Every function may be called
/// from several threads. Errors are of class Error; those of queued work are raised by the next
/// synchronize() or await().
class DeviceDriver {
 public:
  /// A queue of the driver's; null: the default queue, which always exists.
  using Queue = void*;
  /// A place in a queue. Marks of all devices of one kind can be waited for on each of them.
  using Mark = void*;

  DeviceDriver() = default;
  DeviceDriver(const DeviceDriver&) = delete;
  DeviceDriver& operator=(const DeviceDriver&) = delete;
  virtual ~DeviceDriver();
  virtual DeviceProperties properties() const = 0;

  /// Memory aligned to at least 512 bytes, not initialised; null: there is none left. The
  /// allocator above requests large pieces and keeps them, so this may be slow.
  virtual void* allocate(std::size_t bytes) = 0;
  /// Nothing that was queued uses the memory any more.
  virtual void free(void* data, std::size_t bytes) noexcept = 0;
  /// Memory of the host that the device reaches by itself (page-locked, where it has such memory),
  /// aligned to at least 512 bytes; null: there is none left. May be slow, as allocate() may.
  /// Without a body of the driver's: ordinary memory.
  virtual void* allocate_pinned(std::size_t bytes);
  virtual void free_pinned(void* data, std::size_t bytes) noexcept;

  virtual Queue make_queue() = 0;
  /// Frees a queue. Calls that are queued there still run.
  virtual void free_queue(Queue queue) noexcept = 0;
  /// Returns when all work of the queue is done. While it waits it calls `check`, on the calling
  /// thread and at least ten times a second, and ends with the error that `check` raises: what is
  /// queued stays queued, also behind work that never ends.
  virtual void synchronize(Queue queue, const WaitCheck& check) = 0;

  virtual Mark make_mark() = 0;
  virtual void free_mark(Mark mark) noexcept = 0;
  /// Places the mark after all work of the queue; a mark that was placed before moves there.
  virtual void record(Mark mark, Queue queue) = 0;
  /// Calls that are queued from now on wait until the mark's present place is reached. A mark that
  /// was never placed counts as reached.
  virtual void wait(Queue queue, Mark mark) = 0;
  /// Whether the mark's place is reached. Never blocks.
  virtual bool reached(Mark mark) = 0;
  /// Returns when the mark's place is reached. Calls `check` as synchronize() does.
  virtual void await(Mark mark, const WaitCheck& check) = 0;

  /// Queues a copy. `to_device`: the host's memory is read before the function returns. The other
  /// kinds read and write when the queue has reached the copy.
  virtual void copy(Queue queue, void* to, const void* from, std::size_t bytes, CopyKind kind) = 0;
  /// Queues writing `count` elements of `width` bytes (1, 2, 4 or 8).
  virtual void fill(Queue queue, void* to, const void* element, std::size_t width,
                    std::int64_t count) = 0;
  /// Queues a function of the host. It must not call the driver. It may block until functions have
  /// run that other processes have queued (a collective), so a device moves its other queues on
  /// meanwhile.
  virtual void launch(Queue queue, std::function<void()> function) = 0;

  /// Work that was recorded once and is queued as one piece, with the same memory and numbers.
  using Graph = void*;
  /// Whether there are graphs. Without a body of the driver's: no, and the others are not called.
  virtual bool has_graphs() const;
  /// What the calling thread queues in the queue from now on (kernels, fills, copies on the device)
  /// is recorded and does not run. The other functions of this interface must not be called on the
  /// queue before end_graph(), and no memory is allocated or freed meanwhile.
  virtual void begin_graph(Queue queue);
  /// Ends it; the graph is the caller's.
  virtual Graph end_graph(Queue queue);
  virtual void launch_graph(Queue queue, Graph graph);
  /// What was launched still runs.
  virtual void free_graph(Graph graph) noexcept;

  /// Called again and again while the host waits for other ranks. A device that runs only on the
  /// host's threads moves its queues on, and returns whether it has work left; others need no body.
  /// It does not wait for the end of a function, which may wait for the rank that calls this.
  virtual bool poll();
};

/// The memory of a device, in bytes.
struct DeviceCapacity {
  std::size_t free = 0;  // of what other processes leave now
  std::size_t total = 0;
};

/// A kind of device: how many there are, and how one is opened (at its first use).
struct DeviceKind {
  std::string name;
  int count = 1;
  std::function<std::unique_ptr<DeviceDriver>(int index)> open;
  /// Its memory, without opening it; null or no answer: unknown.
  std::function<std::optional<DeviceCapacity>(int index)> memory = {};
  /// Several ranks may use one device without being told to.
  bool shared = false;
};

/// Adds a kind for the life of the process. Errors: the name exists or is not a word; there are
/// seven already.
DeviceType register_device_kind(DeviceKind kind);
/// The kind of this name, if it is registered (or "cpu", "meta").
std::optional<DeviceType> device_type(std::string_view name);
/// "cpu", "meta", and the names of the registered kinds, in the order of their numbers.
std::vector<std::string> device_type_names();
/// How many devices of the kind there are.
int device_count(DeviceType type);
/// The device's memory, which is not opened for it; no answer: unknown, as that of "cpu" and
/// "meta".
std::optional<DeviceCapacity> device_memory(Device device);
/// The device of the kind for the rank with this number among `ranks` ranks of its machine. Error
/// (input): there are more ranks than devices, which are not shared.
Device device_for_rank(DeviceType type, int number, int ranks);
/// "cpu", "meta", "adversary:0".
std::string to_string(Device device);
/// Errors: the meta device, which has no memory; a device that does not exist.
DeviceDriver& driver_of(Device device);
/// Calls poll() of every device that is open. Whether one has work left.
bool poll_devices();

/// Errors (input): the device does not exist.
void check_device(Device device);

}  // namespace tessera
