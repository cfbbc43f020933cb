// The plugin nccl on the emulator: ranks that are processes, each with its GPU.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "control.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.device;
import tessera.plugin;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.ops;

#include "call_forms.hpp"
#include "emulated_ranks.hpp"

using namespace tessera;
using namespace tessera::testing;
using collective::Communicator;
using collective::DeviceGroupRequest;
using collective::World;

namespace {

using Values = std::vector<double>;

void compare(World& world, Communicator& there, Device device, const Form& form, DType dtype,
             std::int64_t count) {
  const std::int64_t all = count * std::max(2, world.size());
  const Tensor source = filled(world, all, dtype);
  const Tensor destination = filled(world, all, dtype);
  const Tensor source_there = ops::to_device(source, device);
  const Tensor destination_there = ops::to_device(destination, device);
  const Values expected = after(world.everyone(), form, source, destination, count);
  check(after(there, form, source_there, destination_there, count) == expected,
        std::string(form.name) + " of " + std::to_string(count) + " " +
            std::string(name_of(dtype)) + " has the host's bits");
}

/// A reduction whose elements stay in f32 and are added to what is there.
Values averaged(Communicator& c, const Tensor& from, const Tensor& to) {
  const std::int64_t chunk = to.numel();
  const collective::Segment segment{ops::data_of(from), ops::data_of(to), chunk, from.numel()};
  c.reduce_scatter({&segment, 1}, DType::bf16,
                   {.reduce = ReduceOp::avg, .destination_f32 = true, .accumulate = true});
  return to_doubles(to);
}

std::byte* from_byte(const Tensor& x, std::size_t bytes) {
  return static_cast<std::byte*>(x.device_address()) + bytes;
}

bool same_number(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

}  // namespace

TEST_CASE("collectives over NCCL have the CPU's bits") {
  const int ranks = GENERATE(2, 4);
  const std::string seed = GENERATE("0", "1", "5");
  const Outcome outcome = launched(ranks,
                                   [](World& world) {
                                     const Device device = gpu(world.rank());
                                     Communicator& there = over_nccl(world, device);
                                     const StreamScope scope(there.stream(device));
                                     for (const Form& form : forms()) {
                                       compare(world, there, device, form, DType::f32, 5);
                                       compare(world, there, device, form, DType::bf16, 700);
                                       if (form.reduces)
                                         compare(world, there, device, form, DType::i64, 33);
                                     }
                                   },
                                   {{"TESSERA_EMULATOR_SEED", seed}});
  INFO(outcome.errors);
  CHECK(outcome.code == 0);
}

TEST_CASE("large and averaged reductions over NCCL have the CPU's bits") {
  const Outcome outcome = launched(4, [](World& world) {
    const Device device = gpu(world.rank());
    Communicator& there = over_nccl(world, device);
    const StreamScope scope(there.stream(device));
    compare(world, there, device, forms()[0], DType::f32, 70000);  // in two phases
    const Tensor source = filled(world, 33, DType::bf16);
    const Tensor destination = filled(world, 9, DType::f32);
    const Tensor copy = ops::to_device(destination, device);
    const Values expected = averaged(world.everyone(), source, destination);
    check(averaged(there, ops::to_device(source, device), copy) == expected, "the same bits");
  });
  INFO(outcome.errors);
  CHECK(outcome.code == 0);
}

TEST_CASE("reductions of any type, over few and many ranks, have the CPU's bits on a GPU") {
  const Outcome outcome = as_program([] {
    const Device device = gpu(0);
    const auto offer = plugin::host().find<collective::CollectivesPlugin>("cuda")();
    const std::array<int, 1> self = {0};
    DeviceGroupRequest request = {.device = device, .ranks = self, .check = [] {}};
    const std::vector<std::byte> id = offer.make_id(request);
    request.id = id;
    const auto group = offer.join(request);
    const World& world = World::current();
    constexpr std::int64_t count = 301;
    // Of sums, each number of ranks that is another tree, with addresses that fit vectors or not.
    const std::vector<int> trees = {1, 2, 3, 4, 5, 7, 8, 12, 16, 20, 37};
    for (const DType type : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i64,
                             DType::i32, DType::u8, DType::boolean}) {
      for (const ReduceOp reduce :
           {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min, ReduceOp::product}) {
        for (const int mode : {0, 1, 2, 3}) {
          const bool f32 = (mode & 1) != 0 && (type == DType::bf16 || type == DType::f16);
          const bool accumulate = (mode & 2) != 0 && type != DType::boolean;
          if (reduce == ReduceOp::avg && !is_floating(type)) continue;
          const bool adds = reduce == ReduceOp::sum || reduce == ReduceOp::avg;
          for (const int sources : adds ? trees : std::vector<int>{3, 20}) {
            const std::size_t skipped = sources % 5 == 0 ? size_of(type) : 0;
            std::vector<Tensor> here;
            std::vector<Tensor> there;
            std::vector<const void*> from_here;
            std::vector<const void*> from_there;
            for (int i = 0; i < sources; ++i) {
              here.push_back(
                  ops::cast(ops::mul_scalar(filled(world, count, DType::f32), 1 + 0.1 * i), type));
              there.push_back(ops::to_device(here.back(), device));
              from_here.push_back(from_byte(here.back(), skipped));
              from_there.push_back(from_byte(there.back(), skipped));
            }
            const Tensor to = filled(world, count, f32 ? DType::f32 : type);
            const Tensor to_there = ops::to_device(to, device);
            collective::Combination c = {
                .destination = from_byte(to, skipped == 0 ? 0 : size_of(to.dtype())),
                .sources = from_here,
                .count = skipped == 0 ? count : count - 1,
                .type = type,
                .reduce = reduce,
                .destination_f32 = f32,
                .accumulate = accumulate};
            collective::combine_on_host(c);
            c.destination = from_byte(to_there, skipped == 0 ? 0 : size_of(to.dtype()));
            c.sources = from_there;
            group->combine(current_stream(device).native(), c);
            check(std::ranges::equal(to_doubles(to_there), to_doubles(to), same_number),
                  std::to_string(sources) + " sources of " + std::string(name_of(type)));
          }
        }
      }
    }
    return 0;
  });
  INFO(outcome.errors);
  CHECK(outcome.code == 0);
}

