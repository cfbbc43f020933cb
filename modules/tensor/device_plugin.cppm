export module tessera.tensor:device_plugin;

import tessera.base;
import tessera.device;
import tessera.plugin;
import :op;

export namespace tessera {

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
};

/// The plugin kind "device". In its register_plugin:
///     registrar.add<DevicePlugin>("cuda", [] { return DeviceOffer{...}; });
/// Tensors are moved there by ops::to_device(x, find_device("cuda:1")).
class DevicePlugin {
 public:
  static constexpr plugin::Kind plugin_kind{"device"};
  using Factory = std::function<DeviceOffer()>;
};

/// The device of this name: "cpu", "meta", "cuda" (its device 0), "cuda:1". A kind that is not
/// registered is that of the plugin that offers it, which is found, loaded and registered for the
/// life of the process; all ranks must load the same. Safe to call from several threads. Errors
/// (input): no plugin offers it, its plugin is refused, there is no device of this number.
Device find_device(std::string_view name);

}  // namespace tessera
