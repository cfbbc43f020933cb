// libcudnn.so.9: graphs of operations by descriptors, as far as the plugin uses them. What it takes
// is a graph that is attention (dnn_graph.cpp); another one has no engine, and an attribute or a
// kind of descriptor that it does not know is an error. A call is two tasks of a stream: between
// them its workspace must stay as it is.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tessera/half.hpp>
#include <utility>
#include <vector>

#include "control.hpp"
#include "dnn_api.hpp"
#include "dnn_graph.hpp"
#include "fault.hpp"
#include "handles.hpp"
#include "memory.hpp"
#include "streams.hpp"
#include "text.hpp"

namespace tessera::cuda {

struct DnnHandleData {
  pid_t owner = 0;
  StreamHandle stream = nullptr;
};

/// What was set, as bytes, until it is finalized; what that made of it.
struct DnnDescriptorData {
  DnnKind kind = {};
  bool finished = false;
  bool executed = false;  // a plan
  std::map<DnnAttribute, std::vector<std::byte>> set = {};
  emulator::DnnTensor tensor = {};
  emulator::DnnOperation operation = {};
  bool is_operation = false;
  std::shared_ptr<emulator::DnnGraph> graph = {};  // of heuristics, configs and plans, too
  std::string text = {};                           // of a device
};

}  // namespace tessera::cuda

namespace {

using namespace tessera::cuda;
using emulator::DnnGraph;
using emulator::DnnOperation;
using emulator::DnnTensor;
using emulator::Executor;
using emulator::Fault;
using emulator::Memory;
using emulator::text;

std::atomic<std::uint64_t> attentions = 0;
std::atomic<bool> refuses_determinism = false;
thread_local std::string last_error;

DnnStatus wrong(DnnStatus status, std::string reason) {
  last_error = std::move(reason);
  return status;
}

/// Attributes of each kind, with the type and the size of their values.
struct Known {
  DnnKind kind;
  DnnAttribute attribute;
  DnnValue type;
  std::size_t bytes;
};
constexpr std::size_t pointer = sizeof(void*);
constexpr Known known[] = {
    {DnnKind::tensor, DnnAttribute::tensor_type, DnnValue::data_type, 4},
    {DnnKind::tensor, DnnAttribute::tensor_extents, DnnValue::i64, 8},
    {DnnKind::tensor, DnnAttribute::tensor_strides, DnnValue::i64, 8},
    {DnnKind::tensor, DnnAttribute::tensor_id, DnnValue::i64, 8},
    {DnnKind::tensor, DnnAttribute::tensor_alignment, DnnValue::i64, 8},
    {DnnKind::tensor, DnnAttribute::tensor_is_virtual, DnnValue::boolean, 1},
    {DnnKind::tensor, DnnAttribute::tensor_is_by_value, DnnValue::boolean, 1},
    {DnnKind::pointwise, DnnAttribute::pointwise_mode, DnnValue::pointwise_mode, 4},
    {DnnKind::pointwise, DnnAttribute::pointwise_type, DnnValue::data_type, 4},
    {DnnKind::pointwise, DnnAttribute::pointwise_axis, DnnValue::i64, 8},
    {DnnKind::matmul, DnnAttribute::matmul_type, DnnValue::data_type, 4},
    {DnnKind::reduction, DnnAttribute::reduction_operator, DnnValue::reduction, 4},
    {DnnKind::reduction, DnnAttribute::reduction_type, DnnValue::data_type, 4},
    {DnnKind::pointwise_operation, DnnAttribute::pointwise_description, DnnValue::descriptor,
     pointer},
    {DnnKind::pointwise_operation, DnnAttribute::pointwise_x, DnnValue::descriptor, pointer},
    {DnnKind::pointwise_operation, DnnAttribute::pointwise_b, DnnValue::descriptor, pointer},
    {DnnKind::pointwise_operation, DnnAttribute::pointwise_y, DnnValue::descriptor, pointer},
    {DnnKind::pointwise_operation, DnnAttribute::pointwise_condition, DnnValue::descriptor,
     pointer},
    {DnnKind::matmul_operation, DnnAttribute::matmul_description, DnnValue::descriptor, pointer},
    {DnnKind::matmul_operation, DnnAttribute::matmul_a, DnnValue::descriptor, pointer},
    {DnnKind::matmul_operation, DnnAttribute::matmul_b, DnnValue::descriptor, pointer},
    {DnnKind::matmul_operation, DnnAttribute::matmul_y, DnnValue::descriptor, pointer},
    {DnnKind::reduction_operation, DnnAttribute::reduction_description, DnnValue::descriptor,
     pointer},
    {DnnKind::reduction_operation, DnnAttribute::reduction_x, DnnValue::descriptor, pointer},
    {DnnKind::reduction_operation, DnnAttribute::reduction_y, DnnValue::descriptor, pointer},
    {DnnKind::reshape_operation, DnnAttribute::reshape_x, DnnValue::descriptor, pointer},
    {DnnKind::reshape_operation, DnnAttribute::reshape_y, DnnValue::descriptor, pointer},
    {DnnKind::graph, DnnAttribute::graph_operations, DnnValue::descriptor, pointer},
    {DnnKind::graph, DnnAttribute::graph_handle, DnnValue::handle, pointer},
    {DnnKind::heuristics, DnnAttribute::heuristics_graph, DnnValue::descriptor, pointer},
    {DnnKind::heuristics, DnnAttribute::heuristics_mode, DnnValue::heuristic, 4},
    {DnnKind::heuristics, DnnAttribute::heuristics_device, DnnValue::descriptor, pointer},
    {DnnKind::device, DnnAttribute::device_handle, DnnValue::handle, pointer},
    {DnnKind::device, DnnAttribute::device_text, DnnValue::character, 1},
    {DnnKind::plan, DnnAttribute::plan_config, DnnValue::descriptor, pointer},
    {DnnKind::plan, DnnAttribute::plan_device, DnnValue::descriptor, pointer},
    {DnnKind::plan, DnnAttribute::plan_handle, DnnValue::handle, pointer},
    {DnnKind::pack, DnnAttribute::pack_ids, DnnValue::i64, 8},
    {DnnKind::pack, DnnAttribute::pack_addresses, DnnValue::address, pointer},
    {DnnKind::pack, DnnAttribute::pack_workspace, DnnValue::address, pointer},
};

/// Reads what was set of a descriptor; notes what is missing.
struct Reader {
  const DnnDescriptorData& from;
  std::string missing = {};