TEST_CASE("a group over NCCL gives back the memory that it has registered") {
  const std::string window = GENERATE("0", "4");
  const auto body = [] {
    collective::run_threads(2, [](World& world) {
      const Device device = gpu(world.rank());
      Communicator& there = over_nccl(world, device);
      const Tensor x = full({9}, 1 + world.rank(), DType::f32, device);
      const StreamScope scope(there.stream(device));
      there.all_reduce(x.device_address(), x.device_address(), 9, DType::f32);
      synchronize(device);
    });
    synchronize(gpu(0));  // raises what the emulator has found at the end of the groups
    check(emulator_window_memory() == 0, "the windows' memory is freed");
    return 0;
  };
  const Outcome outcome = as_program(body, {{"TESSERA_NCCL_WINDOW", window}});
  INFO(outcome.errors);
  CHECK(outcome.code == 0);
}

TEST_CASE(
    "sums of NCCL's own order are near to those of the tree over the ranks, with other bits") {
  const Outcome outcome = launched(4, [](World& world) {
    world.set_device_collectives(collective::DeviceCollectives::own_order);
    const Device device = gpu(world.rank());
    Communicator& there = over_nccl(world, device);
    const StreamScope scope(there.stream(device));
    constexpr std::int64_t count = 400;
    bool others = false;
    for (const Form& form : forms()) {
      if (!form.reduces) continue;
      const Tensor source = filled(world, 4 * count, DType::bf16);
      const Tensor destination = filled(world, 4 * count, DType::bf16);
      const Tensor source_there = ops::to_device(source, device);
      const Tensor destination_there = ops::to_device(destination, device);
      const Values expected = after(world.everyone(), form, source, destination, count);
      const Values found = after(there, form, source_there, destination_there, count);
      others = others || found != expected;
      for (std::size_t i = 0; i < found.size(); ++i) {
        check(std::abs(found[i] - expected[i]) <= 0.04 * (4 + std::abs(expected[i])), form.name);
      }
      compare(world, there, device, form, DType::i64, 33);  // exact in any order
    }
    check(others, "bf16 is rounded at every rank of a ring");
    const Tensor source = filled(world, 36, DType::bf16);
    const Tensor destination = filled(world, 9, DType::f32);
    const Tensor copy = ops::to_device(destination, device);
    const Values expected = averaged(world.everyone(), source, destination);
    check(averaged(there, ops::to_device(source, device), copy) == expected,
          "NCCL cannot add to f32, so these keep their order");
  });
  INFO(outcome.errors);
  CHECK(outcome.code == 0);
}

namespace {

/// Collectives of these members, in whatever order they reduce, have the host's results; whether
/// they have gone through a symmetric window.
bool go_through_windows(World& world, const std::vector<int>& members, bool own_order) {
  const Device device = gpu(world.rank());
  Communicator* const there = world.communicator_on(device, members);
  check(there != nullptr, "NCCL is used");
  const StreamScope scope(there->stream(device));
  const std::uint64_t before = emulator_window_calls();
  const auto count = static_cast<std::int64_t>(members.size());
  const Tensor x = filled(world, 1000, DType::bf16);
  const Tensor all = full({1000 * count}, 0, DType::bf16, device);
  there->all_gather(ops::to_device(x, device).device_address(), all.device_address(), 1000,
                    DType::bf16);
  synchronize(device);
  const bool gathered = emulator_window_calls() > before;
  if (members.size() == static_cast<std::size_t>(world.size())) {
    for (const Form& form : forms()) {
      compare(world, *there, device, form, DType::i64, 33);  // exact in any order
      if (!own_order) compare(world, *there, device, form, DType::bf16, 700);
    }
    const std::uint64_t ended = emulator_window_calls();
    compare(world, *there, device, forms()[0], DType::i64, 200000);  // more than a window has
    check(emulator_window_calls() == ended, "what is too large goes beside the window");
  }
  const auto own =
      static_cast<std::int64_t>(std::ranges::find(members, world.rank()) - members.begin());
  check(to_doubles(ops::slice(all, 0, 1000 * own, 1000 * (own + 1))) == to_doubles(x),
        "this rank's piece");
  return gathered;
}

}  // namespace

