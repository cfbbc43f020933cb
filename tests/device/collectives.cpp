// Collectives of tensors on a device: they travel through the host's memory in a stream of their
// own, and the host does not wait. The same streams on the CPU: communication in the background.
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

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.device;
import tessera.plugin;
import tessera.tensor;
import tessera.collective;
import tessera.ops;

#include "devices.hpp"

using namespace tessera;
using tessera::collective::World;
using tessera::testing::adversary;
using tessera::testing::check;
using tessera::testing::contains;
using tessera::testing::error_of;
using tessera::testing::settle;
using tessera::testing::wait_until;

namespace {

using Values = std::vector<double>;

/// first, first + 1, ... of this shape on the device.
Tensor counted(const Dims& shape, double first, Device device) {
  std::vector<float> values(static_cast<std::size_t>(shape.product()));
  std::iota(values.begin(), values.end(), static_cast<float>(first));
  return ops::to_device(from_values(std::span<const float>(values), shape), device);
}

/// How many rows go from one rank to the two groups of another one: i64 [ranks, 2].
Tensor row_counts(World& world, bool sent, Device device) {
  std::vector<std::int64_t> counts;
  for (int peer = 0; peer < world.size(); ++peer) {
    const int from = sent ? world.rank() : peer;
    const int to = sent ? peer : world.rank();
    for (int group = 0; group < 2; ++group) {
      counts.push_back((from + 2 * to + group) % 2);
    }
  }
  return ops::to_device(from_values(std::span<const std::int64_t>(counts), {world.size(), 2}),
                        device);
}

/// What every collective gives rank `rank` of `ranks` for operands on the device.
std::vector<Values> results(World& world, Device device) {
  const collective::Communicator& all = world.everyone();
  const int rank = world.rank();
  const std::int64_t ranks = world.size();
  const auto part = [&](std::int64_t extent) {
    const std::int64_t chunk = (extent + ranks - 1) / ranks;
    return std::min(chunk, std::max<std::int64_t>(0, extent - rank * chunk));
  };
  const Tensor x = counted({5, 3}, 100 * rank, device);
  std::vector<Tensor> found;
  for (const std::int64_t dim : {0, 1}) {
    Dims shard = {5, 3};
    shard[static_cast<int>(dim)] = part(shard[static_cast<int>(dim)]);
    const Tensor mine = counted(shard, 10 * rank, device);
    const std::int64_t extent = dim == 0 ? 5 : 3;
    found.push_back(ops::all_gather(mine, dim, extent, all));
    found.push_back(ops::all_gather_async(mine, dim, extent, all).wait());
    found.push_back(ops::reduce_scatter(x, dim, ReduceOp::sum, all));
    found.push_back(ops::reduce_scatter_async(x, dim, ReduceOp::max, all).wait());
    found.push_back(ops::all_to_all(mine, dim, extent, 1 - dim, all));
    found.push_back(ops::all_to_all_async(mine, dim, extent, 1 - dim, all).wait());
  }
  found.push_back(ops::all_reduce(ops::transpose(x, 0, 1), ReduceOp::sum, all));
  found.push_back(ops::all_reduce_async(x, ReduceOp::min, all).wait());
  found.push_back(ops::broadcast(x, 1, all));
  found.push_back(ops::shift(ops::transpose(x, 0, 1), 1, all));
  found.push_back(ops::shift_async(x, -1, all).wait());
  found.push_back(ops::mirror(ops::transpose(x, 0, 1), 0, all));
  found.push_back(ops::mirror_async(x, 1, all).wait());
  const auto next = static_cast<int>((rank + 1) % ranks);
  const Tensor message = ops::transpose(x, 0, 1);
  ops::send(message, next, 7, all);
  found.push_back(counted({3, 5}, 0, device));
  ops::receive_(found.back(), static_cast<int>((rank + ranks - 1) % ranks), 7, all);
  ops::mul_scalar_(message, 2);  // after it was sent
  const Tensor sends = row_counts(world, true, device);
  const Tensor receives = row_counts(world, false, device);
  found.push_back(ops::all_to_all_rows(x, sends, receives, 7, ops::RowOrder::by_group, all));
  found.push_back(
      ops::all_to_all_rows(found.back(), receives, sends, 5, ops::RowOrder::by_rank, all));
  found.push_back(
      ops::all_to_all_rows_async(x, sends, receives, 7, ops::RowOrder::by_group, all).wait());
  const Tensor own = counted({4}, rank, device);
  ops::all_reduce_(own, ReduceOp::sum, all);
  found.push_back(own);

  // Two wholes of one memory, gathered and reduced.
  const Tensor memory = empty({7 + 6}, DType::f32, device);
  const std::vector<Tensor> wholes = {alias(memory, {7}, {1}, 0), alias(memory, {3, 2}, {2, 1}, 7)};
  const std::vector<Tensor> shards = {counted({part(7)}, rank, device),
                                      counted({part(3), 2}, -rank, device)};
  ops::all_gather_into(wholes, shards, all, 1);
  ops::wait(wholes[0]);
  found.insert(found.end(), wholes.begin(), wholes.end());
  const Tensor reduced = zeros({part(7) + 2 * part(3)}, DType::f32, device);
  const std::vector<Tensor> pieces = {alias(reduced, {part(7)}, {1}, 0),
                                      alias(reduced, {part(3), 2}, {2, 1}, part(7))};
  ops::reduce_scatter_into(pieces, wholes, ReduceOp::sum, all, 2);
  ops::wait(pieces[0]);
  found.insert(found.end(), pieces.begin(), pieces.end());
  ops::wait_readers(wholes, all);

  std::vector<Values> values;
  for (const Tensor& t : found) {
    check(t.device() == device, "t.device() == device");
    values.push_back(to_doubles(t));
  }
  return values;
}

/// Of each rank, in a world of `ranks` threads; rank r has device first + r, or the CPU.
std::vector<std::vector<Values>> results_of(int ranks, int first_device, bool background) {
  std::vector<std::vector<Values>> all(static_cast<std::size_t>(ranks));
  collective::run_threads(ranks, [&](World& world) {
    world.set_background(background);
    const Device device = first_device < 0 ? cpu : adversary(first_device + world.rank());
    all[static_cast<std::size_t>(world.rank())] = results(world, device);
  });
  return all;
}

}  // namespace

