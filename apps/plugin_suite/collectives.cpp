module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>
module tessera.plugin_suite;

import tessera.base;
import tessera.plugin;
import tessera.device;
import tessera.tensor;
import tessera.collective;
import tessera.ops;

// Collectives between devices: whether what Tessera derives from them has the host's bits, between
// threads and between processes, and whether they end when a rank fails. Where there is one device,
// the functions of a group of one member, and of one whose second member never comes.
namespace tessera::plugin_suite {
namespace {

using collective::CollectivesOffer;
using collective::CollectivesPlugin;
using collective::Combination;
using collective::Communicator;
using collective::DeviceGroup;
using collective::DeviceGroupRequest;
using collective::DeviceMessage;
using collective::GroupReduction;
using collective::Segment;
using collective::World;

/// A call on memory of `count` elements for each rank.
struct CallCase {
  const char* name;
  std::function<void(Communicator&, std::byte* source, std::byte* destination, std::int64_t count,
                     DType dtype)>
      call;
};

std::byte* row(std::byte* base, std::int64_t number, std::int64_t count, DType dtype) {
  return base + number * count * static_cast<std::int64_t>(size_of(dtype));
}

std::vector<CallCase> forms() {
  return {{"all_reduce", [](Communicator& c, auto* from, auto* to, auto n,
                            auto type) { c.all_reduce(from, to, n, type); }},
          {"all_reduce in place, of the maximum",
           [](Communicator& c, auto*, auto* x, auto n, auto type) {
             c.all_reduce(x, x, n, type, ReduceOp::max);
           }},
          {"all_gather", [](Communicator& c, auto* from, auto* to, auto n,
                            auto type) { c.all_gather(from, to, n, type); }},
          {"all_gather of this rank's row",
           [](Communicator& c, auto*, auto* x, auto n, auto type) {
             c.all_gather(row(x, c.rank(), n, type), x, n, type);
           }},
          {"all_gather of segments",
           [](Communicator& c, auto* from, auto* to, auto n, auto type) {
             const std::int64_t chunk = (n + c.size() - 1) / c.size();
             const std::vector<Segment> segments = {
                 {from, to, chunk, n}, {row(from, 1, n, type), row(to, 1, n, type), n, n}};
             c.all_gather(segments, type);
           }},
          {"reduce_scatter", [](Communicator& c, auto* from, auto* to, auto n,
                                auto type) { c.reduce_scatter(from, to, n, type); }},
          {"all_to_all", [](Communicator& c, auto* from, auto* to, auto n,
                            auto type) { c.all_to_all(from, to, n, type); }},
          {"all_to_all with counts",
           [](Communicator& c, auto* from, auto* to, auto n, auto type) {
             std::vector<std::int64_t> sends;
             std::vector<std::int64_t> receives;
             for (int peer = 0; peer < c.size(); ++peer) {
               sends.push_back(n / (1 + (c.rank() + 2 * peer) % 3));
               receives.push_back(n / (1 + (peer + 2 * c.rank()) % 3));
             }
             c.all_to_all(from, sends, to, receives, type);
           }},
          {"broadcast", [](Communicator& c, auto*, auto* x, auto n,
                           auto type) { c.broadcast(x, n, type, c.size() - 1); }},
          {"gather", [](Communicator& c, auto* from, auto* to, auto n,
                        auto type) { c.gather(from, to, n, type, 0); }},
          {"shift in place",
           [](Communicator& c, auto*, auto* x, auto n, auto type) { c.shift(x, x, n, type, 1); }}};
}

Tensor values_of(const World& world, std::int64_t elements, DType dtype) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < elements; ++i) {
    values.push_back(static_cast<float>((i * 7 + world.rank() * 31) % 97) * 0.37F - 11.0F);
  }
  return ops::cast(from_values(std::span<const float>(values), {elements}), dtype);
}

/// Device of the rank. Throws SkippedCheck where there are too few.
Device device_of(const std::string& name, int rank, int ranks) {
  try {
    return device_for_rank(find_device(name).type, rank, ranks);
  } catch (const Error& error) {
    throw SkippedCheck{fmt::format("there are no devices for {} ranks: {}", ranks, error.what())};
  }
}

