// The adversarial device with collectives of its own, as a plugin. Messages travel in small pieces
// through memory that the members share, whether they are processes or threads; only when somebody
// waits for the device, and then as late as a generator of numbers likes. The memory of a message
// must have been registered.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

import tessera.base;
import tessera.plugin;
import tessera.tensor;
import tessera.collective;

#include "adversary.hpp"

namespace {

using namespace tessera;
using namespace tessera::collective;

/// Bytes on their way from one member to another.
struct Channel {
  static constexpr std::uint64_t capacity = 24 << 10;
  std::atomic<std::uint64_t> written;
  std::atomic<std::uint64_t> read;
  std::byte data[capacity];

  std::size_t put(const std::byte* from, std::size_t bytes) {
    const std::uint64_t at = written.load(std::memory_order_relaxed);
    const std::uint64_t room = capacity - (at - read.load(std::memory_order_acquire));
    const std::size_t count = std::min<std::size_t>(bytes, room);
    for (std::size_t i = 0; i < count; ++i) {
      data[(at + i) % capacity] = from[i];
    }
    written.store(at + count, std::memory_order_release);
    return count;
  }
  std::size_t take(std::byte* to, std::size_t bytes) {
    const std::uint64_t at = read.load(std::memory_order_relaxed);
    const std::uint64_t there = written.load(std::memory_order_acquire) - at;
    const std::size_t count = std::min<std::size_t>(bytes, there);
    for (std::size_t i = 0; i < count; ++i) {
      to[i] = data[(at + i) % capacity];
    }
    read.store(at + count, std::memory_order_release);
    return count;
  }
};

/// Memory that the members of a group share.
class Shared {
 public:
  /// `path`: of the memory's file, which member 0 holds open.
  Shared(const std::string& path, int size) : size_(size) {
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    bytes_ = sizeof(Header) + static_cast<std::size_t>(size) * size * sizeof(Channel);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes_)) != 0) {
      fail("adversary: the group's memory cannot be opened; is member 0 alive?");
    }
    void* const data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (data == MAP_FAILED) {
      fail("adversary: the group's memory cannot be mapped");
    }
    header_ = static_cast<Header*>(data);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { munmap(header_, bytes_); }

  std::atomic<int>& joined() { return header_->joined; }
  Channel& channel(int from, int to) {
    auto* const first = reinterpret_cast<Channel*>(header_ + 1);
    return first[from * size_ + to];
  }

 private:
  struct alignas(64) Header {
    std::atomic<int> joined;
  };
  int size_;
  std::size_t bytes_ = 0;
  Header* header_ = nullptr;
};

/// The state of a group that queued work shares with it.
struct GroupState {
  GroupState(const std::string& path, const DeviceGroupRequest& request)
      : shared(path, request.size),
        rank(request.rank),
        numbers(static_cast<unsigned>(request.rank)) {}
  Shared shared;
  const int rank;
  std::atomic<bool> aborted{false};
  std::mutex mutex;  // guards the rest
  std::mt19937 numbers;
  std::string problem;
  std::map<std::byte*, std::size_t> registered;

  [[noreturn]] void fail_group(const std::string& text) {
    {
      const std::lock_guard lock(mutex);
      problem = text;
    }
    fail(text);
  }
};

/// A message and how much of it has travelled, its length included.
struct Travelling {
  int member;
  std::byte* data;  // as kernels know it
  std::uint64_t bytes;
  std::uint64_t length = 0;  // received
  std::size_t moved = 0;

  static constexpr std::size_t head = sizeof(std::uint64_t);
  bool done() const { return moved == head + bytes; }
};

/// The messages of one call of exchange(), as work that is done in steps.
class Exchange {
 public:
  Exchange(std::shared_ptr<GroupState> state, std::span<const DeviceMessage> sends,
           std::span<const DeviceMessage> receives)
      : state_(std::move(state)), sends_(of(sends)), receives_(of(receives)) {}