TEST_CASE("collectives of tensors on devices, and in the background, have the CPU's results") {
  for (const int ranks : {2, 3}) {
    const auto expected = results_of(ranks, -1, false);
    CHECK(results_of(ranks, -1, true) == expected);
    for (const int first : {0, 1, 5}) {
      INFO(ranks << " ranks from device " << first);
      CHECK(results_of(ranks, first, false) == expected);
      CHECK(results_of(ranks, first, true) == expected);
    }
  }
}

TEST_CASE("the host does not wait for a collective of tensors on a device") {
  collective::run_threads(2, [](World& world) {
    const Device device = adversary(world.rank());
    // The first call for a group may wait for its members, as it makes what connects their devices.
    ops::all_reduce(counted({1}, 0, device), ReduceOp::sum, world.everyone());
    const Tensor x = counted({3}, world.rank(), device);
    Tensor sum;
    if (world.rank() == 0) {
      // Rank 1 has not called it, and will only when rank 0 has sent a message.
      sum = ops::all_reduce(x, ReduceOp::sum, world.everyone());
      ops::mul_scalar_(sum, 10);
      const int token = 1;
      world.everyone().send(&token, 1, DType::i32, 1);
    } else {
      int token = 0;
      world.everyone().receive(&token, 1, DType::i32, 0);
      sum = ops::mul_scalar(ops::all_reduce(x, ReduceOp::sum, world.everyone()), 10);
    }
    check(to_doubles(sum) == Values{10, 30, 50}, "to_doubles(sum) == Values{10, 30, 50}");
  });
}