TEST_CASE("collectives of GPUs go through symmetric windows where NCCL has some") {
  const auto [ranks, machines] = GENERATE(table<int, int>({{2, 1}, {4, 1}, {4, 2}}));
  const bool own_order = GENERATE(false, true);
  const Outcome outcome = launched(
      ranks,
      [machines, own_order](World& world) {
        const int of_machine = world.size() / machines;
        const int first = world.rank() / of_machine * of_machine;
        setenv("TESSERA_EMULATOR_MACHINE", std::to_string(first).c_str(), 1);
        if (world.rank() != 0) unsetenv("TESSERA_NCCL_WINDOW");  // rank 0 decides
        if (own_order) world.set_device_collectives(collective::DeviceCollectives::own_order);
        check(go_through_windows(world, all_ranks(world), own_order) == (machines == 1),
              "windows of all ranks");
        if (machines > 1) {
          if (world.rank() == first) setenv("TESSERA_NCCL_WINDOW", "1", 1);
          check(go_through_windows(world, {first, first + 1}, own_order), "windows of a machine");
        }
      },
      {{"TESSERA_NCCL_WINDOW", "1"}});
  INFO(outcome.errors);
  CHECK(outcome.code == 0);
  CHECK(contains(outcome.errors, "has no symmetric windows for ranks 0, 1, 2 and 3") ==
        (machines == 2));
}

TEST_CASE("calls of a group in several queues use its window one after the other") {
  const std::string seed = GENERATE("0", "1", "5", "6");
  const Outcome outcome = as_program(
      [] {
        const auto offer = plugin::host().find<collective::CollectivesPlugin>("cuda")();
        const std::array<int, 2> members = {0, 1};
        std::vector<std::byte> id;
        std::atomic<bool> has_id{false};
        collective::run_threads(2, [&](World& world) {
          const Device device = gpu(world.rank());
          DeviceGroupRequest request = {
              .device = device, .rank = world.rank(), .size = 2, .ranks = members, .check = [] {}};
          if (world.rank() == 0) {
            id = offer.make_id(request);
            has_id = true;
          }
          while (!has_id) std::this_thread::yield();
          request.id = id;
          const auto group = offer.join(request);
          const std::array<Stream, 2> streams = {Stream::make(device), Stream::make(device)};
          std::vector<Tensor> sources, gathered;
          for (int i = 0; i < 4; ++i) {
            sources.push_back(full({500}, 10 * world.rank() + i, DType::f32, device));
            gathered.push_back(full({1000}, 0, DType::f32, device));
          }
          synchronize(device);
          for (int i = 0; i < 4; ++i) {
            group->all_gather(streams[i % 2].native(), sources[i].device_address(),
                              gathered[i].device_address(), 2000);
          }
          for (const Stream& stream : streams) stream.synchronize();
          for (int i = 0; i < 4; ++i) {
            Values expected(500, i);
            expected.resize(1000, 10 + i);
            check(to_doubles(gathered[i]) == expected, "gather " + std::to_string(i));
          }
        });
        return 0;
      },
      {{"TESSERA_EMULATOR_SEED", seed}, {"TESSERA_NCCL_WINDOW", "1"}});
  INFO(outcome.errors);
  CHECK(outcome.code == 0);
}

TEST_CASE("what is wrong with symmetric windows is an error that says what to do") {
  const auto use = [](World& world) { over_nccl(world, gpu(world.rank())); };
  const auto errors_of = [&](const std::map<std::string, std::string>& variables) {
    const Outcome outcome = launched(2, use, variables);
    CHECK(outcome.code == 2);
    return outcome.errors;
  };
  CHECK(contains(errors_of({{"TESSERA_NCCL_WINDOW", "many"}}),
                 "TESSERA_NCCL_WINDOW: is not the size of a window in MiB (expected 0 (no windows) "
                 "to 4096, got many)"));
  CHECK(contains(errors_of({{"TESSERA_NCCL_WINDOW", "8"}, {"TESSERA_EMULATOR_NCCL", "22603"}}),
                 "NCCL has no symmetric windows (expected version 2.27.0 or later, got 2.26.3)"));
  CHECK(contains(errors_of({{"TESSERA_NCCL_WINDOW", "4096"}}),
                 "ncclMemAlloc of 4096 MiB for ranks 0 and 1 fails"));
  const Outcome off = launched(2, use, {{"TESSERA_NCCL_WINDOW", "8"}, {"NCCL_WIN_ENABLE", "0"}});
  INFO(off.errors);
  CHECK(off.code == 0);
  CHECK(contains(off.errors, "NCCL has no symmetric windows for ranks 0 and 1"));
}

