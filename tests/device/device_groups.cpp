// Collectives between devices by a plugin of the kind "collectives": each is derived from messages
// between two members and reductions, has the host's bits, and fails as the host's do.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "shared_object.hpp"

import tessera.base;
import tessera.device;
import tessera.plugin;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.ops;

#include "call_forms.hpp"
#include "devices.hpp"

using namespace tessera;
using namespace tessera::testing;
using collective::Communicator;
using collective::World;

namespace {

std::vector<int> all_ranks(const World& world) {
  std::vector<int> ranks;
  for (int r = 0; r < world.size(); ++r) {
    ranks.push_back(r);
  }
  return ranks;
}

Communicator& on_device(World& world, Device device) {
  Communicator* const found = world.communicator_on(device, all_ranks(world));
  check(found != nullptr, "there is a plugin for the device");
  return *found;
}

double seconds_of(const std::function<void()>& action) {
  const auto begin = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

TEST_CASE("every call moves between devices as it does through the host") {
  const int machines = GENERATE(1, 2);
  for (const int ranks : {1, 2, 3}) {
    if (ranks < machines) {
      continue;
    }
    collective::run_threads(
        ranks,
        [&](World& world) {
          const Device device = adversary(world.rank());
          Communicator& there = on_device(world, device);
          const StreamScope scope(there.stream(device));
          for (const Form& form : forms()) {
            for (const DType dtype : {DType::f32, DType::bf16, DType::i64}) {
              for (const std::int64_t count : {1, 5, 90000}) {  // the last in two phases
                if (count > 1000 && dtype == DType::bf16 && !form.reduces) {
                  continue;
                }
                const std::int64_t all = count * std::max(2, ranks);
                const Tensor source = filled(world, all, dtype);
                const Tensor destination = filled(world, all, dtype);
                const Tensor source_there = ops::to_device(source, device);
                const Tensor destination_there = ops::to_device(destination, device);
                const Values expected = after(world.everyone(), form, source, destination, count);
                check(after(there, form, source_there, destination_there, count) == expected,
                      std::string(form.name) + " of " + std::to_string(count) + " " +
                          std::string(name_of(dtype)));
              }
            }
          }
        },
        {.machines = machines});
  }
}

TEST_CASE("averages and sums that stay in f32 have the host's bits on devices") {
  collective::run_threads(3, [](World& world) {
    const Device device = adversary(world.rank());
    Communicator& there = on_device(world, device);
    const StreamScope scope(there.stream(device));
    const std::int64_t count = 33;
    const auto reduce = [&](Communicator& c, const Tensor& from, const Tensor& to) {
      const collective::Segment segment{ops::data_of(from), ops::data_of(to), 11, count};
      c.reduce_scatter({&segment, 1}, DType::bf16,
                       {.reduce = ReduceOp::avg, .destination_f32 = true, .accumulate = true});
      return to_doubles(to);
    };
    const Tensor source = filled(world, count, DType::bf16);
    const Tensor destination = filled(world, 11, DType::f32);
    const Tensor copy = ops::to_device(destination, device);
    const Values expected = reduce(world.everyone(), source, destination);
    check(reduce(there, ops::to_device(source, device), copy) == expected, "the same bits");
  });
}

TEST_CASE("the first call for a group waits for its members, and the host waits for no other") {
  collective::run_threads(2, [](World& world) {
    const Device device = adversary(world.rank());
    Communicator& there = on_device(world, device);
    const Tensor x = ops::to_device(filled(world, 4, DType::f32), device);
    const StreamScope scope(there.stream(device));
    if (world.rank() == 0) {
      there.all_reduce(x.device_address(), x.device_address(), 4, DType::f32);
      world.everyone().barrier();  // rank 1 has not issued the call
    } else {
      world.everyone().barrier();
      there.all_reduce(x.device_address(), x.device_address(), 4, DType::f32);
    }
    to_doubles(x);
  });
}

TEST_CASE("calls on devices that differ are an error that shows both, and nobody hangs") {
  const int machines = GENERATE(1, 2);
  std::string text;
  const auto differing =
      [&](double limit, const std::function<void(World&, Communicator&, const Tensor&)>& call) {
        const double seconds = seconds_of([&] {
          text = error_of([&] {
            collective::run_threads(2,
                                    [&](World& world) {
                                      const Device device = adversary(world.rank());
                                      Communicator& there = on_device(world, device);
                                      const StreamScope scope(there.stream(device));
                                      const Tensor x =
                                          ops::to_device(filled(world, 64, DType::f32), device);
                                      call(world, there, x);
                                      to_doubles(x);
                                      world.everyone().barrier();
                                    },
                                    {.timeout_seconds = limit, .machines = machines});
          });
        });
        INFO(text);
        CHECK(seconds < 15);  // where calls are compared, nobody waits for the limit
      };
  differing(60, [](World& world, Communicator& c, const Tensor& x) {
    c.all_reduce(x.device_address(), x.device_address(), 7 + world.rank(), DType::f32);
  });
  CHECK(contains(text,
                 "rank 0 calls all_reduce(f32, 7, sum) while rank 1 calls all_reduce(f32, 8, "
                 "sum)"));
  differing(60, [](World& world, Communicator& c, const Tensor& x) {
    auto* const data = static_cast<float*>(x.device_address());
    const std::vector<std::int64_t> sends = {2, 2};
    const std::vector<std::int64_t> receives = {2, world.rank() == 0 ? 3 : 2};
    c.all_to_all(data, sends, data + 32, receives, DType::f32);
  });
  CHECK(contains(text, "rank 1 sends 2 elements to rank 0, which expects 3"));
  differing(5, [](World& world, Communicator& c, const Tensor& x) {
    if (world.rank() == 0) {
      c.broadcast(x.device_address(), 64, DType::f32, 1);
    }
  });
  CHECK(contains(text, "broadcast(f32, 64, root 1)"));  // of rank 0, or the last call of rank 0
}

TEST_CASE("a wait for a device ends with the error of another rank, whatever the device does") {
  std::atomic<bool> released{false};
  std::string text;
  const double seconds = seconds_of([&] {
    text = error_of([&] {
      collective::run_threads(2, [&](World& world) {
        const Device device = adversary(world.rank());
        const Tensor x = full({3}, 1, DType::f32, device);
        if (world.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(200));
          fail("planted: rank 1 fails");
        }
        current_stream(device).launch([&] { wait_until([&] { return released.load(); }); });
        to_doubles(x);  // behind a function that does not end
      });
    });
  });
  released = true;
  INFO(text);
  CHECK(contains(text, "planted: rank 1 fails"));
  CHECK(seconds < 5);
  synchronize(adversary(0));
}

TEST_CASE("a collective that a rank does not call ends at the time limit, and names that rank") {
  wait_until([] { return !poll_devices(); });  // what other tests have left
  const std::string text = error_of([] {
    collective::run_threads(2,
                            [](World& world) {
                              const Device device = adversary(world.rank());
                              Communicator& there = on_device(world, device);
                              const StreamScope scope(there.stream(device));
                              const Tensor x = full({3}, 1, DType::f32, device);
                              if (world.rank() == 0) {
                                there.all_reduce(x.device_address(), x.device_address(), 3,
                                                 DType::f32);
                                to_doubles(x);
                              } else {
                                wait_until([&] { return world.failed(); });
                              }
                            },
                            {.timeout_seconds = 1});
  });
  INFO(text);
  CHECK(contains(text, "all_reduce(f32, 3, sum) on a device, call"));
  CHECK(contains(text, "for rank 1"));
  bool left = true;  // the group was aborted, so its work ends though nobody sends
  wait_until([&] { return !(left = poll_devices()); });
  CHECK_FALSE(left);
}

TEST_CASE("memory that the allocator takes and gives back later is registered with the groups") {
  collective::run_threads(2, [](World& world) {
    const Device device = adversary(world.rank());
    Communicator& there = on_device(world, device);
    for (int i = 0; i < 3; ++i) {
      const std::int64_t count = std::int64_t{3} << (20 + i % 2);
      const Tensor x = full({count}, 1 + world.rank(), DType::f32, device);
      const Stream stream = there.stream(device);
      stream.wait(record_event(current_stream(device)));
      {
        const StreamScope scope(stream);
        there.broadcast(x.device_address(), count, DType::f32, 1);
        check(ops::narrow(ops::to_device(x, cpu), 0, count - 1, 1).item() == 2, "rank 1's");
      }
      synchronize(device);
      allocator_of(device).trim();
    }
  });
}

TEST_CASE("observers of the rank's thread are told of a call on a device when it has ended") {
  class Recorder final : public collective::Observer {
   public:
    void perform(const collective::Activity& activity, const std::function<void()>& run) override {
      performed += to_string(activity.call);
      run();
    }
    void streamed(const collective::StreamedActivity& activity) override {
      calls.push_back(activity);
    }
    std::string performed;
    std::vector<collective::StreamedActivity> calls;
  };
  collective::run_threads(2, [](World& world) {
    const Device device = adversary(world.rank());
    on_device(world, device);
    const Tensor x = full({5, 2}, 1, DType::f32, device);
    Recorder recorder;
    {
      const collective::ObserverScope scope(recorder);
      to_doubles(ops::all_reduce(x, ReduceOp::sum, world.everyone()));
      ops::report_streams();
    }
    check(recorder.performed.empty(), "the rank's thread has done nothing");
    check(recorder.calls.size() == 1, "one call");
    const collective::StreamedActivity& call = recorder.calls[0];
    check(to_string(call.activity.call) == "all_reduce(f32, 10, sum)", "its text");
    check(call.activity.bytes == 40, "its bytes");  // 2 (2 - 1) / 2 of 40
    check(call.queued > 0 && call.began >= call.queued && call.ended >= call.began, "its times");
    check(contains(world.recent_calls(), "all_reduce(f32, 10, sum)"), "the flight recorder");
  });
}

TEST_CASE("a rank uses one device of a kind in a group, whose communicator has no barrier") {
  collective::run_threads(2, [](World& world) {
    Communicator& there = on_device(world, adversary(world.rank()));
    const std::string other = error_of([&] { on_device(world, adversary(world.rank() + 2)); });
    check(contains(other, "adversary:" + std::to_string(world.rank() + 2) +
                              " in a group in which it has used adversary:"),
          other);
    check(contains(error_of([&] { there.barrier(); }), "barrier"), "a barrier");
  });
}

TEST_CASE("ranks of which only some have the plugin stop with an error that names one",
          "[.forked]") {
  auto* const told = tessera::testing::shared_object<std::array<char, 1000>>();
  const int code = collective::launch(
      {.ranks = 2, .timeout_seconds = 60, .print_error = false}, [&](World& world) {
        plugin::host().load(world.rank() == 0 ? ADVERSARY : ADVERSARY_ALONE);
        const Tensor x = full({5}, 1, DType::f32, find_device("adversary"));
        try {
          to_doubles(ops::all_reduce(x, ReduceOp::sum, world.everyone()));
        } catch (const std::exception& error) {
          if (world.rank() == 0) {
            std::strncpy(told->data(), error.what(), told->size() - 1);
          }
          throw;
        }
        return 0;
      });
  CHECK(code == 2);
  const std::string text = told->data();
  INFO(text);
  CHECK(contains(text,
                 "collectives of 'adversary': rank 1 has no plugin for them, while rank 0 "
                 "has one"));
}

TEST_CASE("a rank that is killed within a collective on devices ends the others, and is named",
          "[.forked]") {
  auto* const told = tessera::testing::shared_object<std::array<char, 1000>>();
  adversary();
  int code = 0;
  const double seconds = seconds_of([&] {
    code = collective::launch({.ranks = 3, .print_error = false}, [&](World& world) {
      const Device own = adversary(world.number_here());
      const Tensor x = full({1 << 20}, 1, DType::f32, own);
      to_doubles(ops::all_reduce(x, ReduceOp::sum, world.everyone()));
      const Tensor sum = ops::all_reduce(x, ReduceOp::sum, world.everyone());
      if (world.rank() == 1) {  // it has issued the call, and its device moves nothing more
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        std::raise(SIGKILL);
      }
      try {
        to_doubles(sum);
      } catch (const std::exception& error) {
        if (world.rank() == 0) {
          std::strncpy(told->data(), error.what(), told->size() - 1);
        }
        throw;
      }
      return 0;
    });
  });
  CHECK(code == 1);
  CHECK(seconds < 10);
  const std::string text = told->data();
  INFO(text);
  CHECK(contains(text, "rank 1"));
}
