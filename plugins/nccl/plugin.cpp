// Collectives between GPUs of NVIDIA, by NCCL.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/combine.hpp"
#include "library.hpp"

import tessera.base;
import tessera.plugin;
import tessera.device;
import tessera.collective;

#include "group.hpp"

namespace {

using namespace tessera;
using collective::DeviceGroupRequest;
using nccl::Communicator;

/// Groups of more than two members share the buffers of their members' first communicator. All
/// members queue what they do together in one order. Two members may be two stages of a pipeline:
/// of their messages, those of one direction must not wait for those of the other one.
bool shares_buffers(int members) { return members > 2; }

/// The first communicators of this process, from which those of groups are split: one for each list
/// of members. Nothing is queued in them, as NCCL wants it for a split.
class FirstCommunicators {
 public:
  /// Which is alive; null: none.
  std::shared_ptr<Communicator> find(const DeviceGroupRequest& request) {
    const std::lock_guard lock(mutex_);
    return all_[key(request)].lock();
  }
  void add(const DeviceGroupRequest& request, const std::shared_ptr<Communicator>& made) {
    const std::lock_guard lock(mutex_);
    all_[key(request)] = made;
  }

 private:
  /// Ranks may be threads of this process.
  using Key = std::pair<std::vector<int>, int>;
  static Key key(const DeviceGroupRequest& request) {
    return {{request.ranks.begin(), request.ranks.end()}, request.rank};
  }

  std::mutex mutex_;
  std::map<Key, std::weak_ptr<Communicator>> all_;
};

FirstCommunicators& first_communicators() {
  static FirstCommunicators all;
  return all;
}

/// What member 0 decides for all: NCCL's unique id, and the bytes of the windows.
struct GroupId {
  nccl::UniqueId unique;
  std::uint64_t window = 0;
};

cuda::Interop& device_of(const DeviceGroupRequest& request) {
  auto* const device = dynamic_cast<cuda::Interop*>(&driver_of(request.device));
  if (device == nullptr) {
    fail_input({.thing = "collectives 'cuda'",
                .wrong = to_string(request.device) + " is not a device of Tessera's plugin cuda",
                .advice = "use the plugins cuda and nccl of one build"});
  }
  return *device;
}

/// None where the members have a communicator to split.
std::vector<std::byte> make_id(const DeviceGroupRequest& request) {
  if (first_communicators().find(request) != nullptr) {
    return {};
  }
  const auto [result, unique] =
      device_of(request).watch().call("ncclGetUniqueId", [](const cuda::WatchedThread& watched) {
        nccl::UniqueId made = {};
        const nccl::Result asked = nccl::api().get_unique_id(watched, &made);
        return std::pair(asked, made);
      });
  const GroupId id = {.unique = unique, .window = nccl::windows_asked_for()};
  if (result != nccl::Result::success) {
    fail({.thing = "collectives 'cuda'",
          .wrong = std::string("ncclGetUniqueId fails: ") + nccl::api().get_error_string(result),
          .advice = "run again with NCCL_DEBUG=WARN for NCCL's own report"});
  }
  const auto bytes = std::as_bytes(std::span(&id, 1));
  return {bytes.begin(), bytes.end()};
}

std::unique_ptr<collective::DeviceGroup> join(const DeviceGroupRequest& request) {
  cuda::Interop& device = device_of(request);
  constexpr int most = cuda::CombineMany::most_sources;
  if (request.size > most) {
    fail_input({.thing = "collectives 'cuda'",
                .wrong = "a group has too many ranks",
                .expected = "at most " + std::to_string(most),
                .got = std::to_string(request.size),
                .advice = "divide the mesh into more axes"});
  }
  std::shared_ptr<Communicator> first = first_communicators().find(request);
  if (!request.id.empty()) {
    GroupId id = {};
    std::memcpy(&id, request.id.data(), std::min(sizeof(id), request.id.size()));
    first = std::make_shared<Communicator>(
        Communicator::GroupMember{device, numbers_text("rank", request.ranks), request.rank,
                                  request.size, request.check, id.window},
        id.unique, shares_buffers(request.size));
    first_communicators().add(request, first);
  }
  if (first == nullptr) {
    fail({.thing = "collectives 'cuda'",
          .wrong = "member 0 has a communicator of " + numbers_text("rank", request.ranks) +
                   " to split, and this rank has none"});
  }
  return std::make_unique<nccl::Group>(request, device, std::move(first));
}

}  // namespace

void register_plugin(tessera::plugin::Registrar& registrar) {
  registrar.add<collective::CollectivesPlugin>("cuda", [] {
    return collective::CollectivesOffer{
        .make_id = make_id, .join = join, .library = nccl::version_text()};
  });
}