  bool step() {
    if (state_->aborted) {
      fail("adversary: the group was aborted");
    }
    std::size_t most = 0;
    {
      const std::lock_guard lock(state_->mutex);
      most = state_->numbers() % 3 == 0 ? 0 : state_->numbers() % 8192;
    }
    for (auto& [member, messages] : sends_) {
      move(messages, most, [&](Travelling& m, std::size_t bytes) { return send(m, bytes); });
    }
    for (auto& [member, messages] : receives_) {
      move(messages, most, [&](Travelling& m, std::size_t bytes) { return receive(m, bytes); });
    }
    const auto all_done = [](const auto& all) {
      return std::ranges::all_of(all, [](const auto& entry) { return entry.second.empty(); });
    };
    return all_done(sends_) && all_done(receives_);
  }

 private:
  using ByMember = std::map<int, std::deque<Travelling>>;
  static ByMember of(std::span<const DeviceMessage> messages) {
    ByMember all;
    for (const DeviceMessage& m : messages) {
      all[m.member].push_back(
          {m.member, static_cast<std::byte*>(adversary::kernel_address(m.data)), m.bytes});
    }
    return all;
  }

  template <class Move>
  static void move(std::deque<Travelling>& messages, std::size_t most, const Move& some) {
    while (!messages.empty() && most > 0) {
      const std::size_t count = some(messages.front(), most);
      messages.front().moved += count;
      most -= count;
      if (messages.front().done()) {
        messages.pop_front();
      } else if (count == 0) {
        return;
      }
    }
  }

  std::size_t send(Travelling& m, std::size_t most) {
    Channel& channel = state_->shared.channel(state_->rank, m.member);
    if (m.moved < Travelling::head) {
      return channel.put(reinterpret_cast<const std::byte*>(&m.bytes) + m.moved,
                         std::min(most, Travelling::head - m.moved));
    }
    const std::size_t at = m.moved - Travelling::head;
    return channel.put(m.data + at, std::min<std::size_t>(most, m.bytes - at));
  }

  std::size_t receive(Travelling& m, std::size_t most) {
    Channel& channel = state_->shared.channel(m.member, state_->rank);
    if (m.moved < Travelling::head) {
      const std::size_t count = channel.take(reinterpret_cast<std::byte*>(&m.length) + m.moved,
                                             std::min(most, Travelling::head - m.moved));
      if (m.moved + count == Travelling::head && m.length != m.bytes) {
        state_->fail_group("adversary: member " + std::to_string(m.member) + " sends " +
                           std::to_string(m.length) + " bytes to member " +
                           std::to_string(state_->rank) + ", which expects " +
                           std::to_string(m.bytes));
      }
      return count;
    }
    const std::size_t at = m.moved - Travelling::head;
    return channel.take(m.data + at, std::min<std::size_t>(most, m.bytes - at));
  }

  std::shared_ptr<GroupState> state_;
  ByMember sends_;
  ByMember receives_;
};

class AdversaryGroup final : public DeviceGroup {
 public:
  AdversaryGroup(std::shared_ptr<GroupState> state, Device device, int size)
      : state_(std::move(state)), device_(device), size_(size) {}

  void exchange(Queue queue, std::span<const DeviceMessage> sends,
                std::span<const DeviceMessage> receives) override {
    for (const std::span<const DeviceMessage> messages : {sends, receives}) {
      for (const DeviceMessage& message : messages) {
        check_registered(message);
      }
    }
    adversary::launch_steps(
        device_, queue,
        [all = std::make_shared<Exchange>(state_, sends, receives)] { return all->step(); });
  }

  void combine(Queue queue, const Combination& combination) override {
    Combination c = combination;
    std::vector<const void*> sources;
    for (const void* const source : c.sources) {
      sources.push_back(adversary::kernel_address(source));
    }
    c.destination = adversary::kernel_address(c.destination);
    adversary::launch_steps(device_, queue, [c, sources]() mutable {
      c.sources = sources;
      combine_on_host(c);
      return true;
    });
  }

