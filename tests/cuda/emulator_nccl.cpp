// The emulator's NCCL itself: right programs of two ranks, and each mistake with its text. The
// ranks are threads.
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "control.hpp"
#include "driver_api.hpp"
#include "nccl_api.hpp"
#include "texts.hpp"

using tessera::cuda::Context;
using tessera::cuda::DevicePointer;
using tessera::cuda::StreamHandle;
using tessera::nccl::Comm;
using tessera::nccl::Config;
using tessera::nccl::Reduce;
using tessera::nccl::Type;
using tessera::nccl::UniqueId;
using tessera::nccl::WindowHandle;
using Done = tessera::cuda::Result;
using Result = tessera::nccl::Result;
using tessera::testing::contains;

extern "C" {
Done cuInit(unsigned);
Done cuGetErrorString(Done, const char**);
Done cuDevicePrimaryCtxRetain(Context*, int);
Done cuCtxSetCurrent(Context);
Done cuMemAlloc_v2(DevicePointer*, std::size_t);
Done cuMemFree_v2(DevicePointer);
Done cuMemcpyHtoDAsync_v2(DevicePointer, const void*, std::size_t, StreamHandle);
Done cuMemcpyDtoHAsync_v2(void*, DevicePointer, std::size_t, StreamHandle);
Done cuStreamCreate(StreamHandle*, unsigned);
Done cuStreamSynchronize(StreamHandle);
Result ncclGetUniqueId(UniqueId*);
const char* ncclGetLastError(Comm);
Result ncclCommInitRankConfig(Comm*, int, UniqueId, int, Config*);
Result ncclCommGetAsyncError(Comm, Result*);
Result ncclCommSplit(Comm, int, int, Comm*, Config*);
Result ncclCommAbort(Comm);
Result ncclGroupStart();
Result ncclGroupEnd();
Result ncclSend(const void*, std::size_t, Type, int, Comm, StreamHandle);
Result ncclRecv(void*, std::size_t, Type, int, Comm, StreamHandle);
Result ncclAllGather(const void*, void*, std::size_t, Type, Comm, StreamHandle);
Result ncclBroadcast(const void*, void*, std::size_t, Type, int, Comm, StreamHandle);
Result ncclAllReduce(const void*, void*, std::size_t, Type, Reduce, Comm, StreamHandle);
Result ncclMemAlloc(void**, std::size_t);
Result ncclMemFree(void*);
Result ncclCommWindowRegister(Comm, void*, std::size_t, WindowHandle*, int);
Result ncclCommWindowDeregister(Comm, WindowHandle);
}

namespace {

/// One of two ranks, with a device of its own.
struct Rank {
  int number = 0;
  Comm comm = nullptr;
  StreamHandle stream = nullptr;