TEST_CASE("collectives of GPUs go through the host's memory where that is asked for") {
  const Outcome outcome = launched(
      2,
      [](World& world) {
        world.set_device_collectives(collective::DeviceCollectives::host);
        const Device device = gpu(world.rank());
        check(world.communicator_on(device, all_ranks(world)) == nullptr, "no NCCL");
        const Tensor x = full({5}, 1 + world.rank(), DType::f32, device);
        check(to_doubles(ops::all_reduce(x, ReduceOp::sum, world.everyone())) == Values(5, 3),
              "the sum");
      },
      {{"TESSERA_EMULATOR_NCCL", "10000"}});
  INFO(outcome.errors);
  CHECK(outcome.code == 0);
}

TEST_CASE("the suite of plugins of collectives tries what one GPU can show") {
  const Outcome outcome = as_program(
      [] { return WEXITSTATUS(std::system(TESSERA " plugin check " NCCL_PLUGIN " >&2")); },
      {{"LD_LIBRARY_PATH", EMULATOR_FOLDER}, {"TESSERA_EMULATOR_DEVICES", "1"}});
  INFO(outcome.errors);
  CHECK(outcome.code == 0);
  CHECK(contains(outcome.errors, "collectives cuda: 3 of 6 checks passed"));
  CHECK(!contains(outcome.errors, "failed:"));
}

TEST_CASE("groups of the same members are split from one communicator, and others have their own") {
  const Outcome outcome = launched(4, [](World& world) {
    const Device device = gpu(world.rank());
    const Tensor x = full({3}, 1 + world.rank(), DType::f32, device);
    for (const auto& [name, distance] : {std::pair("gathers", 1), {"reductions", 1}, {"", 2}}) {
      const int other = world.rank() ^ distance;
      const std::vector<int> members = {std::min(world.rank(), other),
                                        std::max(world.rank(), other)};
      Communicator* const there = world.communicator_on(device, members, name);
      const Stream stream = there->stream(device);
      stream.wait(record_event(current_stream(device)));
      const StreamScope scope(stream);
      const Tensor sum = full({3}, 0, DType::f32, device);
      there->all_reduce(x.device_address(), sum.device_address(), 3, DType::f32);
      check(to_doubles(sum) == Values(3, 2 + world.rank() + other), "of both members");
    }
  });
  INFO(outcome.errors);
  CHECK(outcome.code == 0);
}

TEST_CASE("groups of more than two members share memory of the device, and run in one order") {
  const Outcome outcome = launched(4, [](World& world) {
    const Device device = gpu(world.rank());
    const Tensor x = full({3}, 1 + world.rank(), DType::f32, device);
    const auto taken_by = [&](const std::vector<int>& members, const std::string& name) {
      synchronize(device);
      const auto before = emulator_used_memory(world.rank());
      const ops::GroupArgument group = ops::GroupArgument::of(members, name);
      for (int times = 0; times < 2; ++times) {
        to_doubles(ops::all_reduce(x, ReduceOp::sum, group));
      }
      return emulator_used_memory(world.rank()) - before;
    };
    const std::vector<int> pair = {world.rank() & 2, world.rank() | 1};
    constexpr auto buffers = 60ULL << 20;  // more than the tensors of a group take
    check(taken_by(all_ranks(world), "gathers") > buffers, "a communicator takes memory");
    check(taken_by(all_ranks(world), "reductions") < buffers, "four members share");
    check(taken_by(pair, "gathers") > buffers && taken_by(pair, "reductions") > buffers,
          "two members do not");
    // Both are queued before anything runs, in one order on all ranks.
    ops::PendingTensor first = ops::all_reduce_async(
        x, ReduceOp::sum, ops::GroupArgument::of(all_ranks(world), "gathers"));
    ops::PendingTensor second = ops::all_reduce_async(
        x, ReduceOp::max, ops::GroupArgument::of(all_ranks(world), "reductions"));
    check(to_doubles(second.wait()) == Values(3, 4), "the second one");
    check(to_doubles(first.wait()) == Values(3, 10), "the first one");
  });
  INFO(outcome.errors);
  CHECK(outcome.code == 0);
}