  /// Of few bytes, so that exchange() has the others.
  bool all_gather(Queue queue, const void* source, void* destination, std::size_t bytes) override {
    if (bytes > 64) {
      return false;
    }
    std::vector<DeviceMessage> sends;
    std::vector<DeviceMessage> receives;
    for (int member = 0; member < size_; ++member) {
      if (member != state_->rank) {
        sends.push_back({member, const_cast<void*>(source), bytes});
        receives.push_back({member, place(destination, member, bytes), bytes});
      }
    }
    copy(queue, place(destination, state_->rank, bytes), source, bytes);
    exchange(queue, sends, receives);
    return true;
  }

  bool broadcast(Queue queue, const void* source, void* destination, std::size_t bytes,
                 int root) override {
    std::vector<DeviceMessage> messages;
    for (int member = 0; member < size_; ++member) {
      if (state_->rank == root && member != root) {
        messages.push_back({member, const_cast<void*>(source), bytes});
      }
    }
    if (state_->rank == root) {
      copy(queue, destination, source, bytes);
      exchange(queue, messages, {});
    } else {
      const DeviceMessage message{root, destination, bytes};
      exchange(queue, {}, {&message, 1});
    }
    return true;
  }

  void register_memory(void* data, std::size_t bytes) override {
    const std::lock_guard lock(state_->mutex);
    state_->registered[static_cast<std::byte*>(data)] = bytes;
  }
  void unregister_memory(void* data, std::size_t) noexcept override {
    const std::lock_guard lock(state_->mutex);
    state_->registered.erase(static_cast<std::byte*>(data));
  }

  void abort() noexcept override { state_->aborted = true; }
  std::string failure() override {
    const std::lock_guard lock(state_->mutex);
    return state_->problem;
  }

 private:
  static std::byte* place(void* data, int member, std::size_t bytes) {
    return static_cast<std::byte*>(data) + static_cast<std::size_t>(member) * bytes;
  }
  void copy(Queue queue, void* to, const void* from, std::size_t bytes) {
    if (to != from) {
      driver_of(device_).copy(queue, to, from, bytes, CopyKind::on_device);
    }
  }
  void check_registered(const DeviceMessage& message) {
    const std::lock_guard lock(state_->mutex);
    auto* const first = static_cast<std::byte*>(message.data);
    auto segment = state_->registered.upper_bound(first);
    if (segment == state_->registered.begin() ||
        (--segment)->first + segment->second < first + message.bytes) {
      fail("adversary: the memory of a message is not registered");
    }
  }

  std::shared_ptr<GroupState> state_;
  Device device_;
  int size_;
};

std::vector<std::byte> make_id(const DeviceGroupRequest&) {
  const int file = memfd_create("adversary-group", MFD_CLOEXEC);
  if (file < 0) {
    fail("adversary: there is no memory for the group");
  }
  const std::string path =
      "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file);  // stays open
  const auto* const first = reinterpret_cast<const std::byte*>(path.data());
  return {first, first + path.size()};
}

std::unique_ptr<DeviceGroup> join(const DeviceGroupRequest& request) {
  const std::string path(reinterpret_cast<const char*>(request.id.data()), request.id.size());
  auto state = std::make_shared<GroupState>(path, request);
  state->shared.joined().fetch_add(1);
  while (state->shared.joined() < request.size) {
    request.check();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return std::make_unique<AdversaryGroup>(std::move(state), request.device, request.size);
}

}  // namespace

void register_plugin(tessera::plugin::Registrar& registrar) {
  registrar.add<DevicePlugin>("adversary", adversary::offer);
  registrar.add<CollectivesPlugin>(
      "adversary", [] { return CollectivesOffer{.make_id = make_id, .join = join}; });
}
