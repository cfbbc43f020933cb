// The part of cuDNN's interface (its graphs, "backend") that the plugin uses, declared here as
// driver_api.hpp declares the driver's; tests/cuda/dnn_header.cpp compares it with cudnn_graph.h
// where that is.
#pragma once
#include <cstddef>
#include <cstdint>

#include "driver_api.hpp"

namespace tessera::cuda {

enum class DnnStatus : int {
  success = 0,
  not_initialized = 1001,
  bad_parameter = 2000,
  not_supported = 3000,
  execution_failed = 5000
};

/// Kinds of descriptors (cudnnBackendDescriptorType_t).
enum class DnnKind : int {
  pointwise = 0,
  engine = 2,
  engine_config = 3,
  heuristics = 4,
  plan = 5,
  pointwise_operation = 13,
  graph = 15,
  pack = 16,  // of a call: addresses and workspace
  tensor = 17,
  matmul = 18,
  matmul_operation = 19,
  reduction = 21,
  reduction_operation = 22,
  reshape_operation = 31,
  device = 38  // properties of a device, without one
};

/// Types of attributes' values (cudnnBackendAttributeType_t).
enum class DnnValue : int {
  handle = 0,
  data_type = 1,
  boolean = 2,
  i64 = 3,
  address = 6,
  heuristic = 8,
  numerical_note = 11,
  pointwise_mode = 14,
  descriptor = 15,
  reduction = 18,
  character = 24
};

/// cudnnBackendAttributeName_t.
enum class DnnAttribute : int {
  pointwise_mode = 0,
  pointwise_type = 1,
  pointwise_axis = 9,
  heuristics_mode = 200,
  heuristics_graph = 201,
  heuristics_results = 202,
  heuristics_device = 204,
  config_engine = 300,
  plan_handle = 400,
  plan_config = 401,
  plan_workspace = 402,
  plan_device = 407,
  pointwise_description = 750,
  pointwise_x = 751,
  pointwise_b = 752,
  pointwise_y = 753,
  pointwise_condition = 758,
  graph_handle = 800,
  graph_operations = 801,
  tensor_alignment = 900,
  tensor_type = 901,
  tensor_extents = 902,
  tensor_strides = 903,
  tensor_id = 906,
  tensor_is_virtual = 907,
  tensor_is_by_value = 908,
  pack_ids = 1000,
  pack_addresses = 1001,
  pack_workspace = 1003,
  engine_notes = 1303,
  matmul_type = 1500,
  matmul_a = 1520,
  matmul_b = 1521,
  matmul_y = 1522,
  matmul_description = 1523,
  reduction_operator = 1600,
  reduction_type = 1601,
  reduction_x = 1610,
  reduction_y = 1611,
  reduction_description = 1612,
  reshape_x = 2200,
  reshape_y = 2201,
  device_handle = 2701,
  device_text = 2702
};

enum class DnnType : int { f32 = 0, f16 = 2, i32 = 4, bf16 = 9, boolean = 11 };  // cudnnDataType_t
enum class DnnPointwise : int {
  add = 0,
  mul = 1,
  div = 6,
  sub = 9,
  exp = 13,
  log = 15,
  greater = 302,
  greater_or_equal = 303,
  index = 501,
  select = 601
};
enum class DnnReduction : int { add = 0, max = 3 };
enum class DnnHeuristic : int { fallback = 2, usual = 3 };
enum class DnnNote : int { not_deterministic = 4 };  // numerical; there are 10
inline constexpr std::size_t most_dnn_notes = 10;

struct DnnHandleData;
struct DnnDescriptorData;
using DnnHandle = DnnHandleData*;
using DnnDescriptor = DnnDescriptorData*;  // cudnnBackendDescriptor_t, which is void*

/// The library's functions. Plans are made and destroyed under a watch, as they compile, load and
/// unload kernels; packs of addresses are not.
struct DnnApi {
  Immediate<std::size_t()> version;
  Immediate<const char*(DnnStatus status)> status_string;
  Immediate<void(char* text, std::size_t bytes)> last_error;
  Blocking<DnnStatus(DnnHandle* handle)> create;
  Immediate<DnnStatus(DnnHandle handle, StreamHandle stream)> set_stream;
  Immediate<DnnStatus(DnnKind kind, DnnDescriptor* descriptor)> descriptor_create;
  Blocking<DnnStatus(DnnDescriptor descriptor)> descriptor_destroy;
  Immediate<DnnStatus(DnnDescriptor descriptor)> pack_destroy;
  Blocking<DnnStatus(DnnDescriptor descriptor)> finalize;
  Immediate<DnnStatus(DnnDescriptor descriptor)> pack_finalize;
  Immediate<DnnStatus(DnnDescriptor descriptor, DnnAttribute attribute, DnnValue type,
                      std::int64_t count, const void* values)>
      set;
  Blocking<DnnStatus(DnnDescriptor descriptor, DnnAttribute attribute, DnnValue type,
                     std::int64_t most, std::int64_t* count, void* values)>
      get;
  Queueing<DnnStatus(DnnHandle handle, DnnDescriptor plan, DnnDescriptor pack)> execute;
  Blocking<DnnStatus(DnnHandle handle, DnnDescriptor plan, DnnDescriptor pack)>
      first_execute;  // of a plan, whose kernel it loads
};

/// Calls use(the place of a function's pointer, its name in the library) for each function.
template <class Use>
void each_function(DnnApi& api, Use use) {
  use(api.version, "cudnnGetVersion");
  use(api.status_string, "cudnnGetErrorString");
  use(api.last_error, "cudnnGetLastErrorString");
  use(api.create, "cudnnCreate");
  use(api.set_stream, "cudnnSetStream");
  use(api.descriptor_create, "cudnnBackendCreateDescriptor");
  use(api.descriptor_destroy, "cudnnBackendDestroyDescriptor");
  use(api.pack_destroy, "cudnnBackendDestroyDescriptor");
  use(api.finalize, "cudnnBackendFinalize");
  use(api.pack_finalize, "cudnnBackendFinalize");
  use(api.set, "cudnnBackendSetAttribute");
  use(api.get, "cudnnBackendGetAttribute");
  use(api.execute, "cudnnBackendExecute");
  use(api.first_execute, "cudnnBackendExecute");
}

}  // namespace tessera::cuda