TEST_CASE("a rank that is killed within a function of NCCL's ends the others, which name it") {
  const std::string place = GENERATE(
      "ncclCommInitRankConfig 1", "ncclCommSplit 1", "ncclCommRegister 1",
      "ncclCommGetAsyncError 2", "ncclGroupEnd 1", "ncclSend 2", "ncclRecv 1", "ncclAllGather 1",
      "ncclBroadcast 1", "transfer 1", "transfer 9", "ncclCommDeregister 1", "ncclCommFinalize 1",
      "ncclMemAlloc 1", "ncclCommWindowRegister 1", "ncclCommWindowDeregister 1", "ncclMemFree 1");
  const bool windows = contains(place, "Window") || contains(place, "Mem") || place == "transfer 9";
  constexpr std::int64_t count = 30000;  // travels in several parts
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = launched(
      2,
      [](World& world) {
        const Device device = gpu(world.rank());
        Communicator& there = over_nccl(world, device);
        const StreamScope scope(there.stream(device));
        const Tensor x = full({count}, 1, DType::f32, device);
        const Tensor all = full({2 * count}, 1, DType::f32, device);
        for (int i = 0; i < 20; ++i) {
          there.all_gather(x.device_address(), all.device_address(), count, DType::f32);
          there.broadcast(x.device_address(), count, DType::f32, 1);
          there.all_reduce(x.device_address(), x.device_address(), count, DType::f32);
          to_doubles(x);
        }
      },
      {{"TESSERA_EMULATOR_KILL", "1 " + place}, {"TESSERA_NCCL_WINDOW", windows ? "1" : "0"}});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  INFO(place << ": " << outcome.errors);
  CHECK(outcome.code == 1);
  CHECK(contains(outcome.errors, "rank 1"));
  CHECK(took.count() < 10);  // far below the limit of waits; some 0.5 s on a machine without load
}

TEST_CASE("a rank that is stopped in a collective is named while the others read its result") {
  // Copies of ordinary memory block in the driver, where nobody looks at the other ranks.
  const std::string place = GENERATE("ncclAllGather 3", "transfer 5");
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = launched(
      2,
      [](World& world) {
        const Device device = gpu(world.rank());
        Communicator& there = over_nccl(world, device);
        const StreamScope scope(there.stream(device));
        constexpr std::int64_t count = 30000;
        const Tensor x = full({count}, 1, DType::f32, device);
        const Tensor all = full({2 * count}, 1, DType::f32, device);
        for (int i = 0; i < 20; ++i) {
          there.all_gather(x.device_address(), all.device_address(), count, DType::f32);
          to_doubles(all);
        }
      },
      {{"TESSERA_EMULATOR_KILL", "1 " + place + " " + std::to_string(SIGSTOP)},
       {"TESSERA_EMULATOR_MODES", "0"}},
      1);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  INFO(place << " after " << took.count() << " s: " << outcome.errors);
  CHECK(outcome.code == 1);
  CHECK(contains(outcome.errors, "rank 1 is stopped"));
  CHECK(took.count() < 20);  // the limit is 1 s
}

TEST_CASE("a rank that is stopped in a collective is named while the others queue work behind it") {
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = launched(
      2,
      [](World& world) {
        const Device device = gpu(world.rank());
        Communicator& there = over_nccl(world, device);
        const StreamScope scope(there.stream(device));
        const Tensor x = full({300}, 1, DType::f32, device);
        const Tensor all = full({600}, 1, DType::f32, device);
        there.all_gather(x.device_address(), all.device_address(), 300, DType::f32);
        // More than a stream's queue takes.
        for (int i = 0; i < 2000; ++i) ops::mul_scalar_(all, 1);
        to_doubles(all);
      },
      {{"TESSERA_EMULATOR_KILL", "1 ncclAllGather 1 " + std::to_string(SIGSTOP)},
       {"TESSERA_EMULATOR_MODES", "0"}},
      1);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  INFO("after " << took.count() << " s: " << outcome.errors);
  CHECK(outcome.code == 1);
  CHECK(contains(outcome.errors, "rank 1 is stopped"));
  CHECK(took.count() < 20);
}

