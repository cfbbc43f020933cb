module;
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.communication;

import tessera.base;
import tessera.plugin;
import tessera.device;
import tessera.calls;
import tessera.ranks;
import :communicator;
import :device_communicators;
import :device_group;
import :device_mover;
import :engine;
import :group_view;
import :state;
import :work;
import :world;

namespace tessera::collective {
namespace {

std::optional<CollectivesOffer> offer_for(const std::string& kind) {
  const std::vector<std::string> names = plugin::host().names(CollectivesPlugin::plugin_kind.name);
  if (std::ranges::find(names, kind) == names.end()) {
    return std::nullopt;
  }
  CollectivesOffer offer = plugin::host().find<CollectivesPlugin>(kind)();
  if (!offer.make_id || !offer.join) {
    fail({.thing = fmt::format("collectives '{}'", kind),
          .wrong = "its plugin offers no groups",
          .advice = "set CollectivesOffer::make_id and join"});
  }
  return offer;
}

/// The bytes that member 0 has made, on all members.
std::vector<std::byte> shared_id(Communicator& host, const CollectivesOffer& offer,
                                 const DeviceGroupRequest& request) {
  std::vector<std::byte> id;
  if (host.rank() == 0) {
    id = offer.make_id(request);
  }
  auto bytes = static_cast<std::int64_t>(id.size());
  host.broadcast(&bytes, 1, DType::i64, 0);
  id.resize(static_cast<std::size_t>(bytes));
  if (bytes > 0) {
    host.broadcast(id.data(), bytes, DType::u8, 0);
  }
  return id;
}

/// The waits of the host within a plugin: for those who join, then for calls. Several threads may
/// wait.
class WaitsOfGroup {
 public:
  void change(std::unique_ptr<DeviceWait> wait) {
    const std::lock_guard lock(mutex_);
    wait_ = std::move(wait);
  }
  void look() {
    const std::lock_guard lock(mutex_);
    wait_->look();
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<DeviceWait> wait_;
};

}  // namespace

struct DeviceCommunicators::Entry {
  Device device;
  std::vector<int> ranks;
  std::string name;
  std::uint8_t offered = 0;         // by this rank: 0, or 1 + its DeviceCollectives
  std::vector<std::uint8_t> all{};  // by each member
  Work agreement{};                 // of a rank that offers nothing, and does not wait
  Communicator* communicator = nullptr;
};

DeviceCommunicators::DeviceCommunicators(WorldState& state) : state_(state) {}
DeviceCommunicators::~DeviceCommunicators() = default;

Communicator* DeviceCommunicators::find(Device device, std::span<const int> ranks,
                                        std::string_view name) {
  if (device == cpu || state_.transport == Transport::fake) {
    return nullptr;
  }
  const std::lock_guard guard(mutex_);
  const auto known = std::ranges::find_if(entries_, [&](const auto& entry) {
    return entry->device.type == device.type && std::ranges::equal(entry->ranks, ranks) &&
           entry->name == name;
  });
  if (known == entries_.end()) {
    auto made = std::make_unique<Entry>(
        Entry{.device = device, .ranks = {ranks.begin(), ranks.end()}, .name = std::string(name)});
    agree(*made, device_type_names()[static_cast<std::size_t>(device.type) + 1]);
    return entries_.emplace_back(std::move(made))->communicator;
  }
  const Entry& entry = **known;
  if (entry.communicator != nullptr && !(entry.device == device)) {
    fail({.thing = "collective",
          .wrong = fmt::format("this rank uses {} in a group in which it has used {}",
                               to_string(device), to_string(entry.device)),
          .advice = "use one device of a kind in a group, or a communicator of another name"});
  }
  return entry.communicator;
}

void DeviceCommunicators::agree(Entry& entry, const std::string& kind) {
  const DeviceCollectives chosen = state_.device_collectives;
  const std::optional<CollectivesOffer> offer =
      chosen == DeviceCollectives::host ? std::nullopt : offer_for(kind);
  Communicator& host = state_.communicator(entry.ranks, fmt::format("{} on {}", entry.name, kind));
  entry.offered = offer ? static_cast<std::uint8_t>(1 + static_cast<int>(chosen)) : 0;
  entry.all.resize(entry.ranks.size());
  if (!offer) {
    // Others may have a plugin: they wait for this answer, and this rank for nobody.
    entry.agreement = host.all_gather_async(&entry.offered, entry.all.data(), 1, DType::u8);
    return;
  }
  host.all_gather(&entry.offered, entry.all.data(), 1, DType::u8);
  const auto without = std::ranges::find(entry.all, std::uint8_t{0});
  if (without != entry.all.end()) {
    state_.fail_published(
        fmt::format("collectives of '{}': rank {} has no plugin for them, while rank {} has one; "
                    "install it for all ranks, or for none, and give all one "
                    "mesh.device_collectives",
                    kind, entry.ranks[static_cast<std::size_t>(without - entry.all.begin())],
                    state_.rank),
        ErrorKind::input);
  }
  const auto other = std::ranges::find_if(entry.all, [&](auto o) { return o != entry.offered; });
  if (other != entry.all.end()) {
    state_.fail_published(
        fmt::format("collectives of '{}': ranks {} and {} reduce in different orders; give all "
                    "ranks one mesh.device_collectives",
                    kind, entry.ranks[static_cast<std::size_t>(other - entry.all.begin())],
                    state_.rank),
        ErrorKind::input);
  }
  const auto waits = std::make_shared<WaitsOfGroup>();
  waits->change(state_.watch_device_join(
      entry.ranks, fmt::format("joining a group on '{}' by its plugin of collectives, group {}",
                               kind, describe_group(host.engine_->view().group()))));
  DeviceGroupRequest request = {.device = entry.device,
                                .rank = host.rank(),
                                .size = host.size(),
                                .ranks = entry.ranks,
                                .check = [waits] { waits->look(); }};
  const std::vector<std::byte> id = shared_id(host, *offer, request);
  request.id = id;
  std::unique_ptr<DeviceGroup> group = offer->join(request);
  if (group == nullptr) {
    fail({.thing = fmt::format("collectives '{}'", kind), .wrong = "join() returned no group"});
  }
  waits->change(state_.watch_device_wait());
  auto mover =
      std::make_unique<DeviceMover>(*host.engine_, Stream::make(entry.device), std::move(group),
                                    chosen == DeviceCollectives::own_order);
  {
    const std::lock_guard guard(movers_mutex_);
    movers_.push_back(mover.get());
  }
  host.attach(std::move(mover));
  entry.communicator = &host;
}

std::optional<DeviceCommunicators::PendingCall> DeviceCommunicators::oldest() {
  const std::lock_guard guard(movers_mutex_);
  for (DeviceMover* const mover : movers_) {
    if (const std::optional<DeviceMover::PendingCall> pending = mover->oldest()) {
      return PendingCall{pending->call, pending->sequence, pending->peer,
                         describe_group(mover->engine().view().group())};
    }
  }
  return std::nullopt;
}

std::string DeviceCommunicators::failure() {
  const std::lock_guard guard(movers_mutex_);
  for (DeviceMover* const mover : movers_) {
    if (std::string text = mover->failure(); !text.empty()) {
      return text;
    }
  }
  return {};
}

void DeviceCommunicators::abort() noexcept {
  const std::lock_guard guard(movers_mutex_);
  for (DeviceMover* const mover : movers_) {
    mover->abort();
  }
}

void DeviceCommunicators::close() {
  {
    const std::lock_guard guard(movers_mutex_);
    movers_.clear();
  }
  const std::lock_guard guard(mutex_);
  entries_.clear();  // waits for the answers of others
}

}  // namespace tessera::collective
