export module tessera.device:stream;

import tessera.base;
import :driver;

export namespace tessera {

/// Watches a wait of the host for a device other than the CPU.
class DeviceWait {
 public:
  DeviceWait() = default;
  DeviceWait(const DeviceWait&) = delete;
  DeviceWait& operator=(const DeviceWait&) = delete;
  virtual ~DeviceWait();
  /// Called again and again until the wait ends, and once more then. Raises an error where the
  /// wait was in vain.
  virtual void look() = 0;
};
/// Set by the module that connects the ranks, when the library is loaded. `make` returns what
/// watches a wait of the calling thread that begins now; null: nobody does.
void set_device_wait(std::unique_ptr<DeviceWait> (*make)());

class Event;
/// Blocks the host until all streams of the device have done what was queued.
void synchronize(Device device);

/// An ordered queue of work of a device: what is queued runs in order; streams are ordered among
/// each other by events only. A cheap value: copies are the same stream. The default stream of the
/// CPU is the calling thread; each of its further streams is a thread.
class Stream {
 public:
  /// The default stream of the CPU.
  Stream() = default;
  /// A new stream; its work still runs when the last copy of it is gone.
  static Stream make(Device device);
  static Stream default_of(Device device);

  inline Device device() const { return state_ ? state_->device : cpu; }
  /// The driver's own queue, for kernels; null: the default one.
  inline DeviceDriver::Queue native() const { return state_ ? state_->queue : nullptr; }
  inline bool is_default() const { return native() == nullptr; }

  /// Queues a function of the host, which must not use devices.
  void launch(std::function<void()> function) const;
  /// Calls that are queued from now on run after the event. Error: the event is of another kind of
  /// device.
  void wait(const Event& event) const;
  /// Blocks the host until all is done that was queued. Raises the first error of it, and that of
  /// the world where another rank has failed meanwhile (DeviceWait).
  void synchronize() const;
  /// Likewise, of a stream that writes memory of the host: where it fails, `written` is kept for
  /// the life of the process, as the device may write there later.
  template <class T>
  void synchronize_into(const T& written) const {
    try {
      synchronize();
    } catch (...) {
      keep_forever(std::make_shared<T>(written));
      throw;
    }
  }

  /// Queues a copy of bytes; see DeviceDriver::copy.
  void copy(void* to, const void* from, std::size_t bytes, CopyKind kind) const;
  void fill(void* to, const void* element, std::size_t width, std::int64_t count) const;

  friend inline bool operator==(const Stream& a, const Stream& b) {
    return a.device() == b.device() && a.native() == b.native();
  }

 private:
  friend void synchronize(Device device);
  static void keep_forever(std::shared_ptr<void> memory);
  struct State {
    State(Device on, DeviceDriver::Queue native) : device(on), queue(native) {}
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State();
    Device device;
    DeviceDriver::Queue queue;
  };
  std::shared_ptr<const State> state_;
};

/// A place in a stream that streams and the host can wait for. A cheap value: copies are the same
/// event.
class Event {
 public:
  /// Not placed: nothing waits for it.
  Event() = default;
  /// Places it after all work of the stream. An event belongs to one kind of device.
  void record(const Stream& stream);
  /// Whether the work in front of it is done. Never blocks.
  bool reached() const;
  /// Blocks the host until it is reached.
  void synchronize() const;

 private:
  friend class Stream;
  struct State {
    explicit State(Device on) : device(on), mark(driver_of(on).make_mark()) {}
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State();
    Device device;
    DeviceDriver::Mark mark;
  };
  std::shared_ptr<State> state_;
};

/// Work that was recorded once and is queued as one piece: kernels, fills and copies on one device,
/// with the memory and the numbers that they had. A cheap value: copies are the same graph. The
/// memory must be there as long as a graph is launched.
class DeviceGraph {
 public:
  DeviceGraph() = default;
  /// Records what `queue_work` queues in the stream on the calling thread; nothing of it runs.
  /// Errors: the device has no graphs (DeviceDriver::has_graphs); those of `queue_work`.
  static DeviceGraph record(const Stream& stream, const std::function<void()>& queue_work);
  inline explicit operator bool() const { return static_cast<bool>(state_); }
  /// Queues it in a stream of the same device.
  void launch(const Stream& stream) const;

 private:
  struct State {
    State(Device on, DeviceDriver::Graph recorded) : device(on), graph(recorded) {}
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State();
    Device device;
    DeviceDriver::Graph graph;
  };
  std::shared_ptr<const State> state_;
};

/// An event placed in the stream now.
Event record_event(const Stream& stream);

/// The stream to which the calling thread queues work of the device: the default one, unless a
/// StreamScope sets another.
Stream current_stream(Device device);
/// Within the scope the calling thread queues its work for the stream's device there: operators,
/// copies, memory. Error: a stream of the CPU other than its default one: operators of the CPU run
/// on the calling thread, and functions are queued by launch().
class StreamScope {
 public:
  explicit StreamScope(const Stream& stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;
};

}  // namespace tessera