TEST_CASE("many collectives are queued before the first one is done") {
  const bool gathers = GENERATE(true, false);
  const Outcome outcome = launched(2, [gathers](World& world) {
    const Device device = gpu(world.rank());
    Communicator& there = over_nccl(world, device);
    const StreamScope scope(there.stream(device));
    const Tensor x = full({1}, 1 + world.rank(), DType::f32, device);
    const Tensor all = full({2}, 0, DType::f32, device);
    std::atomic<bool> held{true};
    current_stream(device).launch([&] {
      while (held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      held = false;
    });
    // The host waits for room in the stream, and looks at the group meanwhile.
    for (int i = 0; i < 800; ++i) {
      if (gathers) {
        there.all_gather(x.device_address(), all.device_address(), 1, DType::f32);
      } else {
        there.broadcast(x.device_address(), 1, DType::f32, 1);
      }
    }
    later.join();
    check(to_doubles(gathers ? all : x) == (gathers ? Values{1, 2} : Values{2}), "the result");
  });
  INFO(outcome.errors);
  CHECK(outcome.code == 0);
}

TEST_CASE("what is queued over NCCL ends when the run fails, and its stream goes on") {
  // A call that blocks because a queue of a few places is full would not be watched.
  const std::map<std::string, std::string> usual_driver = {{"TESSERA_EMULATOR_MODES", "0"}};
  const auto body = [] {
    const std::string text = error_of([] {
      collective::run_threads(2, [](World& world) {
        const Device device = gpu(world.rank());
        Communicator& there = over_nccl(world, device);
        const StreamScope scope(there.stream(device));
        const Tensor x = full({400}, 1, DType::f32, device);
        if (world.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          fail("planted: rank 1 fails");
        }
        there.all_reduce(x.device_address(), x.device_address(), 400, DType::f32);
        current_stream(device).launch([] { std::fprintf(stderr, "the stream goes on\n"); });
        to_doubles(x);
      });
    });
    check(contains(text, "planted: rank 1 fails"), text);
    synchronize(gpu(0));
    for (int i = 0; i < 100; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return 0;
  };
  const Outcome outcome = as_program(body, usual_driver);
  INFO(outcome.errors);
  CHECK(outcome.code == 0);
  CHECK(contains(outcome.errors, "the stream goes on"));
}

TEST_CASE("a collective over NCCL that a rank does not call ends at the time limit with its name") {
  const Outcome outcome = launched(
      2,
      [](World& world) {
        const Device device = gpu(world.rank());
        Communicator& there = over_nccl(world, device);
        const StreamScope scope(there.stream(device));
        const Tensor x = full({3}, 1, DType::f32, device);
        if (world.rank() == 0) {
          there.all_reduce(x.device_address(), x.device_address(), 3, DType::f32);
          to_doubles(x);
        }
        while (!world.failed()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      },
      {}, 1);
  INFO(outcome.errors);
  CHECK(outcome.code == 1);
  CHECK(contains(outcome.errors, "all_reduce(f32, 3, sum) on a device, call"));
  CHECK(contains(outcome.errors, "rank 1"));
}

TEST_CASE("calls over NCCL that differ are an error that shows both, before the time limit") {
  const Outcome outcome = launched(
      2,
      [](World& world) {
        const Device device = gpu(world.rank());
        Communicator& there = over_nccl(world, device);
        const StreamScope scope(there.stream(device));
        const Tensor x = full({8}, 1, DType::f32, device);
        there.all_reduce(x.device_address(), x.device_address(), 3 + world.rank(), DType::f32);
        to_doubles(x);
      },
      {}, 60);
  INFO(outcome.errors);
  CHECK(outcome.code == 1);
  CHECK(contains(outcome.errors,
                 "rank 0 calls all_reduce(f32, 3, sum) while rank 1 calls all_reduce(f32, 4, "
                 "sum)"));
}

TEST_CASE("a rank that does not join a group over NCCL is named at the time limit") {
  const std::string place =
      GENERATE("ncclCommInitRankConfig", "ncclMemAlloc", "ncclCommWindowRegister");
  const Outcome outcome = launched(
      2, [](World& world) { over_nccl(world, gpu(world.rank())); },
      {{"TESSERA_EMULATOR_KILL", "1 " + place + " 1 " + std::to_string(SIGSTOP)},
       {"TESSERA_NCCL_WINDOW", "1"}},
      1);
  INFO(outcome.errors);
  CHECK(outcome.code == 1);
  CHECK(contains(outcome.errors, "joining a group on 'cuda' by its plugin of collectives"));
  CHECK(contains(outcome.errors, "rank 1 is stopped"));
}

TEST_CASE("NCCL's refusals are errors that say what to do") {
  const auto use = [](World& world) { over_nccl(world, gpu(0)); };
  const Outcome one_gpu = launched(2, use);
  INFO(one_gpu.errors);
  CHECK(one_gpu.code == 2);
  CHECK(contains(one_gpu.errors,
                 "ncclCommInitRankConfig of ranks 0 and 1 fails: invalid usage: "
                 "Duplicate GPU detected : rank 0 and rank 1"));
  CHECK(contains(one_gpu.errors, "give each rank a GPU of its own"));

  const Outcome old = launched(2, use, {{"TESSERA_EMULATOR_NCCL", "21000"}});
  INFO(old.errors);
  CHECK(old.code == 2);
  CHECK(contains(old.errors, "NCCL is too old (expected 2.18.0 or later, got 2.10.0)"));
  CHECK(contains(old.errors, "pip install nvidia-nccl"));
}

TEST_CASE("ranks that reduce in different orders are an error that names two") {
  const Outcome outcome = launched(2, [](World& world) {
    if (world.rank() == 1) {
      world.set_device_collectives(collective::DeviceCollectives::own_order);
    }
    over_nccl(world, gpu(world.rank()));
  });
  INFO(outcome.errors);
  CHECK(outcome.code == 2);
  CHECK(contains(outcome.errors, "reduce in different orders"));
}

namespace {

/// What rank `from` sends in its message `number`.
Tensor sent(int from, int number, std::int64_t count, DType dtype) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(i % 100 + 10 * from + number));
  }
  return ops::cast(from_values(std::span<const float>(values), {count}), dtype);
}

/// Messages of many parts to and from another rank, one after the other, which are read.
void exchange_messages(World& world, int times) {
  const Device device = gpu(world.rank());
  const ops::GroupArgument group = ops::GroupArgument::of(all_ranks(world));
  const Tensor x = full({30000}, 1, DType::f32, device);
  const Tensor other = full({30000}, 0, DType::f32, device);
  for (int i = 0; i < times; ++i) {
    ops::send(x, 1 - world.rank(), 0, group);
    ops::receive_(other, 1 - world.rank(), 0, group);
    to_doubles(other);
  }
}

}  // namespace