Communicator& communicator_of(World& world, Device device) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  Communicator* const found = world.communicator_on(device, ranks);
  if (found == nullptr) {
    fail("the plugin was not found for its device");
  }
  return *found;
}

void compare_forms(World& world, Device device) {
  Communicator& there = communicator_of(world, device);
  const StreamScope scope(there.stream(device));
  for (const CallCase& form : forms()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::i32}) {
      for (const std::int64_t count : {3, 90000}) {  // the second in two phases
        const Tensor source = values_of(world, count * std::max(2, world.size()), dtype);
        const Tensor destination = ops::clone(source);
        const Tensor source_there = ops::to_device(source, device);
        const Tensor destination_there = ops::to_device(destination, device);
        const auto run = [&](Communicator& c, const Tensor& from, const Tensor& to) {
          form.call(c, static_cast<std::byte*>(ops::data_of(from)),
                    static_cast<std::byte*>(ops::data_of(to)), count, dtype);
          return to_doubles(to);
        };
        if (run(world.everyone(), source, destination) !=
            run(there, source_there, destination_there)) {
          fail(fmt::format("{} of {} elements {} differs from the host's on rank {} of {}",
                           form.name, count, name_of(dtype), world.rank(), world.size()));
        }
      }
    }
  }
}

std::string threads_agree(const std::string& name) {
  for (const int ranks : {2, 3}) {
    device_of(name, 0, ranks);
    trying(fmt::format("{} threads", ranks));
    collective::run_threads(ranks, [&](World& world) {
      compare_forms(world, device_of(name, world.number_here(), world.ranks_here()));
    });
  }
  return "";
}

std::string processes_agree(const std::string& name) {
  constexpr int ranks = 2;
  device_of(name, 0, ranks);
  const int code = collective::launch({.ranks = ranks}, [&](World& world) {
    const Device device = device_of(name, world.number_here(), world.ranks_here());
    const Tensor x = full({50000}, 1 + world.rank(), DType::f32, device);
    const Tensor sum = ops::all_reduce(x, ReduceOp::sum, communicator_of(world, device));
    return to_doubles(sum) == std::vector<double>(50000, 3) ? 0 : 3;
  });
  return code == 0 ? ""
                   : fmt::format("an all_reduce of two processes ends with exit code {}", code);
}

std::string failures_end(const std::string& name) {
  device_of(name, 0, 2);
  const auto begin = std::chrono::steady_clock::now();
  std::string text = "no error";
  try {
    collective::run_threads(2, [&](World& world) {
      const Device device = device_of(name, world.number_here(), world.ranks_here());
      Communicator& there = communicator_of(world, device);
      const Tensor x = full({50000}, 1, DType::f32, device);
      if (world.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));  // rank 0 waits by then
        fail("planted");
      }
      to_doubles(ops::all_reduce(x, ReduceOp::sum, there));
    });
  } catch (const Error& error) {
    text = error.what();
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  constexpr double longest = 10;
  if (text.find("planted") == std::string::npos) {
    return fmt::format("a rank fails within a collective, and the run ends with: {}", text);
  }
  return took.count() < longest
             ? ""
             : fmt::format("a rank fails within a collective, and the others wait for {:.0f} s",
                           took.count());
}

// ---- one device ----

using Bytes = std::vector<std::byte>;

/// A group of which this process is the first member; `check` lasts as long as it.
std::unique_ptr<DeviceGroup> join_first(const std::string& name, Device device, int size,
                                        WaitCheck check) {
  const CollectivesOffer offer = plugin::host().find<CollectivesPlugin>(name)();
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  DeviceGroupRequest request = {
      .device = device, .size = size, .ranks = ranks, .check = std::move(check)};
  const Bytes id = offer.make_id(request);
  request.id = id;
  return offer.join(request);
}

/// Memory of the device's driver, registered with a group as long as it lives.
class RegisteredMemory {
 public:
  RegisteredMemory(Device device, DeviceGroup& group, std::size_t bytes)
      : driver_(driver_of(device)),
        group_(group),
        bytes_(bytes),
        data_(static_cast<std::byte*>(driver_.allocate(bytes))) {
    if (data_ == nullptr) {
      fail(fmt::format("{} has no {} bytes of memory", to_string(device), bytes));
    }
    group_.register_memory(data_, bytes_);
  }
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;
  /// Nothing that is queued uses it.
  ~RegisteredMemory() {
    group_.unregister_memory(data_, bytes_);
    driver_.free(data_, bytes_);
  }
  std::byte* data() const { return data_; }

