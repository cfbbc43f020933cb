export module tessera.base:device;

import :standard;

export namespace tessera {

/// A kind of device. Plugins add the kinds 1 to 7 (tessera.device), which get their numbers when
/// they are loaded; outside of the process a kind is its name.
enum class DeviceType : std::uint8_t { cpu = 0, meta = 8 };
/// So many kinds can have kernels: meta is not one of them.
inline constexpr int device_type_count = 8;

/// Where a tensor's bytes live. `meta` has shapes and no bytes.
struct Device {
  DeviceType type = DeviceType::cpu;
  std::int8_t index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// The host.
inline constexpr Device cpu{DeviceType::cpu, 0};
/// Tensors there have shapes and no memory; nothing is computed.
inline constexpr Device meta{DeviceType::meta, 0};

}  // namespace tessera