TEST_CASE("the rows of experts on GPUs wait for their counts once for each exchange") {
  const Outcome outcome = launched(2, [](World& world) {
    const Device device = gpu(world.rank());
    // By rank and group: this rank sends 1, 2 rows to rank 0 and 3, 1 to rank 1.
    const Tensor sends = ops::cast(sent(0, 1, 4, DType::f32), DType::i64);  // 1, 2, 3, 4
    const Tensor counts = ops::reshape(sends, {2, 2});
    const Tensor receives =
        ops::stack(std::vector<Tensor>(2, ops::select(counts, 0, world.rank())), 0);
    const Tensor x = ops::reshape(sent(world.rank(), 0, 30, DType::f32), {10, 3});
    const std::int64_t rows = 16;  // two of them, at least, are in no use
    const Tensor expected =
        ops::all_to_all_rows(x, counts, receives, rows, ops::RowOrder::by_group, world.everyone());
    const Tensor x_there = ops::to_device(x, device);
    const Tensor counts_there = ops::to_device(counts, device);
    // One of both counts is not contiguous.
    const Tensor receives_there = ops::transpose(
        ops::contiguous(ops::transpose(ops::to_device(receives, device), 0, 1)), 0, 1);
    const ops::GroupArgument group = ops::GroupArgument::of(all_ranks(world));
    ops::all_reduce(x_there, ReduceOp::sum, group);  // makes the communicator
    synchronize(device);
    const std::uint64_t before = emulator_copies_to_host();
    const Tensor got = ops::all_to_all_rows(x_there, counts_there, receives_there, rows,
                                            ops::RowOrder::by_group, group);
    check(emulator_copies_to_host() - before == 1, "the host waits once");
    check(to_doubles(got) == to_doubles(expected), "the rows of the CPU");
  });
  INFO(outcome.errors);
  CHECK(outcome.code == 0);
}

TEST_CASE("messages between GPUs arrive as they were sent, by tag, and both may send first") {
  const int ranks = GENERATE(2, 4);
  const std::string seed = GENERATE("0", "1", "5");
  const Outcome outcome = launched(
      ranks,
      [](World& world) {
        const Device device = gpu(world.rank());
        const ops::GroupArgument group = ops::GroupArgument::of(all_ranks(world), "stages");
        const auto send = [&](int to, int number, std::int64_t count, DType dtype, int tag) {
          const Tensor x = ops::to_device(sent(world.rank(), number, count, dtype), device);
          ops::send(x, to, tag, group);
          ops::fill_(x, 0);  // what was sent is a copy
        };
        const auto receive = [&](int from, int number, std::int64_t count, DType dtype, int tag) {
          const Tensor x = full({count}, 3, dtype, device);
          ops::receive_(x, from, tag, group);
          check(to_doubles(x) == to_doubles(sent(from, number, count, dtype)),
                "message " + std::to_string(number) + " of rank " + std::to_string(from));
        };
        const int other = world.rank() ^ 1;
        for (int times = 0; times < 2; ++times) {
          send(other, 1, 5, DType::f32, 7);
          send(other, 2, 40000, DType::bf16, 8);
          send(other, 3, 6, DType::i64, 7);
          receive(other, 2, 40000, DType::bf16, 8);
          receive(other, 1, 5, DType::f32, 7);
          receive(other, 3, 6, DType::i64, 7);
        }
        // Along a chain, as stages do, with a column of a matrix.
        const Tensor columns =
            ops::to_device(ops::reshape(sent(world.rank(), 0, 12, DType::f32), {6, 2}), device);
        if (world.rank() > 0) receive(world.rank() - 1, 0, 12, DType::f32, 1);
        if (world.rank() + 1 < world.size()) {
          send(world.rank() + 1, 0, 12, DType::f32, 1);
          ops::send(ops::select(columns, 1, 1), world.rank() + 1, 2, group);
        }
        if (world.rank() > 0) {
          const Tensor x = full({6}, 3, DType::f32, device);
          ops::receive_(x, world.rank() - 1, 2, group);
          const Tensor whole = ops::reshape(sent(world.rank() - 1, 0, 12, DType::f32), {6, 2});
          check(to_doubles(x) == to_doubles(ops::contiguous(ops::select(whole, 1, 1))), "a column");
        }
      },
      {{"TESSERA_EMULATOR_SEED", seed}});
  INFO(outcome.errors);
  CHECK(outcome.code == 0);
}

