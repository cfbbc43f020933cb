// Tensors between the memories of devices and the host.
module;
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
module tessera.tensor;

import tessera.base;
import tessera.device;
import :path;

namespace tessera {
namespace {

constexpr std::string_view name = "to_device";

/// The elements of the storage that a tensor spans: [first, last).
struct Span {
  std::int64_t first;
  std::int64_t last;
};

Span span_of(const Tensor& x) {
  Span span{x.offset(), x.offset() + 1};
  for (int d = 0; d < x.dims(); ++d) {
    if (x.shape()[d] == 0) {
      return {x.offset(), x.offset()};
    }
    const std::int64_t reach = (x.shape()[d] - 1) * x.strides()[d];
    (reach < 0 ? span.first : span.last) += reach;
  }
  return span;
}

std::size_t bytes_of(const Tensor& x) {
  return static_cast<std::size_t>(x.numel()) * size_of(x.dtype());
}

/// Contiguous tensors of the same values on the same device; below the modes, which see the whole
/// copy as one call.
Tensor cloned(const Tensor& x) {
  const TopModes hidden(path_state(), nullptr, nullptr);
  return call_kernel(find_op("clone"), {&x, 1}, {})[0];
}
Tensor in_order(const Tensor& x) { return x.is_contiguous() ? x : cloned(x); }

}  // namespace

Tensor on_host(const Tensor& x) {
  if (x.device() == cpu || is_on_host(x)) {
    return x;
  }
  const Span span = span_of(x);
  const Tensor copy = allocate_result({span.last - span.first}, x.dtype(), cpu, name);
  if (span.first == span.last) {
    return alias(copy, x.shape(), x.strides(), 0);  // x may have no memory, so no address either
  }
  const Stream stream = current_stream(x.device());
  const auto* base = static_cast<const std::byte*>(x.storage().data());
  x.storage().used_on(stream);
  stream.copy(copy.raw_data(), base + span.first * static_cast<std::int64_t>(size_of(x.dtype())),
              bytes_of(copy), CopyKind::to_host);
  stream.synchronize_into(copy);
  return alias(copy, x.shape(), x.strides(), x.offset() - span.first);
}

Tensor copied_to(const Tensor& x, Device device) {
  const NoGrad constant;
  check_device(device);
  if (device == meta || x.is_meta()) {
    return allocate_result(x.shape(), x.dtype(), meta, name);
  }
  if (device == cpu) {
    const Tensor there = on_host(x);
    // A copy that nobody else has can be the result.
    return is_on_host(x) ? cloned(there) : in_order(there);
  }
  const bool one_kind = x.device().type == device.type;
  const Tensor from = in_order(one_kind ? x : on_host(x));
  const Tensor copy = allocate_result(x.shape(), x.dtype(), device, name);
  const Stream stream = current_stream(device);
  if (!one_kind) {
    stream.copy(copy.device_address(), from.raw_data(), bytes_of(copy), CopyKind::to_device);
    return copy;
  }
  const Stream source = current_stream(x.device());
  from.storage().used_on(source);
  if (!(source == stream)) {
    stream.wait(record_event(source));
    from.storage().used_on(stream);
  }
  stream.copy(copy.device_address(), from.device_address(), bytes_of(copy), CopyKind::on_device);
  return copy;
}

}  // namespace tessera
