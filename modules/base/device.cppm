export module tessera.base:device;

import :standard;

export namespace tessera {

enum class DeviceType : std::uint8_t { cpu, cuda, meta };

/// Where a tensor's bytes live. `meta` has shapes and no bytes.
struct Device {
  DeviceType type = DeviceType::cpu;
  std::int8_t index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

inline constexpr Device cpu{DeviceType::cpu, 0};
inline constexpr Device meta{DeviceType::meta, 0};

/// An ordered queue of work on a device; the CPU has one, which is the calling thread.
struct Stream {
  Device device;
  void* native = nullptr;
  friend bool operator==(const Stream&, const Stream&) = default;
};

}  // namespace tessera