 private:
  DeviceDriver& driver_;
  DeviceGroup& group_;
  const std::size_t bytes_;
  std::byte* const data_;
};

/// What a group of one member does with `count` elements: between the first and the second half of
/// registered memory, compared with what the host finds.
class AloneInGroup {
 public:
  AloneInGroup(Device device, DeviceGroup& group, std::int64_t count)
      : count_(count),
        group_(group),
        stream_(Stream::make(device)),
        half_((static_cast<std::size_t>(count) * sizeof(double) + 511) / 512 * 512),
        memory_(device, group, 2 * half_) {}

  void compare_all() {
    compare_messages();
    for (const bool in_place : {false, true}) {
      compare_forms(in_place);
    }
    for (const DType type : {DType::f32, DType::bf16, DType::i32}) {
      compare_sums(type);
    }
  }

 private:
  std::byte* from() const { return memory_.data(); }
  std::byte* to() const { return memory_.data() + half_; }
  std::size_t bytes_of(DType type) const {
    return static_cast<std::size_t>(count_) * size_of(type);
  }

  /// Elements that are powers of two, so that their sums and products are exact.
  Bytes elements(DType type, int number) const {
    std::vector<float> values;
    for (std::int64_t i = 0; i < count_; ++i) {
      values.push_back(static_cast<float>(1 << ((i + number) % 5)));
    }
    const Tensor x = ops::cast(from_values(std::span<const float>(values), {count_}), type);
    const auto* const first = static_cast<const std::byte*>(ops::data_of(x));
    return {first, first + bytes_of(type)};
  }

  void give(const Bytes& source, std::byte* to) {
    stream_.copy(to, source.data(), source.size(), CopyKind::to_device);
  }
  /// Fails unless `wanted` is at `at` when the stream has done its work.
  void want(const std::string& what, const Bytes& wanted, const std::byte* at) {
    auto found = std::make_shared<Bytes>(wanted.size());
    stream_.copy(found->data(), at, found->size(), CopyKind::to_host);
    stream_.synchronize_into(found);
    if (*found != wanted) {
      fail(fmt::format("{} of {} elements in a group of one member has a wrong result", what,
                       count_));
    }
  }

  /// Two messages to itself.
  void compare_messages() {
    const Bytes source = elements(DType::f32, 0);
    const std::size_t first = source.size() / 3 + 1;
    give(source, from());
    give(Bytes(source.size()), to());
    const auto messages = [&](std::byte* at) {
      return std::array{DeviceMessage{0, at, first},
                        DeviceMessage{0, at + first, source.size() - first}};
    };
    group_.exchange(stream_.native(), messages(from()), messages(to()));
    want("exchange with itself", source, to());
  }

  void compare_forms(bool in_place) {
    const Bytes source = elements(DType::f32, 1);
    std::byte* const destination = in_place ? from() : to();
    const auto compare = [&](const char* what, const auto& queue) {
      give(Bytes(source.size()), to());
      give(source, from());
      if (queue()) {
        want(what, source, destination);
      }
    };
    compare("all_gather", [&] {
      return group_.all_gather(stream_.native(), from(), destination, source.size());
    });
    compare("broadcast", [&] {
      return group_.broadcast(stream_.native(), from(), destination, source.size(), 0);
    });
  }

  void compare_sums(DType type) {
    const Bytes source = elements(type, 2);
    for (const ReduceOp reduce : {ReduceOp::sum, ReduceOp::max}) {
      for (const bool scattered : {false, true}) {
        give(Bytes(source.size()), to());
        give(source, from());
        const GroupReduction reduction = {from(), to(), count_, scattered};
        if (group_.reduce_in_own_order(stream_.native(), {&reduction, 1}, type, reduce)) {
          want("reduce_in_own_order", source, to());
        }
      }
    }
    Bytes sum = elements(type, 3);
    const std::array<const void*, 2> here = {source.data(), sum.data()};
    const std::array<const void*, 2> there = {from(), to()};
    Combination combination = {
        .destination = to(), .sources = there, .count = count_, .type = type};
    give(source, from());
    give(sum, to());
    group_.combine(stream_.native(), combination);
    combination.destination = sum.data();
    combination.sources = here;
    collective::combine_on_host(combination);
    want("combine", sum, to());
  }