TEST_CASE("a collective in the background moves its data while the rank computes") {
  collective::run_threads(2, [](World& world) {
    world.set_background(true);
    const Tensor x = counted({1000}, world.rank(), cpu);
    ops::PendingTensor sum = ops::all_reduce_async(x, ReduceOp::sum, world.everyone());
    // No call of this thread moves it: done() looks only.
    wait_until([&] { return sum.done(); });
    check(sum.done(), "sum.done()");
    check(to_doubles(sum.wait())[7] == 15, "to_doubles(sum.wait())[7] == 15");
  });
}

TEST_CASE("a result that nobody waits for is complete before its memory is used again") {
  collective::run_threads(2, [](World& world) {
    world.set_background(true);
    for (const Device device : {cpu, adversary(world.rank())}) {
      for (int i = 0; i < 3; ++i) {
        if (world.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(30));  // rank 0 is early
        }
        const Tensor x = counted({50000}, i, device);
        ops::all_reduce_async(x, ReduceOp::sum, world.everyone());
        const Tensor next = full({50000}, -1, DType::f32, device);
        ops::all_reduce_async(counted({1}, i, device), ReduceOp::sum, world.everyone()).wait();
        check(ops::sum(next).item() == -50000, "ops::sum(next).item() == -50000");
        if (world.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(30));
        }
        {
          const Tensor written = counted({50000}, i, device);
          ops::all_reduce_coalesced_({&written, 1}, ReduceOp::sum, world.everyone(), 0);
        }
        const Tensor later = full({50000}, -1, DType::f32, device);
        ops::all_reduce_async(counted({1}, i, device), ReduceOp::sum, world.everyone()).wait();
        check(ops::sum(later).item() == -50000, "ops::sum(later).item() == -50000");
      }
    }
  });
}