  static constexpr std::size_t count = 6;
  float* memory() const {
    DevicePointer made = 0;
    cuMemAlloc_v2(&made, count * sizeof(float));
    const std::vector<float> values(count, static_cast<float>(1 + number));
    cuMemcpyHtoDAsync_v2(made, values.data(), count * sizeof(float), stream);
    return reinterpret_cast<float*>(made);
  }
  std::vector<float> read(const float* data) const {
    std::vector<float> values(count);
    cuMemcpyDtoHAsync_v2(values.data(), reinterpret_cast<DevicePointer>(data),
                         count * sizeof(float), stream);
    cuStreamSynchronize(stream);
    return values;
  }
};

/// Runs both ranks. The emulator's error; empty: none.
std::string run_ranks(const std::function<void(Rank&)>& rank, std::uint64_t seed = 2) {
  alarm(30);  // ends what would hang
  cuInit(0);
  emulator_restart();
  emulator_set_seed(seed);
  emulator_set_idle(200);
  emulator_set_copies_block(true);  // these tests pass memory that goes away
  UniqueId id;
  ncclGetUniqueId(&id);
  std::atomic<int> left = 2;
  const auto run = [&](int number) {
    Context context = nullptr;
    cuDevicePrimaryCtxRetain(&context, number);
    cuCtxSetCurrent(context);
    Rank self{.number = number};
    cuStreamCreate(&self.stream, tessera::cuda::stream_non_blocking);
    Config config;
    ncclCommInitRankConfig(&self.comm, 2, id, number, &config);
    rank(self);
    --left;
    while (left > 0) std::this_thread::yield();
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
  const char* text = nullptr;
  const bool failed = cuCtxSetCurrent(nullptr) != Done::success;
  cuGetErrorString(Done::launch_failed, &text);
  const std::string found = failed ? text : "";
  emulator_restart();
  alarm(0);
  return found;
}

}  // namespace

TEST_CASE("the emulated NCCL moves data between ranks in any order of streams") {
  const std::uint64_t seed = GENERATE(0, 1, 2, 7);
  std::vector<float> swapped[2], sums[2], split[2], kept[2];
  const std::string error = run_ranks(
      [&](Rank& rank) {
        const float* mine = rank.memory();
        float* theirs = rank.memory();
        ncclGroupStart();
        ncclSend(mine, Rank::count, Type::float32, 1 - rank.number, rank.comm, rank.stream);
        ncclRecv(theirs, Rank::count, Type::float32, 1 - rank.number, rank.comm, rank.stream);
        ncclGroupEnd();
        swapped[rank.number] = rank.read(theirs);
        float* const own = rank.memory();
        ncclGroupStart();
        ncclSend(theirs, Rank::count, Type::float32, rank.number, rank.comm, rank.stream);
        ncclRecv(own, Rank::count, Type::float32, rank.number, rank.comm, rank.stream);
        ncclGroupEnd();
        kept[rank.number] = rank.read(own);
        float* sum = rank.memory();
        ncclAllReduce(mine, sum, Rank::count, Type::float32, Reduce::sum, rank.comm, rank.stream);
        sums[rank.number] = rank.read(sum);
        Comm turned = nullptr;
        ncclCommSplit(rank.comm, 0, -rank.number, &turned, nullptr);
        ncclBroadcast(mine, sum, Rank::count, Type::float32, 0, turned, rank.stream);
        split[rank.number] = rank.read(sum);
      },
      seed);
  CHECK(error.empty());
  for (const int rank : {0, 1}) {
    CHECK(swapped[rank] == std::vector<float>(Rank::count, static_cast<float>(2 - rank)));
    CHECK(kept[rank] == swapped[rank]);
    CHECK(sums[rank] == std::vector<float>(Rank::count, 3));
    CHECK(split[rank] == std::vector<float>(Rank::count, 2));  // of rank 1, the first by its key
  }
}

TEST_CASE("the emulated NCCL finds mistakes of programs and says which") {
  const auto text_of = [](const std::function<void(Rank&)>& body) {
    std::string text = run_ranks([&](Rank& rank) {
      body(rank);
      cuStreamSynchronize(rank.stream);
    });
    INFO(text);
    return text;
  };
  CHECK(contains(text_of([](Rank& rank) {
                   const auto count = static_cast<std::size_t>(1 + rank.number);
                   ncclAllGather(rank.memory(), rank.memory(), count, Type::float32, rank.comm,
                                 rank.stream);
                 }),
                 "all ranks of a communicator must call alike"));
  CHECK(contains(text_of([](Rank& rank) {
                   ncclBroadcast(rank.memory(), rank.memory(), 3, Type::float32, rank.number,
                                 rank.comm, rank.stream);
                 }),
                 "of 3 float32 from rank "));
  CHECK(contains(text_of([](Rank& rank) {
                   if (rank.number == 0) {
                     ncclSend(rank.memory(), 5, Type::float32, 1, rank.comm, rank.stream);
                   } else {
                     ncclRecv(rank.memory(), 6, Type::float32, 0, rank.comm, rank.stream);
                   }
                 }),
                 "rank 0 calls ncclSend of 5 float32 where rank 1 calls ncclSend of 6 float32"));
  CHECK(contains(text_of([](Rank& rank) {
                   float of_the_host[Rank::count] = {};
                   ncclAllReduce(of_the_host, rank.memory(), 3, Type::float32, Reduce::sum,
                                 rank.comm, rank.stream);
                 }),
                 "ncclAllReduce: an address that is not memory of a device"));
  CHECK(contains(text_of([](Rank& rank) {
                   ncclAllReduce(rank.memory(), rank.memory(), Rank::count + 1, Type::float32,
                                 Reduce::sum, rank.comm, rank.stream);
                 }),
                 "past the end of the allocation"));
  CHECK(contains(text_of([](Rank& rank) {
                   float* const freed = rank.memory();
                   cuStreamSynchronize(rank.stream);
                   ncclAllReduce(freed, freed, 3, Type::float32, Reduce::sum, rank.comm,
                                 rank.stream);
                   cuMemFree_v2(reinterpret_cast<DevicePointer>(freed));
                 }),
                 "which was freed"));
  CHECK(contains(text_of([](Rank& rank) {
                   ncclCommAbort(rank.comm);
                   ncclAllReduce(rank.memory(), rank.memory(), 3, Type::float32, Reduce::sum,
                                 rank.comm, rank.stream);
                 }),
                 "ncclAllReduce of a communicator after ncclCommAbort"));
  CHECK(contains(text_of([](Rank& rank) {
                   StreamHandle other = nullptr;
                   cuStreamCreate(&other, tessera::cuda::stream_non_blocking);
                   ncclGroupStart();
                   ncclSend(rank.memory(), 3, Type::float32, 1 - rank.number, rank.comm,
                            rank.stream);
                   ncclRecv(rank.memory(), 3, Type::float32, 1 - rank.number, rank.comm, other);
                   ncclGroupEnd();
                 }),
                 "is in two streams"));
  CHECK(contains(text_of([](Rank& rank) {
                   ncclSend(rank.memory(), 3, Type::float32, rank.number, rank.comm, rank.stream);
                   ncclRecv(rank.memory(), 3, Type::float32, rank.number, rank.comm, rank.stream);
                 }),
                 "sends to itself must be received in the same group"));
  CHECK(contains(text_of([](Rank& rank) {
                   Config config;
                   config.blocking = 0;
                   Comm made = nullptr;
                   ncclCommSplit(rank.comm, 0, 0, &made, &config);
                   ncclAllReduce(rank.memory(), rank.memory(), 3, Type::float32, Reduce::sum, made,
                                 rank.stream);
                 }),
                 "has not accepted the call before"));
}

TEST_CASE("an abort of the emulated NCCL ends what waits for another rank") {
  const std::string error = run_ranks([](Rank& rank) {
    if (rank.number == 0) {
      ncclAllReduce(rank.memory(), rank.memory(), 3, Type::float32, Reduce::sum, rank.comm,
                    rank.stream);
      ncclCommAbort(rank.comm);
      cuStreamSynchronize(rank.stream);
    }
  });
  CHECK(error.empty());
}

namespace {

/// Memory of ncclMemAlloc, and its window.
struct WindowOfRank {
  static constexpr std::size_t bytes = 8192;
  Rank& rank;
  float* data = nullptr;
  WindowHandle handle = nullptr;

