// The emulator's NCCL itself: right programs of two ranks, and each mistake with its text. The
// ranks are threads.
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
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
