// Calls whose operands are not in the CPU's memory: on the meta device, or on a device with kernels
// of its own.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.tensor;

import tessera.base;
import tessera.device;
import :path;

namespace tessera {

/// The dispatcher's access to a fallback.
struct FallbackAccess {
  static void run(HostFallback& fallback, const Call& call, std::span<Tensor> out);
};

namespace {

/// The one device of all operands. Errors: they are on several.
Device device_of(const Call& call) {
  std::size_t first = call.in.size();
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    if (!call.in[i]) {
      continue;
    }
    if (first == call.in.size()) {
      first = i;
    } else if (!(call.in[i].device() == call.in[first].device())) {
      fail({.thing = call.op.name,
            .wrong = "the operands are on several devices",
            .expected = "one",
            .got = fmt::format(
                "'{}' on {} and '{}' on {}", call.op.operand_name(first, call.in.size()),
                to_string(call.in[first].device()), call.op.operand_name(i, call.in.size()),
                to_string(call.in[i].device())),
            .advice = "copy one of them by to_device()"});
    }
  }
  return call.in[first].device();
}

[[noreturn]] void no_kernel(const Op& op, Device device) {
  fail({.thing = op.name,
        .wrong = fmt::format("the operator has no kernel on {}", to_string(device)),
        .advice = "use others, copy the operands to the host (to_device(x, cpu)), or allow the "
                  "host to compute it within a HostFallback scope"});
}

void run_on_device(const Call& call, Device device, std::span<Tensor> out) {
  const DeviceKernel kernel = kernel_of(call.op, device.type);
  if (!kernel) {
    HostFallback* fallback = path_state().fallback;
    if (fallback == nullptr || call.op.cpu == nullptr) {
      no_kernel(call.op, device);
    }
    FallbackAccess::run(*fallback, call, out);
    return;
  }
  const Stream stream = current_stream(device);
  for (const Tensor& x : call.in) {
    if (x) {
      x.storage().used_on(stream);
    }
  }
  run_kernel_of(call, device, kernel, out);
}

/// On the meta device: no kernel runs, but its workspace is booked where memory is planned.
void plan_kernel(const Call& call, std::span<Tensor> out) {
  run_kernel_of(call, meta,
                {.run = [](const Call&, std::span<Tensor>) {},
                 .workspace = kernel_of(call.op, step_context().planned_device).workspace},
                out);
}

}  // namespace

Tensors call_elsewhere(const Call& call, std::uint8_t keys) {
  const Op& op = call.op;
  Tensors out;
  const Device device = (keys & meta_key) != 0 ? meta : device_of(call);
  if (op.view != nullptr) {
    op.view(call, out);
  } else if (op.in_place) {
    check_writes(call, keys);
    out.push_back(call.in[0]);
    if (device == meta) {
      plan_kernel(call, out);
    } else {
      run_on_device(call, device, out);
    }
    for (std::size_t i = 0; i < call.in.size(); ++i) {
      // A kernel of the CPU moves the further ones itself; here it sees other storages, or none.
      if (call.in[i] && !op.keeps_versions && op.writes(op.place_of(i, call.in.size()).operand)) {
        call.in[i].storage().bump_version();
      }
    }
  } else {
    ResultShapes shapes;
    op.infer(call, shapes);
    for (const ResultShape& r : shapes) {
      if (is_stored_only(r.dtype)) {
        check_stored_result(op, r.dtype);
      }
      out.push_back(allocate_result(r.shape, r.dtype, device, op.name));
    }
    if (device == meta) {
      plan_kernel(call, out);
    } else {
      run_on_device(call, device, out);
    }
  }
  return out;
}

void run_in_workspace(const Call& call, Device device, Kernel kernel, std::span<Tensor> out,
                      std::size_t bytes) {
  const MemoryScope scope(MemoryCategory::workspace);
  IntrusivePointer<Storage> memory;
  try {
    memory = device == meta  ? Storage::none(bytes)
             : device == cpu ? Storage::allocate(bytes)
                             : Storage::allocate_on(device, bytes);
  } catch (const OutOfMemory& error) {
    fail({.thing = call.op.name,
          .wrong =
              fmt::format("there is not enough memory for {} bytes of intermediate values", bytes),
          .details = error.what()});
  }
  kernel({call.op,
          call.in,
          call.attributes,
          {static_cast<std::byte*>(memory->data()), memory->data() == nullptr ? 0 : bytes}},
         out);
}

