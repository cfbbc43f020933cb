// The part of CUDA's driver interface that the plugin uses, declared here so that nothing of a
// toolkit is needed to build it. Names, values and types are those of cuda.h (12.8 and later) on
// Linux, where the enumerations are ints and the handles pointers; tests/cuda/cuda_header.cpp
// compares them where a toolkit is. The library is opened when the plugin first needs it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "library_function.hpp"

namespace tessera::cuda {

enum class Result : int {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  no_device = 100,
  invalid_device = 101,
  invalid_image = 200,
  invalid_context = 201,
  no_binary_for_gpu = 209,
  ecc_uncorrectable = 214,
  invalid_ptx = 218,
  nvlink_uncorrectable = 220,
  jit_compiler_not_found = 221,
  unsupported_ptx_version = 222,
  jit_compilation_disabled = 223,
  not_found = 500,
  not_ready = 600,
  illegal_address = 700,
  launch_timeout = 702,
  hardware_stack_error = 714,
  illegal_instruction = 715,
  misaligned_address = 716,
  invalid_address_space = 717,
  invalid_pc = 718,
  launch_failed = 719,
  capture_unsupported = 900,
  capture_invalidated = 901,
  unknown = 999,
};

using DeviceNumber = int;
using DevicePointer = std::uint64_t;
struct ContextData;
struct ModuleData;
struct FunctionData;
struct StreamData;
struct EventData;
struct GraphData;
struct GraphExecData;
using Context = ContextData*;
using Module = ModuleData*;
using Function = FunctionData*;
using StreamHandle = StreamData*;
using EventHandle = EventData*;
using GraphHandle = GraphData*;
using GraphExec = GraphExecData*;
using HostFunction = void (*)(void*);

inline constexpr int compute_capability_major = 75;  // attributes of devices
inline constexpr int compute_capability_minor = 76;
inline constexpr int most_launched_memory = 8;  // an attribute of kernels; until it is set:
inline constexpr unsigned usual_launched_memory = 48 * 1024;
inline constexpr unsigned stream_non_blocking = 1;
inline constexpr unsigned event_disable_timing = 2;
inline constexpr unsigned host_alloc_portable = 1;
inline constexpr unsigned host_alloc_device_map = 2;
inline constexpr unsigned wait_value_geq = 0;
inline constexpr int capture_thread_local = 1;
// The list that cuLaunchKernel takes as `extra` names its entries by these and ends with a null.
inline void* const launch_buffer_pointer = reinterpret_cast<void*>(1);
inline void* const launch_buffer_size = reinterpret_cast<void*>(2);

/// The driver's functions, without "cu". Those that may free or take memory, load code or wait for
/// work are Blocking.
struct DriverApi {
  Blocking<Result(unsigned flags)> init;
  Immediate<Result(int* version)> driver_get_version;
  Immediate<Result(Result error, const char** text)> get_error_name;
  Immediate<Result(Result error, const char** text)> get_error_string;

  Immediate<Result(int* count)> device_get_count;
  Immediate<Result(DeviceNumber* device, int ordinal)> device_get;
  Immediate<Result(char* name, int length, DeviceNumber device)> device_get_name;
  Immediate<Result(std::size_t* bytes, DeviceNumber device)> device_total_mem;
  Immediate<Result(int* value, int attribute, DeviceNumber device)> device_get_attribute;
  Blocking<Result(Context* context, DeviceNumber device)> device_primary_ctx_retain;
  Immediate<Result(Context context)> ctx_set_current;

  Blocking<Result(DevicePointer* data, std::size_t bytes)> mem_alloc;
  Blocking<Result(DevicePointer data)> mem_free;
  Blocking<Result(void** data, std::size_t bytes, unsigned flags)> mem_host_alloc;
  Blocking<Result(void* data)> mem_free_host;
  Queueing<Result(DevicePointer to, DevicePointer from, std::size_t bytes, StreamHandle stream)>
      memcpy_async;
  Queueing<Result(DevicePointer to, const void* from, std::size_t bytes, StreamHandle stream)>
      memcpy_htod_async;
  Queueing<Result(void* to, DevicePointer from, std::size_t bytes, StreamHandle stream)>
      memcpy_dtoh_async;
  Queueing<Result(DevicePointer to, unsigned char value, std::size_t count, StreamHandle stream)>
      memset_d8_async;
  Queueing<Result(DevicePointer to, unsigned short value, std::size_t count, StreamHandle stream)>
      memset_d16_async;
  Queueing<Result(DevicePointer to, unsigned value, std::size_t count, StreamHandle stream)>
      memset_d32_async;

