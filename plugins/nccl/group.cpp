#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/arguments.hpp"
#include "kernels/combine.hpp"
#include "library.hpp"

import tessera.base;
import tessera.plugin;
import tessera.device;
import tessera.collective;

#include "group.hpp"

namespace tessera::nccl {
namespace {

using collective::Combination;
using collective::DeviceMessage;
using collective::GroupReduction;

/// Calls of NCCL's that begin together. Its end has the first error.
template <class Calls>
Result grouped(const Calls& calls) {
  Result result = api().group_start();
  if (result != Result::success) {
    return result;
  }
  result = calls();
  const Result ended = api().group_end();
  return result == Result::success ? ended : result;
}

/// Arrays in a window begin at multiples of this.
std::size_t aligned(std::size_t bytes) {
  constexpr std::size_t alignment = 512;
  return (bytes + alignment - 1) / alignment * alignment;
}

constexpr std::size_t vector_bytes = 16;

/// Whether a kernel can read and write 16 bytes at a time.
bool is_of_vectors(const Combination& c) {
  const auto aligned = [](const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % vector_bytes == 0;
  };
  return (c.reduce == ReduceOp::sum || c.reduce == ReduceOp::avg) &&
         (c.type == DType::f32 || c.type == DType::bf16 || c.type == DType::f16) &&
         aligned(c.destination) && std::ranges::all_of(c.sources, aligned);
}

template <class Arguments>
void launch_combine(cuda::Interop& device, DeviceDriver::Queue queue, const Combination& c,
                    const char* size) {
  Arguments a = {};
  a.destination = c.destination;
  std::ranges::copy(c.sources, a.sources);
  a.count = c.count;
  a.ranks = static_cast<int>(c.sources.size());
  a.type = c.type;
  a.destination_type = c.destination_f32 ? DType::f32 : c.type;
  a.reduce = static_cast<cuda::RankReduce>(c.reduce);
  a.accumulate = c.accumulate;
  if (is_of_vectors(c)) {
    // A vector for each thread.
    const auto vectors = c.count / static_cast<std::int64_t>(vector_bytes / size_of(c.type));
    device.launch_kernel(queue, std::string("sum_vectors_") + facts_of(c.type).name + size,
                         cuda::blocks_for(vectors * cuda::elements_per_thread),
                         cuda::threads_per_block, &a, sizeof(a));
    return;
  }
  device.launch_kernel(queue, std::string("combine_") + facts_of(facts_of(c.type).sums).name + size,
                       cuda::blocks_for(c.count), cuda::threads_per_block, &a, sizeof(a));
}

/// None: NCCL has no such elements.
std::optional<Type> type_of(DType type) {
  switch (type) {
    case DType::f32:
      return Type::float32;
    case DType::f64:
      return Type::float64;
    case DType::bf16:
      return Type::bfloat16;
    case DType::f16:
      return Type::float16;
    case DType::i64:
      return Type::int64;
    case DType::i32:
      return Type::int32;
    case DType::u8:
      return Type::uint8;
    default:
      return std::nullopt;
  }
}

Reduce reduce_of(ReduceOp reduce) {
  switch (reduce) {
    case ReduceOp::avg:
      return Reduce::avg;
    case ReduceOp::max:
      return Reduce::max;
    case ReduceOp::min:
      return Reduce::min;
    case ReduceOp::product:
      return Reduce::product;
    default:
      return Reduce::sum;
  }
}

}  // namespace

Group::Group(const collective::DeviceGroupRequest& request, cuda::Interop& device,
             std::shared_ptr<Communicator> first)
    : device_(device), first_(std::move(first)), own_(*first_, request.check) {
  if (first_->window() > 0 && request.size > 1) {
    window_ = std::make_unique<Window>(own_, device_, driver_of(request.device), first_->window());
    if (!window_->is_open()) {
      window_.reset();
    }
  }
}

/// NCCL wants no memory to be registered at the communicator's end.
Group::~Group() {
  for (const auto& [data, handle] : registered_) {
    deregister(handle);
  }
}

void Group::exchange(Queue queue, std::span<const DeviceMessage> sends,
                     std::span<const DeviceMessage> receives) {
  const cuda::StreamHandle stream = device_.handle_of(queue);
  own_.call("ncclSend and ncclRecv", [&](Comm comm) {
    return grouped([&] {
      Result result = Result::success;
      for (const DeviceMessage& m : sends) {
        result = result == Result::success
                     ? api().send(m.data, m.bytes, Type::uint8, m.member, comm, stream)
                     : result;
      }
      for (const DeviceMessage& m : receives) {
        result = result == Result::success
                     ? api().recv(m.data, m.bytes, Type::uint8, m.member, comm, stream)
                     : result;
      }
      return result;
    });
  });
}

void Group::combine(Queue queue, const Combination& c) {
  if (c.sources.size() <= cuda::CombineFew::most_sources) {
    launch_combine<cuda::CombineFew>(device_, queue, c, "_few");
  } else {
    launch_combine<cuda::CombineMany>(device_, queue, c, "_many");
  }
}

bool Group::all_gather(Queue queue, const void* source, void* destination, std::size_t bytes) {
  const auto gather = [&](const void* from, void* to) {
    const cuda::StreamHandle stream = device_.handle_of(queue);  // may wait, and look at the group
    own_.call("ncclAllGather", [&](Comm comm) {
      return api().all_gather(from, to, bytes, Type::uint8, comm, stream);
    });
  };
  const std::size_t all = bytes * static_cast<std::size_t>(own_.size());
  if (window_ == nullptr || aligned(bytes) + all > window_->bytes()) {
    gather(source, destination);
    return true;
  }
  std::byte* const own = window_->data();
  std::byte* const gathered = own + aligned(bytes);
  const Window::Copy in = {own, source, bytes};
  const Window::Copy out = {destination, gathered, all};
  window_->use(queue, {&in, 1}, [&] { gather(own, gathered); }, {&out, 1});
  return true;
}

bool Group::broadcast(Queue queue, const void* source, void* destination, std::size_t bytes,
                      int root) {
  const cuda::StreamHandle stream = device_.handle_of(queue);
  own_.call("ncclBroadcast", [&](Comm comm) {
    return api().broadcast(source, destination, bytes, Type::uint8, root, comm, stream);
  });
  return true;
}

bool Group::reduce_in_own_order(Queue queue, std::span<const GroupReduction> reductions, DType type,
                                ReduceOp reduce) {
  const std::optional<Type> elements = type_of(type);
  if (!elements) {
    return false;
  }
  const auto queue_all = [&](std::span<const GroupReduction> all) {
    const cuda::StreamHandle stream = device_.handle_of(queue);
    own_.call("ncclAllReduce and ncclReduceScatter", [&](Comm comm) {
      return grouped([&] {
        Result result = Result::success;
        for (const GroupReduction& r : all) {
          const auto count = static_cast<std::size_t>(r.count);
          const auto of = r.scattered ? api().reduce_scatter : api().all_reduce;
          result = result == Result::success ? of(r.source, r.destination, count, *elements,
                                                  reduce_of(reduce), comm, stream)
                                             : result;
        }
        return result;
      });
    });
  };
  // Of a scattered reduction the source and the destination are in the window, of another one the
  // source, which becomes the result.
  std::vector<GroupReduction> staged;
  std::vector<Window::Copy> in;
  std::vector<Window::Copy> out;
  std::size_t end = 0;
  for (const GroupReduction& r : reductions) {
    const std::size_t bytes = static_cast<std::size_t>(r.count) * size_of(type);
    const std::size_t source = r.scattered ? bytes * static_cast<std::size_t>(own_.size()) : bytes;
    std::byte* const place = window_ == nullptr ? nullptr : window_->data() + end;
    std::byte* const result = r.scattered ? place + aligned(source) : place;
    end += aligned(source) + (r.scattered ? aligned(bytes) : 0);
    if (window_ == nullptr || end > window_->bytes()) {
      queue_all(reductions);
      return true;
    }
    in.push_back({place, r.source, source});
    out.push_back({r.destination, result, bytes});
    staged.push_back({place, result, r.count, r.scattered});
  }
  if (!staged.empty()) {
    window_->use(queue, in, [&] { queue_all(staged); }, out);
  }
  return true;
}

void Group::register_memory(void* data, std::size_t bytes) {
  if (!api().comm_register || !api().comm_deregister) {
    return;
  }
  void* handle = nullptr;
  own_.call("ncclCommRegister",
            [&](Comm comm) { return api().comm_register(comm, data, bytes, &handle); });
  const std::lock_guard lock(mutex_);
  registered_[data] = handle;
}

void Group::unregister_memory(void* data, std::size_t) noexcept {
  void* handle = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto found = registered_.find(data);
    if (found == registered_.end()) {
      return;
    }
    handle = found->second;
    registered_.erase(found);
  }
  deregister(handle);
}

void Group::deregister(void* handle) noexcept {
  try {
    own_.call("ncclCommDeregister", [&](Comm comm) { return api().comm_deregister(comm, handle); });
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the group was aborted
  }
}

void Group::abort() noexcept {
  own_.abort();
  first_->abort();
}

std::string Group::failure() { return own_.failure(); }

}  // namespace tessera::nccl