TEST_CASE("messages between GPUs move while both ranks compute") {
  const Outcome outcome = launched(2, [](World& world) {
    const Device device = gpu(world.rank());
    const ops::GroupArgument group = ops::GroupArgument::of(all_ranks(world));
    const Tensor x = full({50000}, 1 + world.rank(), DType::f32, device);
    std::int32_t told = 0;
    if (world.rank() == 0) {
      // The receiver is not there yet: the sender goes on.
      ops::send(x, 1, 0, group);
      ops::send(x, 1, 1, group);
      check(to_doubles(ops::mul_scalar(x, 2)) == Values(50000, 2), "what the sender computes");
      world.everyone().send(&told, 1, DType::i32, 1);
      // The message has left while the receiver's operators wait for what comes after this.
      Communicator* const messages =
          world.communicator_on(device, all_ranks(world), "messages of rank 0");
      check(messages != nullptr, "they move by NCCL");
      messages->stream(device).synchronize();
      world.everyone().send(&told, 1, DType::i32, 1);
    } else {
      ops::receive_(full({50000}, 0, DType::f32, device), 0, 0, group);
      world.everyone().receive(&told, 1, DType::i32, 0);
      std::atomic<bool> held{true};
      current_stream(device).launch([&] {
        while (held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      });
      const Tensor y = ops::mul_scalar(x, 3);
      ops::receive_(y, 0, 1, group);
      world.everyone().receive(&told, 1, DType::i32, 0);
      held = false;
      check(to_doubles(y) == Values(50000, 1), "the message, not what was there before");
    }
  });
  INFO(outcome.errors);
  CHECK(outcome.code == 0);
}

TEST_CASE("a rank that is killed or stopped in a message over NCCL is named") {
  const auto [place, signal] =
      GENERATE(table<std::string, int>({{"ncclCommInitRankConfig 1", SIGKILL},
                                        {"ncclCommInitRankConfig 1", SIGSTOP},
                                        {"ncclCommSplit 1", SIGKILL},
                                        {"ncclCommSplit 2", SIGSTOP},
                                        {"ncclSend 3", SIGKILL},
                                        {"ncclSend 3", SIGSTOP},
                                        {"ncclRecv 2", SIGKILL},
                                        {"ncclRecv 2", SIGSTOP},
                                        {"ncclGroupEnd 5", SIGKILL},
                                        {"ncclGroupEnd 6", SIGSTOP},
                                        {"transfer 3", SIGKILL},
                                        {"transfer 3", SIGSTOP}}));
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = launched(
      2, [](World& world) { exchange_messages(world, 20); },
      {{"TESSERA_EMULATOR_KILL", "1 " + place + " " + std::to_string(signal)},
       {"TESSERA_EMULATOR_MODES", "0"}},
      signal == SIGKILL ? 60 : 1);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  INFO(place << ", signal " << signal << " after " << took.count() << " s: " << outcome.errors);
  CHECK(outcome.code == 1);
  CHECK(contains(outcome.errors, signal == SIGKILL ? "rank 1" : "rank 1 is stopped"));
  CHECK(took.count() < 20);  // the limit of stopped ranks is 1 s
}

TEST_CASE(
    "a message between GPUs that is not sent, or has another length, is an error with names") {
  const bool sends = GENERATE(false, true);
  const Outcome outcome = launched(
      2,
      [sends](World& world) {
        const Device device = gpu(world.rank());
        const ops::GroupArgument group = ops::GroupArgument::of(all_ranks(world));
        const Tensor x = full({4 + world.rank()}, 1, DType::f32, device);
        if (world.rank() == 0) {
          ops::receive_(x, 1, 3, group);
          to_doubles(x);
        } else if (sends) {
          ops::send(x, 0, 3, group);
          synchronize(device);
        } else {
          ops::send(x, 0, 4, group);  // with another tag
          while (!world.failed()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
      },
      {}, sends ? 60 : 1);
  INFO(outcome.errors);
  CHECK(outcome.code == 1);
  CHECK(contains(outcome.errors, sends ? "rank 0 expects 4 of f32 from rank 1 (tag 3), which sent "
                                         "5 of f32"
                                       : "receive(f32, 4, root 1), call 1 of group"));
  CHECK(contains(outcome.errors, "rank 1"));
}
