module;
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>
module tessera.plugin_suite;

import tessera.base;
import tessera.plugin;
import tessera.device;
import tessera.tensor;
import tessera.collective;
import tessera.ops;

// Collectives between devices: whether what Tessera derives from them has the host's bits, between
// threads and between processes, and whether they end when a rank fails.
namespace tessera::plugin_suite {
namespace {

using collective::Communicator;
using collective::Segment;
using collective::World;

/// A call on memory of `count` elements for each rank.
struct Form {
  const char* name;
  std::function<void(Communicator&, std::byte* source, std::byte* destination, std::int64_t count,
                     DType dtype)>
      call;
};

std::byte* row(std::byte* base, std::int64_t number, std::int64_t count, DType dtype) {
  return base + number * count * static_cast<std::int64_t>(size_of(dtype));
}

std::vector<Form> forms() {
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

/// Device of the rank. Throws NotTried where there are too few.
Device device_of(const std::string& name, int rank, int ranks) {
  try {
    return device_for_rank(find_device(name).type, rank, ranks);
  } catch (const Error& error) {
    throw NotTried{fmt::format("there are no devices for {} ranks: {}", ranks, error.what())};
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
  for (const Form& form : forms()) {
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

}  // namespace

std::vector<SuiteCheck> collectives_suite(const std::string& name) {
  return {{"processes exchange their data", [=] { return processes_agree(name); }},
          {"calls have the bits of the host's", [=] { return threads_agree(name); }},
          {"a rank that fails ends the others", [=] { return failures_end(name); }}};
}

}  // namespace tessera::plugin_suite
