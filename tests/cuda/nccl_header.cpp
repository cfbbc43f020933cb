// plugins/nccl/nccl_api.hpp against nccl.h, by the compiler, where NCCL is.
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "nccl_api.hpp"

namespace {

using namespace tessera::nccl;

/// Whether calls pass them alike: two addresses, two integers (enumerations), or two structures of
/// one size.
template <class A, class B>
constexpr bool alike = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
                       std::is_class_v<A> == std::is_class_v<B>;

template <class Ours, class Theirs>
constexpr bool same = false;
template <auto waits, class A, class... As, class B, class... Bs>
constexpr bool same<tessera::cuda::LibraryFunction<waits, A(As...)>, B (*)(Bs...)> = [] {
  if constexpr (sizeof...(As) == sizeof...(Bs)) {
    return alike<A, B> && (alike<As, Bs> && ...);
  } else {
    return false;
  }
}();

static_assert(same<decltype(Api::get_version), decltype(&ncclGetVersion)>);
static_assert(same<decltype(Api::get_unique_id), decltype(&ncclGetUniqueId)>);
static_assert(same<decltype(Api::get_error_string), decltype(&ncclGetErrorString)>);
static_assert(same<decltype(Api::get_last_error), decltype(&ncclGetLastError)>);
static_assert(same<decltype(Api::comm_init_rank_config), decltype(&ncclCommInitRankConfig)>);
static_assert(same<decltype(Api::comm_split), decltype(&ncclCommSplit)>);
static_assert(same<decltype(Api::comm_get_async_error), decltype(&ncclCommGetAsyncError)>);
static_assert(same<decltype(Api::comm_finalize), decltype(&ncclCommFinalize)>);
static_assert(same<decltype(Api::comm_destroy), decltype(&ncclCommDestroy)>);
static_assert(same<decltype(Api::comm_abort), decltype(&ncclCommAbort)>);
static_assert(same<decltype(Api::group_start), decltype(&ncclGroupStart)>);
static_assert(same<decltype(Api::group_end), decltype(&ncclGroupEnd)>);
static_assert(same<decltype(Api::send), decltype(&ncclSend)>);
static_assert(same<decltype(Api::recv), decltype(&ncclRecv)>);
static_assert(same<decltype(Api::all_gather), decltype(&ncclAllGather)>);
static_assert(same<decltype(Api::broadcast), decltype(&ncclBroadcast)>);
static_assert(same<decltype(Api::all_reduce), decltype(&ncclAllReduce)>);
static_assert(same<decltype(Api::reduce_scatter), decltype(&ncclReduceScatter)>);
static_assert(same<decltype(Api::comm_register), decltype(&ncclCommRegister)>);
static_assert(same<decltype(Api::comm_deregister), decltype(&ncclCommDeregister)>);
#ifdef NCCL_WIN_REQUIRED_ALIGNMENT  // 2.28
static_assert(same<decltype(Api::comm_window_register), decltype(&ncclCommWindowRegister)>);
static_assert(same<decltype(Api::comm_window_deregister), decltype(&ncclCommWindowDeregister)>);
static_assert(collective_symmetric == NCCL_WIN_COLL_SYMMETRIC);
static_assert(window_alignment == NCCL_WIN_REQUIRED_ALIGNMENT);
#endif
static_assert(same<decltype(Api::mem_alloc), decltype(&ncclMemAlloc)>);
static_assert(same<decltype(Api::mem_free), decltype(&ncclMemFree)>);

template <class Ours, class Theirs>
constexpr bool is(Ours ours, Theirs theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}
static_assert(is(Result::success, ncclSuccess));
static_assert(is(Result::unhandled_cuda_error, ncclUnhandledCudaError));
static_assert(is(Result::system_error, ncclSystemError));
static_assert(is(Result::internal_error, ncclInternalError));
static_assert(is(Result::invalid_argument, ncclInvalidArgument));
static_assert(is(Result::invalid_usage, ncclInvalidUsage));
static_assert(is(Result::remote_error, ncclRemoteError));
static_assert(is(Result::in_progress, ncclInProgress));
static_assert(is(Type::int8, ncclInt8) && is(Type::uint8, ncclUint8));
static_assert(is(Type::int32, ncclInt32) && is(Type::int64, ncclInt64));
static_assert(is(Type::float16, ncclFloat16) && is(Type::float32, ncclFloat32));
static_assert(is(Type::float64, ncclFloat64) && is(Type::bfloat16, ncclBfloat16));
static_assert(is(Reduce::sum, ncclSum) && is(Reduce::product, ncclProd));
static_assert(is(Reduce::max, ncclMax) && is(Reduce::min, ncclMin) && is(Reduce::avg, ncclAvg));

static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));
static_assert(undefined == NCCL_CONFIG_UNDEF_INT);
static_assert(sizeof(Config) <= sizeof(ncclConfig_t));
static_assert(offsetof(Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(Config, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(Config, split_share) == offsetof(ncclConfig_t, splitShare));
static_assert(Config{}.magic == ncclConfig_t(NCCL_CONFIG_INITIALIZER).magic);

}  // namespace
