// A group of ranks on GPUs. Include it after the imports of tessera.base, tessera.device and
// tessera.collective.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "communicator.hpp"
#include "window.hpp"

namespace tessera::nccl {

/// Messages by grouped sends and receives; reductions by a kernel of the plugin cuda, in the order
/// of the ranks. Gathers, and reductions in NCCL's own order, go through the group's window if
/// there is one that has room for them.
class Group final : public collective::DeviceGroup {
 public:
  /// Collective. `first`: a communicator of the members that has nothing queued; the group's own is
  /// split from it.
  Group(const collective::DeviceGroupRequest& request, cuda::Interop& device,
        std::shared_ptr<Communicator> first);
  ~Group() override;

  void exchange(Queue queue, std::span<const collective::DeviceMessage> sends,
                std::span<const collective::DeviceMessage> receives) override;
  void combine(Queue queue, const collective::Combination& combination) override;
  bool all_gather(Queue queue, const void* source, void* destination, std::size_t bytes) override;
  bool broadcast(Queue queue, const void* source, void* destination, std::size_t bytes,
                 int root) override;
  bool reduce_in_own_order(Queue queue, std::span<const collective::GroupReduction> reductions,
                           DType type, ReduceOp reduce) override;
  void register_memory(void* data, std::size_t bytes) override;
  void unregister_memory(void* data, std::size_t bytes) noexcept override;
  void abort() noexcept override;
  std::string failure() override;

 private:
  void deregister(void* handle) noexcept;

  cuda::Interop& device_;
  std::shared_ptr<Communicator> first_;
  Communicator own_;
  std::unique_ptr<Window> window_;  // null: none; it ends before the communicator
  std::mutex mutex_;
  std::map<void*, void*> registered_;  // handles by address
};

}  // namespace tessera::nccl