  const std::int64_t count_;
  DeviceGroup& group_;
  const Stream stream_;
  const std::size_t half_;
  const RegisteredMemory memory_;
};

void compare_alone(const std::string& name) {
  const Device device = device_of(name, 0, 1);
  const auto group = join_first(name, device, 1, [] {});
  for (const std::int64_t count : {3, 90000, 3}) {  // in memory that comes and goes
    AloneInGroup(device, *group, count).compare_all();
  }
}

std::string alone_agrees(const std::string& name) {
  compare_alone(name);
  return "";
}

/// Runs `wait` on a thread, and `interrupt` on this one when `wait` has begun to wait. An error of
/// `wait` is its end. Returns what is wrong with how it ended.
std::string ends_after(const std::string& what, const std::function<void()>& wait,
                       const std::function<void()>& interrupt) {
  std::thread waits([&] {
    try {
      wait();
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): an error is an end
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const auto begin = std::chrono::steady_clock::now();
  interrupt();
  waits.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  constexpr double longest = 10;
  return took.count() < longest ? "" : fmt::format("{} took {:.0f} s to end", what, took.count());
}

/// A stream is held while a group's work is queued in it, the group is aborted, and the stream goes
/// on; so does the device, with a new group.
std::string aborts(const std::string& name) {
  const Device device = device_of(name, 0, 1);
  trying("an abort of work that is queued");
  std::string problem;
  {
    const auto group = join_first(name, device, 1, [] {});
    const RegisteredMemory memory(device, *group, 1 << 20);
    const Stream stream = Stream::make(device);
    const auto released = std::make_shared<std::atomic<bool>>(false);
    problem = ends_after(
        "work that was queued before an abort",
        [&] {
          stream.launch([released] {
            constexpr int longest_ms = 2000;  // for an abort that waits for the stream
            for (int ms = 0; ms < longest_ms && !*released; ++ms) {
              std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
          });
          const DeviceMessage sent = {0, memory.data(), 1 << 19};
          const DeviceMessage received = {0, memory.data() + (1 << 19), 1 << 19};
          group->exchange(stream.native(), {&sent, 1}, {&received, 1});
          stream.synchronize();
        },
        [&] {
          group->abort();
          *released = true;
        });
  }
  if (problem.empty()) {
    trying("a new group after an abort");
    compare_alone(name);
  }
  return problem;
}

/// The second member of a group never comes.
std::string waits_end(const std::string& name) {
  const Device device = device_of(name, 0, 1);
  std::atomic<bool> failed = false;
  std::atomic<bool> complete = false;
  std::mutex mutex;
  std::shared_ptr<DeviceGroup> joined;  // guarded by it
  const std::string problem = ends_after(
      "a wait for a member that never comes",
      [&] {
        const std::shared_ptr<DeviceGroup> group = join_first(name, device, 2, [&] {
          if (failed) {
            fail("planted");
          }
        });
        {  // only where join() does not wait
          const std::lock_guard lock(mutex);
          joined = group;
        }
        const Stream stream = Stream::make(device);
        const RegisteredMemory memory(device, *group, 4096);
        const DeviceMessage received = {1, memory.data(), 4096};
        group->exchange(stream.native(), {}, {&received, 1});
        stream.synchronize();
        complete = true;
      },
      [&] {
        failed = true;
        const std::lock_guard lock(mutex);
        if (joined != nullptr) {
          joined->abort();
        }
      });
  return problem.empty() && complete ? "a message of a member that never came has arrived"
                                     : problem;
}

}  // namespace

std::vector<SuiteCheck> collectives_suite(const std::string& name) {
  return {{"processes exchange their data", [=] { return processes_agree(name); }},
          {"calls have the bits of the host's", [=] { return threads_agree(name); }},
          {"a rank that fails ends the others", [=] { return failures_end(name); }},
          {"a group of one member does what it is told", [=] { return alone_agrees(name); }},
          {"an abort ends what is queued", [=] { return aborts(name); }},
          {"a member that never comes is not waited for when the run fails",
           [=] { return waits_end(name); }}};
}

}  // namespace tessera::plugin_suite