TEST_CASE("calls of the rank's thread do not meet those that wait in a stream") {
  collective::run_threads(2, [](World& world) {
    world.set_background(true);
    for (int i = 0; i < 200; ++i) {
      ops::PendingTensor sum =
          ops::all_reduce_async(counted({3}, world.rank(), cpu), ReduceOp::sum, world.everyone());
      if ((i + world.rank()) % 2 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      const Tensor most =
          ops::all_reduce(counted({5}, world.rank(), cpu), ReduceOp::max, world.everyone());
      check(to_doubles(most) == Values{1, 2, 3, 4, 5}, "to_doubles(most) == Values{1, 2, 3, 4, 5}");
      check(to_doubles(sum.wait()) == Values{1, 3, 5}, "to_doubles(sum.wait()) == Values{1, 3, 5}");
    }
  });
}

TEST_CASE("a rank that waits on the host moves its device on, for the others") {
  collective::run_threads(2, [](World& world) {
    world.set_timeout(20);
    const Device device = adversary(world.rank());
    const Tensor sum =
        ops::all_reduce(counted({3}, world.rank(), device), ReduceOp::sum, world.everyone());
    if (world.rank() == 1) {
      check(to_doubles(sum) == Values{1, 3, 5},
            "to_doubles(sum) == Values{1, 3, 5}");  // needs rank 0's device
    }
    world.everyone().barrier();
    check(to_doubles(sum) == Values{1, 3, 5}, "to_doubles(sum) == Values{1, 3, 5}");
  });
}

TEST_CASE(
    "the event of a collective orders what uses its result: without it, the reader is early") {
  for (const bool with_wait : {false, true}) {
    collective::run_threads(2, [&](World& world) {
      const Device device = adversary(2 * world.rank());  // 0 and 2
      const Tensor memory = full({4}, -1, DType::f32, device);
      const std::vector<Tensor> wholes = {alias(memory, {4}, {1}, 0)};
      const std::vector<Tensor> shards = {counted({2}, 2 * world.rank(), device)};
      synchronize(device);
      ops::all_gather_into(wholes, shards, world.everyone(), 1);
      if (with_wait) {
        ops::wait(wholes[0]);
      }
      const Tensor copy = ops::mul_scalar(wholes[0], 1);
      if (world.rank() == 0) {  // device 0 runs only what is needed
        check((to_doubles(copy) == Values{0, 1, 2, 3}) == with_wait,
              "(to_doubles(copy) == Values{0, 1, 2, 3}) == with_wait");
      }
      synchronize(device);
    });
  }
}

TEST_CASE("an error of a collective in a stream stops every rank, and is raised") {
  for (const bool on_device : {false, true}) {
    const std::string text = error_of([&] {
      collective::run_threads(2, [&](World& world) {
        world.set_background(true);
        const Device device = on_device ? adversary(world.rank()) : cpu;
        const Tensor x = counted({3 + world.rank()}, 0, device);  // ranks differ
        const Tensor sum = ops::all_reduce_async(x, ReduceOp::sum, world.everyone()).wait();
        to_doubles(sum);
        world.everyone().barrier();
      });
    });
    INFO(text);
    CHECK(contains(text, "the ranks' calls differ"));
    settle(adversary(0));
    settle(adversary(1));
  }
}

TEST_CASE("an error before a collective in a stream stops the ranks that wait for it") {
  const std::string text = error_of([] {
    collective::run_threads(2, [](World& world) {
      world.set_timeout(20);
      world.set_background(true);
      const Tensor whole = zeros({4});
      const Tensor shard = zeros({world.rank() == 0 ? 3 : 2});  // rank 0's does not fit
      ops::all_gather_into({&whole, 1}, {&shard, 1}, world.everyone(), 1);
      if (world.rank() == 0) {
        world.everyone().barrier();  // it does not look at its result
      }
      ops::wait(whole);
    });
  });
  INFO(text);
  CHECK(contains(text, "rank 0 of 2 has a shard f32[3] of a whole f32[4]"));
}

TEST_CASE("pinned memory is not reused by another stream while the first one needs it") {
  const Device device = adversary(0);
  const Stream first = Stream::make(device);
  const Stream second = Stream::make(device);
  const Tensor x = empty({4}, DType::f32, device);
  const Tensor y = empty({4}, DType::f32, device);
  const auto send = [](const Stream& stream, const Tensor& to, float value) {
    const PinnedMemory memory(stream, 16);
    auto* const data = static_cast<float*>(memory.data());
    stream.launch([data, value] { std::fill_n(data, 4, value); });
    const Event filled = record_event(stream);
    stream.copy(to.storage().data(), data, 16, CopyKind::from_pinned);
    filled.synchronize();  // this device does no more than that: the copy has not run
  };
  send(first, x, 1);
  send(second, y, 2);
  CHECK(to_doubles(x) != Values{1, 1, 1, 1});
  first.synchronize();
  second.synchronize();
  CHECK(to_doubles(x) == Values{1, 1, 1, 1});
  CHECK(to_doubles(y) == Values{2, 2, 2, 2});
}

TEST_CASE("pinned memory is reused in the order of its stream, and the CPU has none") {
  const Device device = adversary(0);
  const Stream stream = Stream::make(device);
  const Tensor x = empty({4}, DType::f32, device);
  const auto send = [&](float value) {
    const PinnedMemory memory(stream, 16);
    auto* const data = static_cast<float*>(memory.data());
    stream.launch([data, value] { std::fill_n(data, 4, value); });
    stream.copy(x.storage().data(), data, 16, CopyKind::from_pinned);
  };
  send(1);
  send(2);  // likely in the same memory, which the first copy has not read yet
  stream.synchronize();
  CHECK(to_doubles(x) == Values{2, 2, 2, 2});
  CHECK(contains(error_of([] { pinned_allocator_of(cpu); }), "the CPU has none"));
}
