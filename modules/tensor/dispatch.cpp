module;
#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
module tessera.tensor;

import tessera.base;
import tessera.mesh;
import tessera.placement;

namespace tessera {
namespace {

PathSlot autograd_slot = nullptr;
PathSlot distribution_slot = nullptr;

struct PathState {
  Listener* above = nullptr;
  Listener* below = nullptr;
  const std::string* module = nullptr;
  bool grad = true;
};
thread_local constinit PathState path;

inline std::uint8_t keys_of(std::span<const Tensor> in) {
  std::uint8_t keys = 0;
  for (const Tensor& t : in) {
    if (t) {
      keys |= t.impl()->keys;
    }
  }
  return keys;
}

}  // namespace

Listener::~Listener() = default;

void set_autograd_slot(PathSlot slot) { autograd_slot = slot; }
void set_distribution_slot(PathSlot slot) { distribution_slot = slot; }

Listener* set_listener(ListenAt where, Listener* listener) {
  return std::exchange(where == ListenAt::above_distribution ? path.above : path.below, listener);
}

const std::string* interned_name(std::string_view name) {
  static std::mutex mutex;
  static std::set<std::string, std::less<>> names;
  const std::lock_guard lock(mutex);
  const auto found = names.find(name);
  return &*(found != names.end() ? found : names.emplace(name).first);
}

const std::string* current_module() { return path.module; }
ModuleScope::ModuleScope(const std::string* name) : before_(std::exchange(path.module, name)) {}
ModuleScope::~ModuleScope() { path.module = before_; }

ModuleError::ModuleError(const Error& error, const std::string& module, bool backward)
    : Error(fmt::format(
                "{}{}: {}",
                module.empty() ? std::string("the model") : fmt::format("module '{}'", module),
                backward ? ", backward" : "", error.what()),
            error.kind()),
      module_(interned_name(module)) {}

void rethrow_in_module(const Error& error, const std::string* module, bool backward) {
  if (module == nullptr || typeid(error) != typeid(Error)) {
    throw;
  }
  throw ModuleError(error, *module, backward);
}

bool grad_enabled() { return path.grad; }
NoGrad::NoGrad(bool enabled) : before_(std::exchange(path.grad, enabled)) {}
NoGrad::~NoGrad() { path.grad = before_; }

Tensors call(const Op& op, std::span<const Tensor> in, const Attributes& attributes) {
  if ((keys_of(in) & requires_grad_key) != 0 && path.grad) {
    return autograd_slot(op, in, attributes);
  }
  return call_below_autograd(op, in, attributes);
}

Tensors call_below_autograd(const Op& op, std::span<const Tensor> in,
                            const Attributes& attributes) {
  if (path.above != nullptr) [[unlikely]] {
    Listener* const listener = std::exchange(path.above, nullptr);
    Tensors out = call_below_autograd(op, in, attributes);
    path.above = listener;
    listener->called({op, in, attributes}, out);
    return out;
  }
  if ((keys_of(in) & distributed_key) != 0 || op.distributed != nullptr) {
    if (distribution_slot == nullptr) {
      fail(fmt::format("{}: distributed operands need tessera.dtensor, which is not linked",
                       op.name));
    }
    return distribution_slot(op, in, attributes);
  }
  return call_kernel(op, in, attributes);
}

Tensors call_kernel(const Op& op, std::span<const Tensor> in, const Attributes& attributes) {
  const Call c{op, in, attributes};
  Tensors out;
  const bool on_meta = (keys_of(in) & meta_key) != 0;
  if (op.view != nullptr) {
    op.view(c, out);
  } else if (op.in_place) {
    check_written_operands(c);
    out.push_back(in[0]);
    if (!on_meta) {
      op.cpu(c, out);
      in[0].storage().bump_version();
    }
  } else {
    ResultShapes shapes;
    op.infer(c, shapes);
    for (const ResultShape& r : shapes) {
      out.push_back(empty(r.shape, r.dtype, on_meta ? meta : cpu));
    }
    if (!on_meta) {
      op.cpu(c, out);
    }
  }
  if (path.below != nullptr) [[unlikely]] {
    Listener* const listener = std::exchange(path.below, nullptr);
    listener->called(c, out);
    path.below = listener;
  }
  return out;
}

}  // namespace tessera