HostFallback::HostFallback() : outer_(path_state().fallback) { path_state().fallback = this; }
HostFallback::~HostFallback() { path_state().fallback = outer_; }

void HostFallback::count(const Op& op, Device device, std::int64_t bytes) {
  auto entry = std::ranges::find_if(
      entries_, [&](const Entry& e) { return e.op == op.name && e.device == device; });
  if (entry == entries_.end()) {
    entries_.push_back({op.name, device});
    entry = std::prev(entries_.end());
  }
  ++entry->calls;
  entry->bytes += bytes;
  while (entry != entries_.begin() && std::prev(entry)->calls < entry->calls) {
    std::iter_swap(entry, std::prev(entry));
    --entry;
  }
}

namespace {

/// Copies of operands' memory on the host: one for each storage, so that views of one memory stay
/// views of one memory.
class HostCopies {
 public:
  /// The operand over the copy.
  Tensor of(const Tensor& x) {
    IntrusivePointer<Storage> copy;
    for (const HeldCopy& held : held_) {
      if (held.from == &x.storage()) {
        copy = held.copy;
      }
    }
    if (!copy) {
      const Storage& from = x.storage();
      copy = Storage::allocate(from.bytes());
      const Stream stream = current_stream(x.device());
      stream.copy(copy->data(), from.data(), from.bytes(), CopyKind::to_host);
      stream.synchronize_into(copy);
      held_.push_back({&x.storage(), copy});
      bytes_ += static_cast<std::int64_t>(from.bytes());
    }
    return from_storage(std::move(copy), x.shape(), x.strides(), x.offset(), x.dtype());
  }

  void write_back(const Tensor& x) {
    for (const HeldCopy& held : held_) {
      if (held.from == &x.storage()) {
        current_stream(x.device())
            .copy(x.storage().data(), held.copy->data(), held.copy->bytes(), CopyKind::to_device);
        bytes_ += static_cast<std::int64_t>(held.copy->bytes());
      }
    }
  }

  std::int64_t bytes() const { return bytes_; }

 private:
  struct HeldCopy {
    const Storage* from;
    IntrusivePointer<Storage> copy;
  };
  std::vector<HeldCopy> held_;
  std::int64_t bytes_ = 0;
};

/// How many bytes were copied.
std::int64_t compute_on_host(const Call& call, std::span<Tensor> out) {
  HostCopies copies;
  std::vector<Tensor> in;
  for (const Tensor& x : call.in) {
    in.push_back(x ? copies.of(x) : x);
  }
  Tensors results;
  for (const Tensor& x : out) {
    results.push_back(call.op.in_place ? in[0]
                                       : allocate_result(x.shape(), x.dtype(), cpu, call.op.name));
  }
  run_kernel_of({call.op, in, call.attributes}, cpu, kernel_of(call.op, DeviceType::cpu),
                {results.begin(), results.size()});
  for (const Tensor& result : results) {
    require(
        result.storage().pending() == nullptr,
        "kernel_on_host: the operator only begins its work, and the host's copies of its operands "
        "do not stay until it ends; call the operator that completes it");
  }
  std::int64_t bytes = 0;
  if (call.op.in_place) {
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (in[i] && call.op.writes(call.op.place_of(i, in.size()).operand)) {
        copies.write_back(call.in[i]);
      }
    }
  } else {
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto size = static_cast<std::size_t>(out[i].numel()) * size_of(out[i].dtype());
      current_stream(out[i].device())
          .copy(out[i].device_address(), results[i].raw_data(), size, CopyKind::to_device);
      bytes += static_cast<std::int64_t>(size);
    }
  }
  return bytes + copies.bytes();
}

}  // namespace

void kernel_on_host(const Call& call, std::span<Tensor> out) { compute_on_host(call, out); }

void FallbackAccess::run(HostFallback& fallback, const Call& call, std::span<Tensor> out) {
  const std::int64_t bytes = compute_on_host(call, out);
  fallback.count(call.op, device_of(call), bytes);
}

}  // namespace tessera