  template <class T>
  std::vector<T> all(DnnAttribute attribute) {
    const auto found = from.set.find(attribute);
    if (found == from.set.end()) {
      missing = text("attribute ", static_cast<int>(attribute), " is not set");
      return {};
    }
    std::vector<T> values(found->second.size() / sizeof(T));
    std::memcpy(values.data(), found->second.data(), values.size() * sizeof(T));
    return values;
  }
  template <class T>
  T one(DnnAttribute attribute) {
    const std::vector<T> values = all<T>(attribute);
    if (values.size() != 1) {
      missing = text("attribute ", static_cast<int>(attribute), " needs one value");
      return {};
    }
    return values[0];
  }
  bool has(DnnAttribute attribute) const { return from.set.contains(attribute); }
  /// A descriptor of this kind, which is finalized.
  const DnnDescriptorData* part(DnnAttribute attribute, DnnKind kind) {
    const auto* found = one<DnnDescriptor>(attribute);
    if (found == nullptr || found->kind != kind || !found->finished) {
      missing = text("attribute ", static_cast<int>(attribute),
                     " is not a finalized descriptor of kind ", static_cast<int>(kind));
      static const DnnDescriptorData nothing;
      return &nothing;
    }
    return found;
  }
  DnnTensor tensor(DnnAttribute attribute) { return part(attribute, DnnKind::tensor)->tensor; }
};

std::string read_tensor(Reader& r, DnnTensor& t) {
  const auto extents = r.all<std::int64_t>(DnnAttribute::tensor_extents);
  const auto strides = r.all<std::int64_t>(DnnAttribute::tensor_strides);
  if (extents.size() != 4 || strides.size() != 4 ||
      std::ranges::any_of(extents, [](std::int64_t n) { return n < 1; })) {
    return "a tensor needs 4 extents above 0 and their strides";
  }
  std::ranges::copy(extents, t.extents.begin());
  std::ranges::copy(strides, t.strides.begin());
  t.type = r.one<DnnType>(DnnAttribute::tensor_type);
  t.id = r.one<std::int64_t>(DnnAttribute::tensor_id);
  t.alignment = r.one<std::int64_t>(DnnAttribute::tensor_alignment);
  t.is_virtual = r.has(DnnAttribute::tensor_is_virtual) &&
                 0 != r.one<unsigned char>(DnnAttribute::tensor_is_virtual);
  t.is_by_value = r.has(DnnAttribute::tensor_is_by_value) &&
                  0 != r.one<unsigned char>(DnnAttribute::tensor_is_by_value);
  return t.id < 1 ? "a tensor's number must be above 0" : "";
}

void read_operation(Reader& r, DnnOperation& o) {
  using A = DnnAttribute;
  switch (o.kind) {
    case DnnKind::matmul_operation:
      r.part(A::matmul_description, DnnKind::matmul);
      o.x = r.tensor(A::matmul_a);
      o.b = r.tensor(A::matmul_b);
      o.y = r.tensor(A::matmul_y);
      return;
    case DnnKind::reduction_operation:
      o.reduction = r.part(A::reduction_description, DnnKind::reduction)->operation.reduction;
      o.x = r.tensor(A::reduction_x);
      o.y = r.tensor(A::reduction_y);
      return;
    case DnnKind::reshape_operation:
      o.x = r.tensor(A::reshape_x);
      o.y = r.tensor(A::reshape_y);
      return;
    default: {
      const DnnOperation& about = r.part(A::pointwise_description, DnnKind::pointwise)->operation;
      o.pointwise = about.pointwise;
      o.axis = about.axis;
      o.x = r.tensor(A::pointwise_x);
      o.y = r.tensor(A::pointwise_y);
      o.b = r.has(A::pointwise_b) ? r.tensor(A::pointwise_b) : DnnTensor{};
      o.condition = r.has(A::pointwise_condition) ? r.tensor(A::pointwise_condition) : DnnTensor{};
    }
  }
}

std::string read_graph(Reader& r, DnnDescriptorData& d) {
  d.graph = std::make_shared<DnnGraph>();
  for (const DnnDescriptor operation : r.all<DnnDescriptor>(DnnAttribute::graph_operations)) {
    if (operation == nullptr || !operation->finished || !operation->is_operation) {
      return "a graph needs operations that are finalized";
    }
    d.graph->operations.push_back(operation->operation);
  }
  return {};
}

/// A device is the handle's, or one of which the text says what engines want to know.
std::string read_device(Reader& r, DnnDescriptorData& d) {
  if (r.has(DnnAttribute::device_handle)) {
    r.one<DnnHandle>(DnnAttribute::device_handle);
    d.text = R"({"deviceName": "emulated device", "deviceVer": 900, "multiProcessorCount": 2, )"
             R"("maxSharedMemoryPerBlockOptin": 232448})";
    return {};
  }
  const std::vector<char> given = r.all<char>(DnnAttribute::device_text);
  d.text.assign(given.begin(), given.end());
  for (const char* const name :
       {"\"deviceName\": \"", "\"deviceVer\": ", "\"multiProcessorCount\": "}) {
    if (d.text.find(name) == std::string::npos) {
      return text("the description of a device has no ", name);
    }
  }
  return {};
}

/// What is wrong; empty: nothing.
std::string finish(DnnDescriptorData& d) {
  using A = DnnAttribute;
  Reader r{d};
  std::string problem;
  switch (d.kind) {
    case DnnKind::tensor:
      problem = read_tensor(r, d.tensor);
      break;
    case DnnKind::pointwise:
      d.operation.pointwise = r.one<DnnPointwise>(A::pointwise_mode);
      d.operation.axis = r.has(A::pointwise_axis) ? r.one<std::int64_t>(A::pointwise_axis) : -1;
      r.one<DnnType>(A::pointwise_type);
      break;
    case DnnKind::matmul:
      r.one<DnnType>(A::matmul_type);
      break;
    case DnnKind::reduction:
      d.operation.reduction = r.one<DnnReduction>(A::reduction_operator);
      r.one<DnnType>(A::reduction_type);
      break;
    case DnnKind::graph:
      problem = read_graph(r, d);
      break;
    case DnnKind::heuristics:
      d.graph = r.part(A::heuristics_graph, DnnKind::graph)->graph;
      r.one<DnnHeuristic>(A::heuristics_mode);
      if (r.has(A::heuristics_device)) {
        r.part(A::heuristics_device, DnnKind::device);
      }
      break;
    case DnnKind::device:
      problem = read_device(r, d);
      break;
    case DnnKind::plan:
      d.graph = r.part(A::plan_config, DnnKind::engine_config)->graph;
      if (r.has(A::plan_device)) {
        r.part(A::plan_device, DnnKind::device);
      } else {
        r.one<DnnHandle>(A::plan_handle);
      }
      break;
    case DnnKind::pack:
      problem =
          r.all<std::int64_t>(A::pack_ids).size() == r.all<const void*>(A::pack_addresses).size()
              ? ""
              : "a call needs an address for each number of a tensor";
      r.one<const void*>(A::pack_workspace);
      break;
    default:
      d.operation.kind = d.kind;
      d.is_operation = true;
      read_operation(r, d.operation);
  }
  return r.missing.empty() ? problem : r.missing;
}

/// The elements of a tensor in memory, as they are counted by its extents.
template <class Body>
void each_element(const DnnTensor& t, Body body) {
  const auto& [n0, n1, n2, n3] = t.extents;
  for (std::int64_t i = 0; i < t.count(); ++i) {
    const std::int64_t at = i % n3 * t.strides[3] + i / n3 % n2 * t.strides[2] +
                            i / n3 / n2 % n1 * t.strides[1] + i / n3 / n2 / n1 * t.strides[0];
    body(static_cast<std::size_t>(i), static_cast<std::size_t>(at));
  }
}

/// A tensor's memory, as the host finds it.
std::byte* opened(const DnnTensor& t, const void* data) {
  const std::size_t bytes = static_cast<std::size_t>(t.extent()) * emulator::size_of(t.type);
  const std::string problem = Memory::instance().is_device(data)
                                  ? Memory::instance().check(data, bytes)
                                  : "is not of a device";
  if (!problem.empty()) {
    throw Fault(text("cudnnBackendExecute: ", bytes, " bytes of tensor ", t.id,
                     " at an address that ", problem));
  }
  return Memory::instance().opened(data);
}

template <class T>
T read_as(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

struct Work {
  std::shared_ptr<DnnGraph> graph;
  std::map<std::int64_t, const void*> addresses;
  std::map<std::int64_t, float> numbers;  // tensors that are given by value
  std::byte* workspace = nullptr;         // opened
  std::size_t bytes = 0;
};

constexpr std::byte mark{0x5a};

void compute(const Work& work) {
  const auto load = [&](const DnnTensor& t) {
    std::vector<float> values(static_cast<std::size_t>(t.count()));
    if (t.is_by_value) {
      std::ranges::fill(values, work.numbers.at(t.id));
      return values;
    }
    const std::byte* const from = opened(t, work.addresses.at(t.id));
    const std::size_t width = emulator::size_of(t.type);
    each_element(t, [&](std::size_t i, std::size_t at) {
      const std::byte* const element = from + at * width;
      values[i] = t.type == DnnType::f32 ? read_as<float>(element)
                  : t.type == DnnType::bf16
                      ? static_cast<float>(read_as<tessera::kernels::BFloat16>(element))
                      : static_cast<float>(read_as<tessera::kernels::Half>(element));
    });
    return values;
  };
  const auto store = [&](const DnnTensor& t, const std::vector<float>& values) {
    std::byte* const to = opened(t, work.addresses.at(t.id));
    const auto write = [&](std::size_t at, auto value) {
      std::memcpy(to + at * sizeof(value), &value, sizeof(value));
    };
    each_element(t, [&](std::size_t i, std::size_t at) {
      t.type == DnnType::f32    ? write(at, values[i])
      : t.type == DnnType::bf16 ? write(at, tessera::kernels::BFloat16(values[i]))
                                : write(at, tessera::kernels::Half(values[i]));
    });
  };
  const auto check_workspace = [&] {
    if (!std::all_of(work.workspace, work.workspace + work.bytes,
                     [](std::byte b) { return b == mark; })) {
      throw Fault("cudnnBackendExecute: its workspace was written by somebody else meanwhile");
    }
  };
  check_workspace();
  work.graph->run(load, store);
  check_workspace();
}

}  // namespace

extern "C" {

std::size_t cudnnGetVersion(void) { return 91900; }

const char* cudnnGetErrorString(DnnStatus status) {
  switch (status) {
    case DnnStatus::success:
      return "CUDNN_STATUS_SUCCESS";
    case DnnStatus::not_initialized:
      return "CUDNN_STATUS_NOT_INITIALIZED";
    case DnnStatus::bad_parameter:
      return "CUDNN_STATUS_BAD_PARAM";
    case DnnStatus::not_supported:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case DnnStatus::execution_failed:
      return "CUDNN_STATUS_EXECUTION_FAILED";
  }
  return "unknown";
}

void cudnnGetLastErrorString(char* to, std::size_t bytes) {
  std::strncpy(to, last_error.c_str(), bytes - 1);
  to[bytes - 1] = 0;
}

DnnStatus cudnnCreate(DnnHandle* handle) {
  emulator_wait_where_asked(__func__);
  if (emulator_current_device() < 0) {
    return wrong(DnnStatus::not_initialized, "the calling thread has no context");
  }
  *handle = new DnnHandleData{getpid()};
  return DnnStatus::success;
}

DnnStatus cudnnSetStream(DnnHandle handle, StreamHandle stream) {
  handle->stream = stream;
  return DnnStatus::success;
}

DnnStatus cudnnBackendCreateDescriptor(DnnKind kind, DnnDescriptor* descriptor) {
  const bool is_result = kind == DnnKind::engine || kind == DnnKind::engine_config;
  if (!is_result && std::ranges::find(known, kind, &Known::kind) == std::end(known)) {
    return wrong(DnnStatus::not_supported,
                 text("descriptors of kind ", static_cast<int>(kind), " are not known"));
  }
  *descriptor = new DnnDescriptorData{kind};
  return DnnStatus::success;
}

DnnStatus cudnnBackendDestroyDescriptor(DnnDescriptor descriptor) {
  if (descriptor->kind != DnnKind::pack) {
    emulator_wait_where_asked(__func__);
  }
  delete descriptor;
  return DnnStatus::success;
}

DnnStatus cudnnBackendFinalize(DnnDescriptor descriptor) {
  if (descriptor->kind != DnnKind::pack) {
    emulator_wait_where_asked(__func__);
  }
  const std::string problem = finish(*descriptor);
  if (!problem.empty()) {
    return wrong(DnnStatus::bad_parameter, problem);
  }
  descriptor->finished = true;
  return DnnStatus::success;
}

DnnStatus cudnnBackendSetAttribute(DnnDescriptor descriptor, DnnAttribute attribute, DnnValue type,
                                   std::int64_t count, const void* values) {
  const auto found = std::ranges::find_if(known, [&](const Known& k) {
    return k.kind == descriptor->kind && k.attribute == attribute && k.type == type;
  });
  if (descriptor->finished || found == std::end(known) || count < 1) {
    return wrong(
        DnnStatus::bad_parameter,
        text("a descriptor of kind ", static_cast<int>(descriptor->kind), " has no attribute ",
             static_cast<int>(attribute), " of this type, or it is finalized"));
  }
  const auto* const bytes = static_cast<const std::byte*>(values);
  descriptor->set[attribute].assign(bytes, bytes + static_cast<std::size_t>(count) * found->bytes);
  return DnnStatus::success;
}

DnnStatus cudnnBackendGetAttribute(DnnDescriptor descriptor, DnnAttribute attribute, DnnValue,
                                   std::int64_t most, std::int64_t* count, void* values) {
  emulator_wait_where_asked(__func__);
  *count = 0;
  if (attribute == DnnAttribute::heuristics_results && descriptor->finished) {
    const std::string problem = descriptor->graph->problem();
    if (!problem.empty() || most < 1) {
      wrong(DnnStatus::not_supported, problem);  // no engine: no error
      return DnnStatus::success;
    }
    auto* const config = static_cast<DnnDescriptor*>(values)[0];
    config->graph = descriptor->graph;
    config->finished = true;
  } else if (attribute == DnnAttribute::config_engine && descriptor->finished) {
    static_cast<DnnDescriptor*>(values)[0]->finished = true;
  } else if (attribute == DnnAttribute::engine_notes && descriptor->finished) {
    const DnnNote tensor_cores{0};
    static_cast<DnnNote*>(values)[0] =
        refuses_determinism ? DnnNote::not_deterministic : tensor_cores;
  } else if (attribute == DnnAttribute::device_text && descriptor->finished) {
    *count = static_cast<std::int64_t>(descriptor->text.size());
    std::memcpy(values, descriptor->text.data(),
                std::min(descriptor->text.size(), static_cast<std::size_t>(most)));
    return DnnStatus::success;
  } else if (attribute == DnnAttribute::plan_workspace && descriptor->finished) {
    *static_cast<std::int64_t*>(values) = static_cast<std::int64_t>(descriptor->graph->workspace());
  } else {
    return wrong(DnnStatus::bad_parameter,
                 text("attribute ", static_cast<int>(attribute), " cannot be read"));
  }
  *count = 1;
  return DnnStatus::success;
}

DnnStatus cudnnBackendExecute(DnnHandle handle, DnnDescriptor plan, DnnDescriptor pack) {
  if (!std::exchange(plan->executed, true)) {
    emulator_wait_where_asked(__func__);  // it loads the kernel
  }
  if (handle->owner != getpid()) {
    return wrong(DnnStatus::not_initialized, "the handle is of another process");
  }
  if (handle->stream == nullptr || !plan->finished || !pack->finished) {
    return wrong(DnnStatus::bad_parameter, "a stream and finalized descriptors are needed");
  }
  Reader r{*pack};
  Work work;
  work.graph = plan->graph;
  const auto ids = r.all<std::int64_t>(DnnAttribute::pack_ids);
  const auto addresses = r.all<const void*>(DnnAttribute::pack_addresses);
  for (std::size_t i = 0; i < ids.size(); ++i) work.addresses[ids[i]] = addresses[i];
  for (const auto& [id, given] : plan->graph->given()) {
    const auto found = work.addresses.find(id);
    if (found == work.addresses.end() || found->second == nullptr) {
      return wrong(DnnStatus::bad_parameter, text("tensor ", id, " has no address"));
    }
    const auto address = reinterpret_cast<std::uint64_t>(found->second);
    if (given.first.is_by_value) {
      work.numbers[id] = *static_cast<const float*>(found->second);  // the host's, read at once
    } else if (address % static_cast<std::uint64_t>(given.first.alignment) != 0) {
      return wrong(DnnStatus::bad_parameter, text("tensor ", id, " is not aligned"));
    }
  }
  const auto* const workspace = r.one<const void*>(DnnAttribute::pack_workspace);
  work.bytes = plan->graph->workspace();
  if (!Memory::instance().is_device(workspace) ||
      !Memory::instance().check(workspace, work.bytes).empty()) {
    return wrong(DnnStatus::bad_parameter, "the workspace is too small");
  }
  work.workspace = Memory::instance().opened(workspace);
  ++attentions;
  Executor::instance().push(*handle->stream->stream, {.work = [=] {
    std::fill(work.workspace, work.workspace + work.bytes, mark);
  }});
  Executor::instance().push(*handle->stream->stream, {.work = [=] { compute(work); }});
  return DnnStatus::success;
}

std::uint64_t emulator_attentions() { return attentions; }
void emulator_refuse_determinism(bool refuse) { refuses_determinism = refuse; }

}  // extern "C"
