module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <tessera/visit_dtype.hpp>
#include <utility>
module tessera.tensor;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import :path;

namespace tessera {

AutogradState::~AutogradState() = default;

void TensorImpl::destroy() { delete this; }

namespace {

[[noreturn]] void not_local(const char* what, const Tensor& x) {
  fail({.thing = what,
        .wrong = fmt::format("the tensor is distributed ({})", to_string(*x.spec())),
        .advice = "use its local part, to_local(), or the whole, full_tensor()"});
}

[[noreturn]] void not_on_host(const char* what, const Tensor& x) {
  if (x.is_distributed()) {
    not_local(what, x);
  }
  fail({.thing = what,
        .wrong = fmt::format("the host cannot access the memory of {}", to_string(x.device())),
        .advice = "copy the tensor to the host (to_device(x, cpu)), or read it by item() or "
                  "to_doubles()"});
}

inline void* address_of(const TensorImpl& t) {
  auto* base = static_cast<std::byte*>(t.storage->data());
  return base == nullptr ? nullptr : base + t.offset * static_cast<std::int64_t>(size_of(t.dtype));
}

/// Tells modes that the host gets the address of a tensor's values, which it may read and write. A
/// call of an operator is one piece, so they do not see what its kernel does.
[[gnu::noinline]] void* noted_address(const Tensor& x) {
  if (modes_installed()) {
    Action action{.kind = ActionKind::read, .name = "data", .in = {x}};
    perform(action, [] {});
  }
  return address_of(*x.impl());
}

}  // namespace

const Dims& Tensor::strides() const {
  if (is_distributed()) {
    not_local("strides", *this);
  }
  return impl_->strides;
}

std::int64_t Tensor::offset() const { return get().offset; }

bool Tensor::lies_contiguous() const {
  const TensorImpl& t = *impl_;
  if (is_distributed()) {
    return t.local.is_contiguous();
  }
  std::int64_t expected = 1;
  for (int i = t.shape.size() - 1; i >= 0; --i) {
    if (t.shape[i] == 0) {
      return true;
    }
    if (t.shape[i] != 1 && t.strides[i] != expected) {
      return numel() == 0;
    }
    expected *= t.shape[i];
  }
  return true;
}

void* Tensor::raw_data() const {
  if ((get().keys & (distributed_key | device_keys)) != 0) [[unlikely]] {
    not_on_host("data", *this);
  }
  if (some_thread_has_modes()) [[unlikely]] {
    return noted_address(*this);
  }
  return address_of(*impl_);
}

void* Tensor::device_address() const {
  if (is_distributed()) {
    not_local("device_address", *this);
  }
  return address_of(*impl_);
}
void Tensor::undefined() {
  fail({.thing = "tensor",
        .wrong = "it is undefined (an absent value, or a gradient that did not arrive)",
        .advice = "test defined() before you use it"});
}

Storage& Tensor::storage() const {
  if (is_distributed()) {
    not_local("storage", *this);
  }
  return *impl_->storage;
}

const Tensor& Tensor::local() const {
  if (!is_distributed()) {
    fail({.thing = "local",
          .wrong = "the tensor is not distributed",
          .advice = "distribute() or from_local() makes it so"});
  }
  return impl_->local;
}

Layout Tensor::layout() const {
  if (!is_distributed()) {
    fail({.thing = "layout",
          .wrong = "the tensor is not distributed",
          .advice = "distribute() or from_local() makes it so"});
  }
  return impl_->spec->layout;
}

Tensor& Tensor::set_requires_grad(bool value) {
  if (value && !is_floating(dtype())) {
    fail({.thing = "set_requires_grad",
          .wrong = "only floating tensors have gradients",
          .got = std::string(name_of(dtype()))});
  }
  TensorImpl& impl = get();
  if (value) {
    impl.keys |= requires_grad_key;
  } else {
    if (impl.autograd && impl.autograd->is_computed()) {
      fail({.thing = "set_requires_grad",
            .wrong = "the tensor was computed from others",
            .expected = "a leaf",
            .advice = "use detach() to get its value without a gradient"});
    }
    impl.keys &= static_cast<std::uint8_t>(~requires_grad_key);
  }
  return *this;
}

Tensor& Tensor::grad() const { return get().grad; }

double Tensor::item() const {
  if (is_distributed()) {
    not_local("item", *this);
  }
  if (numel() != 1) {
    fail({.thing = "item",
          .wrong = "a tensor of one element is expected",
          .got = fmt::format("shape {}", to_string(shape()))});
  }
  return to_doubles(*this)[0];
}

void Tensor::check_type(DType wanted) const {
  if (dtype() != wanted) [[unlikely]] {
    fail({.thing = "data",
          .wrong = "the element type is wrong",
          .expected = std::string(name_of(wanted)),
          .got = std::string(name_of(dtype()))});
  }
}

Tensor from_storage(IntrusivePointer<Storage> storage, const Dims& shape, const Dims& strides,
                    std::int64_t offset, DType dtype, Device device) {
  auto* impl = new TensorImpl;
  impl->storage = std::move(storage);
  impl->offset = offset;
  impl->shape = shape;
  impl->strides = strides;
  impl->dtype = dtype;
  impl->device = device;
  impl->keys = device.type == DeviceType::cpu ? 0 : key_of(device);
  return Tensor(IntrusivePointer<TensorImpl>(impl));
}

namespace {

[[noreturn]] void too_large(const Dims& shape, DType dtype, std::string_view what) {
  checked_product(shape, what);  // a negative extent, or too many elements
  fail({.thing = std::string(what),
        .wrong =
            fmt::format("{} elements of {} in the shape {} are more bytes than can be addressed",
                        shape.product(), name_of(dtype), to_string(shape))});
}

/// Contiguous strides of a shape, and its size in bytes.
struct Contiguous {
  Dims strides;
  std::size_t bytes = 0;
};

/// Strides and size in one pass: every result of every operator comes through here.
inline Contiguous contiguous_memory(const Dims& shape, DType dtype, std::string_view what) {
  Contiguous memory;
  memory.strides = shape;
  std::int64_t stride = 1;
  bool none = false;
  bool wrong = false;
  for (int i = shape.size() - 1; i >= 0; --i) {
    memory.strides[i] = stride;
    const std::int64_t extent = shape[i];
    if (extent > 0) [[likely]] {
      wrong |= __builtin_mul_overflow(stride, extent, &stride);
    } else {
      none = true;
      wrong |= extent < 0;
    }
  }
  wrong |= __builtin_mul_overflow(stride, static_cast<std::int64_t>(size_of(dtype)), &stride);
  if (wrong) [[unlikely]] {
    too_large(shape, dtype, what);
  }
  memory.bytes = none ? 0 : static_cast<std::size_t>(stride);
  return memory;
}

[[noreturn]] void no_memory(const Dims& shape, DType dtype, std::string_view what,
                            std::string_view who) {
  fail({.thing = std::string(what),
        .wrong = fmt::format("there is not enough memory for a tensor of {}{} ({} bytes)",
                             name_of(dtype), to_string(shape),
                             shape.product() * static_cast<std::int64_t>(size_of(dtype))),
        .details = std::string(who)});
}

/// Fresh memory; for `shape`. Errors: there is none left.
IntrusivePointer<Storage> memory_for(const Dims& shape, std::size_t bytes, DType dtype,
                                     Device device, std::string_view what) {
  try {
    if (device.type == DeviceType::cpu) [[likely]] {
      return Storage::allocate(bytes);
    }
    return device.type == DeviceType::meta ? Storage::none(bytes)
                                           : Storage::allocate_on(device, bytes);
  } catch (const std::bad_alloc&) {
    no_memory(shape, dtype, what, "");
  } catch (const OutOfMemory& error) {
    no_memory(shape, dtype, what, error.what());
  }
}

}  // namespace

Tensor allocate_result(const Dims& shape, DType dtype, Device device, std::string_view what) {
  const Contiguous memory = contiguous_memory(shape, dtype, what);
  auto storage = memory_for(shape, memory.bytes, dtype, device, what);
  Tensor t = from_storage(std::move(storage), shape, memory.strides, 0, dtype, device);
  t.impl()->keys |= dense_key;
  return t;
}

Tensor from_memory(void* data, const Dims& shape, DType dtype, std::shared_ptr<void> keep_alive) {
  const Contiguous memory = contiguous_memory(shape, dtype, "from_memory");
  Tensor t = from_storage(Storage::borrow(data, memory.bytes, std::move(keep_alive)), shape,
                          memory.strides, 0, dtype);
  t.impl()->keys |= dense_key;
  return t;
}

Tensor alias(const Tensor& x, const Dims& shape, const Dims& strides, std::int64_t offset) {
  if (x.is_distributed()) {
    not_local("alias", x);
  }
  Tensor view = from_storage(x.impl()->storage, shape, strides, offset, x.dtype(), x.device());
  view.impl()->keys |= x.impl()->keys & copied_view_key;
  return view;
}

void set_copied_view(const Tensor& x) {
  x.impl()->keys |= copied_view_key;
  if (x.is_distributed()) {
    set_copied_view(x.local());
  }
}

Tensor make_distributed(Tensor local, const SpecHandle& spec) {
  auto* impl = new TensorImpl;
  impl->shape = spec->shape;
  impl->dtype = spec->dtype;
  impl->device = local.device();
  impl->keys = static_cast<std::uint8_t>(
      distributed_key | (local.impl()->keys & (meta_key | copied_view_key | device_keys)));
  impl->spec = spec;
  impl->local = std::move(local);
  return Tensor(IntrusivePointer<TensorImpl>(impl));
}

Tensor detached(const Tensor& x) {
  if (x.is_distributed()) {
    return make_distributed(x.local(), x.spec());
  }
  Tensor same = alias(x, x.shape(), x.strides(), x.offset());
  same.impl()->keys |= x.impl()->keys & dense_key;
  return same;
}

}  // namespace tessera