  Immediate<Result(int* least, int* greatest)> ctx_get_stream_priority_range;
  Blocking<Result(StreamHandle* stream, unsigned flags, int priority)> stream_create;
  Blocking<Result(StreamHandle stream)> stream_destroy;
  Immediate<Result(StreamHandle stream)> stream_query;
  Blocking<Result(StreamHandle stream)> stream_synchronize;
  Queueing<Result(StreamHandle stream, EventHandle event, unsigned flags)> stream_wait_event;
  Queueing<Result(StreamHandle stream, DevicePointer at, std::uint32_t value, unsigned flags)>
      stream_wait_value;
  Immediate<Result(EventHandle* event, unsigned flags)> event_create;
  Immediate<Result(EventHandle event)> event_destroy;
  Queueing<Result(EventHandle event, StreamHandle stream)> event_record;
  Immediate<Result(EventHandle event)> event_query;

  Blocking<Result(Module* module, const void* image)> module_load_data;
  Blocking<Result(Function* function, Module module, const char* name)> module_get_function;
  Blocking<Result(Function function, int attribute, int value)> func_set_attribute;
  Queueing<Result(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                  StreamHandle stream, void** parameters, void** extra)>
      launch_kernel;
  Queueing<Result(StreamHandle stream, HostFunction function, void* data)> launch_host_func;

  Immediate<Result(StreamHandle stream, int mode)> stream_begin_capture;
  Immediate<Result(StreamHandle stream, GraphHandle* graph)> stream_end_capture;
  Blocking<Result(GraphExec* exec, GraphHandle graph, unsigned long long flags)> graph_instantiate;
  Immediate<Result(GraphHandle graph)> graph_destroy;
  Queueing<Result(GraphExec exec, StreamHandle stream)> graph_launch;
  Blocking<Result(GraphExec exec)> graph_exec_destroy;
};

/// Calls use(the place of a function's pointer, its name in the library) for each function.
template <class Use>
void each_function(DriverApi& api, Use use) {
  use(api.init, "cuInit");
  use(api.driver_get_version, "cuDriverGetVersion");
  use(api.get_error_name, "cuGetErrorName");
  use(api.get_error_string, "cuGetErrorString");
  use(api.device_get_count, "cuDeviceGetCount");
  use(api.device_get, "cuDeviceGet");
  use(api.device_get_name, "cuDeviceGetName");
  use(api.device_total_mem, "cuDeviceTotalMem_v2");
  use(api.device_get_attribute, "cuDeviceGetAttribute");
  use(api.device_primary_ctx_retain, "cuDevicePrimaryCtxRetain");
  use(api.ctx_set_current, "cuCtxSetCurrent");
  use(api.mem_alloc, "cuMemAlloc_v2");
  use(api.mem_free, "cuMemFree_v2");
  use(api.mem_host_alloc, "cuMemHostAlloc");
  use(api.mem_free_host, "cuMemFreeHost");
  use(api.memcpy_async, "cuMemcpyAsync");
  use(api.memcpy_htod_async, "cuMemcpyHtoDAsync_v2");
  use(api.memcpy_dtoh_async, "cuMemcpyDtoHAsync_v2");
  use(api.memset_d8_async, "cuMemsetD8Async");
  use(api.memset_d16_async, "cuMemsetD16Async");
  use(api.memset_d32_async, "cuMemsetD32Async");
  use(api.ctx_get_stream_priority_range, "cuCtxGetStreamPriorityRange");
  use(api.stream_create, "cuStreamCreateWithPriority");
  use(api.stream_destroy, "cuStreamDestroy_v2");
  use(api.stream_query, "cuStreamQuery");
  use(api.stream_synchronize, "cuStreamSynchronize");
  use(api.stream_wait_event, "cuStreamWaitEvent");
  use(api.stream_wait_value, "cuStreamWaitValue32_v2");
  use(api.event_create, "cuEventCreate");
  use(api.event_destroy, "cuEventDestroy_v2");
  use(api.event_record, "cuEventRecord");
  use(api.event_query, "cuEventQuery");
  use(api.module_load_data, "cuModuleLoadData");
  use(api.module_get_function, "cuModuleGetFunction");
  use(api.func_set_attribute, "cuFuncSetAttribute");
  use(api.launch_kernel, "cuLaunchKernel");
  use(api.launch_host_func, "cuLaunchHostFunc");
  use(api.stream_begin_capture, "cuStreamBeginCapture_v2");
  use(api.stream_end_capture, "cuStreamEndCapture");
  use(api.graph_instantiate, "cuGraphInstantiateWithFlags");
  use(api.graph_destroy, "cuGraphDestroy");
  use(api.graph_launch, "cuGraphLaunch");
  use(api.graph_exec_destroy, "cuGraphExecDestroy");
}

}  // namespace tessera::cuda
