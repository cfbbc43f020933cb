// The values of a tensor on the host, as an action that modes see; and its text.
module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <tessera/printable.hpp>
#include <tessera/visit_dtype.hpp>
#include <utility>
#include <vector>
module tessera.tensor;

import tessera.base;
import tessera.mesh;
import tessera.placement;

namespace tessera {
namespace {

double read_element(const void* data, DType dtype, std::int64_t i) {
  return kernels::visit_stored(
      dtype, [&]<class T>(T) { return static_cast<double>(static_cast<const T*>(data)[i]); });
}

std::vector<double> read_values(const Tensor& x) {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(x.numel()));
  if (!is_on_host(x)) {
    return read_values(on_host(x));
  }
  const void* data = x.raw_data();
  if (data == nullptr) {
    require(x.numel() == 0,
            "to_doubles: the tensor is on the meta device and has no values; materialize it first");
    return values;
  }
  const Dims& shape = x.shape();
  const Dims& strides = x.strides();
  Dims index = Dims::filled(shape.size(), 0);
  for (std::int64_t n = x.numel(); n > 0; --n) {
    std::int64_t at = 0;
    for (int d = 0; d < shape.size(); ++d) {
      at += index[d] * strides[d];
    }
    values.push_back(read_element(data, x.dtype(), at));
    for (int d = shape.size() - 1; d >= 0 && ++index[d] == shape[d]; --d) {
      index[d] = 0;
    }
  }
  return values;
}

}  // namespace

std::vector<double> to_doubles(const Tensor& x) {
  if (!modes_installed()) [[likely]] {
    return read_values(x);
  }
  Action action{.kind = ActionKind::read, .name = "to_doubles", .in = {x}};
  perform(action, [&action] { action.values = read_values(action.in[0]); });
  return std::move(action.values);
}

std::string to_string(const Tensor& x) {
  if (!x) {
    return "undefined";
  }
  if (x.is_distributed()) {
    return fmt::format("{}; local {}", to_string(*x.spec()), to_string(x.local()));
  }
  std::string text = fmt::format("{}{}", name_of(x.dtype()), to_string(x.shape()));
  if (x.is_meta()) {
    return text + " meta";
  }
  if (!(x.device() == cpu)) {
    text += " " + to_string(x.device());
  }
  constexpr std::int64_t shown = 8;
  text += " {";
  const std::vector<double> values = to_doubles(x);
  for (std::size_t i = 0; i < values.size() && i < shown; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", printable(values[i]));
  }
  return text + (values.size() > shown ? ", ...}" : "}");
}

}  // namespace tessera
