export module tessera.tensor:device_plugin;

import tessera.base;
import tessera.device;
import tessera.plugin;
import :op;

export namespace tessera {

/// Loops over elements that an executor generates: each of `loops` is computed at all places of
/// `rows` x `columns`, in no order. A body is statements of C++ that use
///     at, row, column          std::int64_t: the place, at = row * columns + column
///     C                        the type that is computed in: double, or float
///     input<T>(k, i)           element i of input k, whose elements are T, as a C
///     number(k)                number k, as a C
///     rounded<T>(x)            x as an element of T has it, as a C
///     computed<F>(x...)        the function of an element F (see Element), as a C
///     output<T>(k, i, x)       writes element i of output k
struct ElementLoops {
  struct Loop {
    std::string name;  // of its kernel
    std::string body;
    bool in_double = false;
    int inputs = 0, outputs = 0, numbers = 0;
  };
  std::vector<std::string> headers;  // texts that define functions besides the library's own
  std::vector<Loop> loops;
};

/// Loops that were compiled for a device.
class DeviceLoops {
 public:
  DeviceLoops() = default;
  DeviceLoops(const DeviceLoops&) = delete;
  DeviceLoops& operator=(const DeviceLoops&) = delete;
  virtual ~DeviceLoops();
  struct Run {
    std::int64_t rows, columns;
    std::span<const Tensor> in, out;  // contiguous, on the device
    std::span<const double> numbers;
  };
  /// Queues loop number `loop` in the device's current stream.
  virtual void run(std::size_t loop, const Run& run) = 0;
};
struct CompiledLoops {
  std::unique_ptr<DeviceLoops> loops = {};
  std::string missing = {};  // why there are none, where the device has a compiler
};

/// A library that a plugin's kernels use where they find it.
struct DeviceLibrary {
  std::string name;
  std::string version = {};  // "": it is not found
  std::string advice;        // what is done without it, and how to install it
};

/// A kind of device as a plugin offers it.
struct DeviceOffer {
  int count = 1;  // of devices
  /// Opens one of them, at its first use.
  std::function<std::unique_ptr<DeviceDriver>(int index)> open;
  /// The operator's kernel and the workspace that it needs; without one, a call of it is an error.
  /// Must not call the registry of operators.
  DeviceKernel (*kernel_of)(const Op& op) = nullptr;
  /// A device's memory, without opening it (it is asked for before ranks are forked); null or no
  /// answer: unknown.
  std::function<std::optional<DeviceCapacity>(int index)> memory = {};
  /// Several ranks of a machine may use one device without being told to. Otherwise a run with more
  /// ranks than devices is an error, unless it names one device for all.
  bool shared = false;
  /// Compiles loops for a device; null: it has no compiler, and planned steps call each operator
  /// alone. Errors: the compiler refuses the code.
  CompiledLoops (*compile)(Device device, const ElementLoops& loops) = nullptr;
  /// The libraries that its kernels use, for `tessera doctor`; null: none.
  std::vector<DeviceLibrary> (*libraries)() = nullptr;
};

/// The plugin kind "device". In its register_plugin:
///     registrar.add<DevicePlugin>("cuda", [] { return DeviceOffer{...}; });
/// Tensors are moved there by ops::to_device(x, find_device("cuda:1")).
class DevicePlugin {
 public:
  static constexpr plugin::Kind plugin_kind{"device"};
  using Factory = std::function<DeviceOffer()>;
};

/// Compiles loops by the plugin of a device's kind, if it has a compiler. Errors: see
/// DeviceOffer::compile.
CompiledLoops compile_loops(Device device, const ElementLoops& loops);

/// The device of this name: "cpu", "meta", "cuda" (its device 0), "cuda:1". A kind that is not
/// registered is that of the plugin that offers it, which is found, loaded and registered for the
/// life of the process; all ranks must load the same. Safe to call from several threads. Errors
/// (input): no plugin offers it, its plugin is refused, there is no device of this number.
Device find_device(std::string_view name);

}  // namespace tessera