  explicit WindowOfRank(Rank& of, std::size_t registered = bytes) : rank(of) {
    ncclMemAlloc(reinterpret_cast<void**>(&data), bytes);
    register_from(0, registered);
  }
  void register_from(std::size_t at, std::size_t count) {
    ncclCommWindowRegister(rank.comm, reinterpret_cast<std::byte*>(data) + at, count, &handle, 1);
  }
  void deregister() const { ncclCommWindowDeregister(rank.comm, handle); }
  void sum(const float* from, float* to, std::size_t count = 3) const {
    ncclAllReduce(from, to, count, Type::float32, Reduce::sum, rank.comm, rank.stream);
  }
};

}  // namespace

TEST_CASE("the emulated NCCL has symmetric windows, unless they are switched off") {
  const bool enabled = GENERATE(true, false);
  if (!enabled) setenv("NCCL_WIN_ENABLE", "0", 1);
  const std::uint64_t before = emulator_window_calls();
  std::vector<float> sums[2];
  bool has_window[2] = {};
  const std::string error = run_ranks([&](Rank& rank) {
    const WindowOfRank window(rank);
    has_window[rank.number] = window.handle != nullptr;
    const std::vector<float> values(Rank::count, static_cast<float>(1 + rank.number));
    cuMemcpyHtoDAsync_v2(reinterpret_cast<DevicePointer>(window.data), values.data(),
                         Rank::count * sizeof(float), rank.stream);
    window.sum(window.data, window.data, Rank::count);
    sums[rank.number] = rank.read(window.data);
    window.deregister();
    ncclMemFree(window.data);
  });
  unsetenv("NCCL_WIN_ENABLE");
  CHECK(error.empty());
  CHECK(sums[0] == std::vector<float>(Rank::count, 3));
  CHECK(sums[1] == sums[0]);
  CHECK(has_window[0] == enabled);
  CHECK(has_window[1] == enabled);
  CHECK(emulator_window_calls() - before == (enabled ? 2 : 0));
  CHECK(emulator_window_memory() == 0);
}

TEST_CASE("the emulated NCCL finds mistakes with symmetric windows") {
  const auto [expected, body] = GENERATE(table<const char*, void (*)(Rank&)>({
      {"not memory of ncclMemAlloc",
       [](Rank& rank) {
         WindowHandle handle = nullptr;
         ncclCommWindowRegister(rank.comm, rank.memory(), 16, &handle, 1);
       }},
      {"that end 4096 bytes past the memory of ncclMemAlloc",
       [](Rank& rank) { const WindowOfRank window(rank, WindowOfRank::bytes + 4096); }},
      {"no multiple of 4096",
       [](Rank& rank) {
         WindowOfRank window(rank, 4096);
         window.register_from(4096 + 512, 512);
       }},
      {"overlap another window",
       [](Rank& rank) {
         WindowOfRank window(rank);
         window.register_from(4096, 4096);
       }},
      {"bytes with flags 1 where rank",
       [](Rank& rank) {
         const WindowOfRank window(rank, 4096 * static_cast<std::size_t>(1 + rank.number));
       }},
      {"collectives, rank",
       [](Rank& rank) {
         float* const data = rank.memory();
         if (rank.number == 0) {
           ncclAllReduce(data, data, 3, Type::float32, Reduce::sum, rank.comm, rank.stream);
         }
         const WindowOfRank window(rank);
       }},
      {"to memory at byte 0 of window 1",
       [](Rank& rank) {
         const WindowOfRank window(rank);
         float* const data = rank.number == 0 ? window.data : rank.memory();
         window.sum(data, data);
       }},
      {"at byte 512 of window 1",
       [](Rank& rank) {
         const WindowOfRank window(rank);
         float* const data = window.data + 128 * rank.number;
         window.sum(data, data);
       }},
      {"end 4 bytes past it",
       [](Rank& rank) {
         const WindowOfRank window(rank, 4096);
         window.sum(window.data + 1022, window.data);
       }},
      {"was a window until ncclCommWindowDeregister",
       [](Rank& rank) {
         const WindowOfRank window(rank);
         window.deregister();
         window.sum(window.data, window.data);
       }},
      {"not a window of the communicator, or no more",
       [](Rank& rank) {
         const WindowOfRank window(rank);
         window.deregister();
         window.deregister();
       }},
      {"ncclCommWindowDeregister of a communicator that has work",
       [](Rank& rank) {
         emulator_set_idle(0);
         const WindowOfRank window(rank);
         window.sum(window.data, window.data);
         window.deregister();
       }},
      {"still registered; call ncclCommWindowDeregister",
       [](Rank& rank) {
         const WindowOfRank window(rank);
         ncclMemFree(window.data);
       }},
      {"not of ncclMemAlloc, or was freed",
       [](Rank& rank) {
         const WindowOfRank window(rank);
         window.deregister();
         ncclMemFree(window.data);
         ncclMemFree(window.data);
       }},
  }));
  const std::string error = run_ranks([&body](Rank& rank) {
    body(rank);
    cuStreamSynchronize(rank.stream);
  });
  INFO(error);
  CHECK(contains(error, expected));
}
