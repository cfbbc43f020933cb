// The part of NCCL's interface that the plugin uses, declared here so that nothing of it is needed
// to build the plugin. Names, values and types are those of nccl.h (2.18 and later);
// tests/cuda/nccl_header.cpp compares them where NCCL is. The library is opened when it is first
// needed.
#pragma once
#include <climits>
#include <cstddef>

#include "driver_api.hpp"

namespace tessera::nccl {

using cuda::Accepted;
using cuda::Blocking;
using cuda::Immediate;
using cuda::StreamHandle;

enum class Result : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};
enum class Type : int {
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  int64 = 4,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9,
};
enum class Reduce : int { sum = 0, product = 1, max = 2, min = 3, avg = 4 };

struct CommData;
using Comm = CommData*;
struct UniqueId {
  char bytes[128];
};

inline constexpr int undefined = INT_MIN;
/// NCCL takes the members that it knows by `size` and `version`.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = undefined;
  int cga_cluster_size = undefined;
  int min_ctas = undefined;
  int max_ctas = undefined;
  const char* net_name = nullptr;
  int split_share = undefined;
  int traffic_class = undefined;  // 2.25 and later; here to fill the structure's last word
};

/// Memory of a communicator that its members reach.
struct WindowData;
using WindowHandle = WindowData*;
/// Of a window: in each call, the arrays of all members are at the same places of it.
inline constexpr int collective_symmetric = 1;
inline constexpr std::size_t window_alignment = 4096;

/// The library's functions, without "nccl". Those from comm_register on may be missing (null).
struct Api {
  Immediate<Result(int* version)> get_version;
  Blocking<Result(UniqueId* id)> get_unique_id;
  Immediate<const char*(Result result)> get_error_string;
  Immediate<const char*(Comm comm)> get_last_error;

  Blocking<Result(Comm* comm, int ranks, UniqueId id, int rank, Config* config)>
      comm_init_rank_config;
  Accepted<Result(Comm comm, int color, int key, Comm* made, Config* config)> comm_split;
  Immediate<Result(Comm comm, Result* error)> comm_get_async_error;
  Accepted<Result(Comm comm)> comm_finalize;
  Blocking<Result(Comm comm)> comm_destroy;
  Blocking<Result(Comm comm)> comm_abort;

  Immediate<Result()> group_start;
  Accepted<Result()> group_end;
  Accepted<Result(const void* from, std::size_t count, Type type, int peer, Comm comm,
                  StreamHandle stream)>
      send;
  Accepted<Result(void* to, std::size_t count, Type type, int peer, Comm comm, StreamHandle stream)>
      recv;
  Accepted<Result(const void* from, void* to, std::size_t count, Type type, Comm comm,
                  StreamHandle stream)>
      all_gather;
  Accepted<Result(const void* from, void* to, std::size_t count, Type type, int root, Comm comm,
                  StreamHandle stream)>
      broadcast;
  Accepted<Result(const void* from, void* to, std::size_t count, Type type, Reduce reduce,
                  Comm comm, StreamHandle stream)>
      all_reduce;
  Accepted<Result(const void* from, void* to, std::size_t count, Type type, Reduce reduce,
                  Comm comm, StreamHandle stream)>
      reduce_scatter;

  Accepted<Result(Comm comm, void* data, std::size_t bytes, void** handle)> comm_register;
  Accepted<Result(Comm comm, void* handle)> comm_deregister;

  // 2.27 and later.
  Accepted<Result(Comm comm, void* data, std::size_t bytes, WindowHandle* window, int flags)>
      comm_window_register;
  Accepted<Result(Comm comm, WindowHandle window)> comm_window_deregister;
  Blocking<Result(void** data, std::size_t bytes)> mem_alloc;
  Blocking<Result(void* data)> mem_free;
};

/// Calls use(the place of a function's pointer, its name in the library, whether it must be there)
/// for each function.
template <class Use>
void each_function(Api& api, Use use) {
  use(api.get_version, "ncclGetVersion", true);
  use(api.get_unique_id, "ncclGetUniqueId", true);
  use(api.get_error_string, "ncclGetErrorString", true);
  use(api.get_last_error, "ncclGetLastError", true);
  use(api.comm_init_rank_config, "ncclCommInitRankConfig", true);
  use(api.comm_split, "ncclCommSplit", true);
  use(api.comm_get_async_error, "ncclCommGetAsyncError", true);
  use(api.comm_finalize, "ncclCommFinalize", true);
  use(api.comm_destroy, "ncclCommDestroy", true);
  use(api.comm_abort, "ncclCommAbort", true);
  use(api.group_start, "ncclGroupStart", true);
  use(api.group_end, "ncclGroupEnd", true);
  use(api.send, "ncclSend", true);
  use(api.recv, "ncclRecv", true);
  use(api.all_gather, "ncclAllGather", true);
  use(api.broadcast, "ncclBroadcast", true);
  use(api.all_reduce, "ncclAllReduce", true);
  use(api.reduce_scatter, "ncclReduceScatter", true);
  use(api.comm_register, "ncclCommRegister", false);
  use(api.comm_deregister, "ncclCommDeregister", false);
  use(api.comm_window_register, "ncclCommWindowRegister", false);
  use(api.comm_window_deregister, "ncclCommWindowDeregister", false);
  use(api.mem_alloc, "ncclMemAlloc", false);
  use(api.mem_free, "ncclMemFree", false);
}

}  // namespace tessera::nccl
