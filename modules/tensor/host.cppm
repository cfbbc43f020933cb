export module tessera.tensor:host;

import tessera.base;
import tessera.device;
import :value;
import :op;

export namespace tessera {

/// Whether the host can read the tensor's memory, or it has none: on the meta device, undefined.
inline bool is_on_host(const Tensor& x) { return !x || (x.impl()->keys & device_keys) == 0; }
/// The values of a strided tensor in the host's memory, with the same shape and strides: x itself,
/// or a copy of the memory that it spans. Waits for the device's current stream. No gradient.
Tensor on_host(const Tensor& x);
/// A contiguous copy of a strided tensor in the device's memory, without a gradient's path. To a
/// device it is queued in that device's current stream, and the host's memory may be written as
/// soon as the function has returned; from a device, the host waits; between two devices of one
/// kind, both current streams are ordered and the host does not wait. ops::to_device() is the
/// operator.
Tensor copied_to(const Tensor& x, Device device);

/// A kernel of any device: computes the call by the CPU's kernel, on copies of the operands'
/// memory, and copies back what it writes. The host waits. For operators that a device leaves to
/// the host on purpose (collectives of a transport that needs the host's memory).
void kernel_on_host(const Call& call, std::span<Tensor> out);

/// Within the scope, operators that have no kernel on their operands' device are computed by
/// kernel_on_host() on this thread, and counted. Without one, such a call is an error: nothing
/// falls back to the host silently.
class HostFallback {
 public:
  struct Entry {
    std::string op;
    Device device;
    std::int64_t calls = 0;
    std::int64_t bytes = 0;  // of the memory copied to and from the host
  };

  HostFallback();
  ~HostFallback();
  HostFallback(const HostFallback&) = delete;
  HostFallback& operator=(const HostFallback&) = delete;

  /// Operators that fell back so far, the most calls first.
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  friend struct FallbackAccess;
  void count(const Op& op, Device device, std::int64_t bytes);

  HostFallback* outer_;
  std::vector<Entry> entries_;
};

}  // namespace tessera
