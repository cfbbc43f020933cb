// A symmetric window of NCCL's: memory of a group that its members reach directly. Include it after
// the imports of tessera.base and tessera.device.
#pragma once
#include <cstddef>
#include <functional>
#include <span>

#include "communicator.hpp"

namespace tessera::nccl {

/// One rank's part of a window. The arrays of a call are copied into it and out of it, at places
/// that are the same on all ranks, as the sizes are. Calls use it one after the other.
class Window {
 public:
  /// A piece of memory of the device, to be copied.
  struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
  };

  /// Collective: all members of the communicator do so at the same point of their calls. Where NCCL
  /// has no windows for these members, is_open() is false, which one warning says. Error (input):
  /// too little memory.
  Window(Communicator& comm, cuda::Interop& device, DeviceDriver& driver, std::size_t bytes);
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  /// Nothing that is queued uses it, or the communicator was aborted; the communicator still
  /// exists.
  ~Window();

  bool is_open() const { return handle_ != nullptr; }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t bytes() const { return bytes_; }
  /// Queues the copies into the window, what `calls` queues, and the copies out of it.
  void use(DeviceDriver::Queue queue, std::span<const Copy> in, const std::function<void()>& calls,
           std::span<const Copy> out);

 private:
  void free_memory() noexcept;

  Communicator& comm_;
  cuda::Interop& device_;
  DeviceDriver& driver_;
  const std::size_t bytes_;
  void* data_ = nullptr;
  WindowHandle handle_ = nullptr;
  DeviceDriver::Mark used_ = nullptr;  // after the last use, in whatever queue
};

}  // namespace tessera::nccl
