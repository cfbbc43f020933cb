// Tensors with values.
module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <tessera/visit_dtype.hpp>
#include <type_traits>
#include <utility>
#include <vector>
module tessera.tensor;

import tessera.base;
import :path;

namespace tessera {
namespace {

/// Whether the integers of T have it, fractions cut off.
template <class T>
bool fits(double value) {
  constexpr double past = 2.0 * static_cast<double>(T{1} << (std::numeric_limits<T>::digits - 1));
  const double whole = std::trunc(value);
  return whole >= static_cast<double>(std::numeric_limits<T>::lowest()) && whole < past;
}

void fill_elements(void* data, DType dtype, std::int64_t count, double value) {
  kernels::visit_stored(dtype, [&]<class T>(T) {
    if constexpr (std::is_same_v<T, bool>) {
      std::fill_n(static_cast<T*>(data), count, value != 0);
    } else {
      if constexpr (std::is_integral_v<T>) {
        if (!fits<T>(value)) {
          fail_input({.thing = "full",
                      .wrong = fmt::format("{} does not fit {}", value, name_of(dtype)),
                      .expected = fmt::format("{} to {}", std::numeric_limits<T>::lowest(),
                                              std::numeric_limits<T>::max()),
                      .advice = "choose another value or type"});
        }
      }
      std::fill_n(static_cast<T*>(data), count, static_cast<T>(value));
    }
  });
}

/// Writes `value` to all elements of a fresh tensor of a device.
void fill_on_device(const Tensor& x, double value) {
  std::array<std::byte, 8> element{};
  fill_elements(element.data(), x.dtype(), 1, value);
  current_stream(x.device())
      .fill(x.device_address(), element.data(), size_of(x.dtype()), x.numel());
}

/// Makes a tensor by a factory; a mode may see it, and make the tensor itself.
/// `values`: what all elements are, where the factory says so.
template <class F>
Tensor create(std::string_view name, const Dims& shape, DType dtype, std::vector<double> values,
              const F& make) {
  if (!modes_installed()) [[likely]] {
    return make();
  }
  Action action{.kind = ActionKind::create, .name = name, .values = std::move(values)};
  perform(action, [&] { action.out = Tensors{make()}; });
  const Tensor made = action.out.size() == 1 ? action.out[0] : Tensor();
  if (!made || !(made.shape() == shape) || made.dtype() != dtype) {
    fail({.thing = std::string(name),
          .wrong = "the tensor that a mode makes is wrong",
          .expected = fmt::format("{}{}", name_of(dtype), to_string(shape)),
          .got = fmt::format(
              "{}",
              made ? fmt::format("{}{}", name_of(made.dtype()), to_string(made.shape())) : "none"),
          .advice = "return what the factory would return"});
  }
  return made;
}

}  // namespace

Tensor empty(const Dims& shape, DType dtype, Device device, std::string_view what) {
  return create("empty", shape, dtype, {},
                [&] { return allocate_result(shape, dtype, device, what); });
}

Tensor full(const Dims& shape, double value, DType dtype, Device device) {
  return create("full", shape, dtype, {value}, [&] {
    Tensor t = allocate_result(shape, dtype, device, "empty");
    if ((t.impl()->keys & device_keys) != 0) {
      fill_on_device(t, value);
    } else if (!t.is_meta()) {
      fill_elements(t.raw_data(), dtype, t.numel(), value);
    }
    return t;
  });
}

Tensor zeros(const Dims& shape, DType dtype, Device device) {
  return create("zeros", shape, dtype, {0}, [&] {
    Tensor t = allocate_result(shape, dtype, device, "empty");
    if ((t.impl()->keys & device_keys) != 0) {
      fill_on_device(t, 0);
    } else if (!t.is_meta() && t.numel() > 0) {
      std::memset(t.raw_data(), 0, static_cast<std::size_t>(t.numel()) * size_of(dtype));
    }
    return t;
  });
}

template <class T>
Tensor from_values(std::span<const T> values, const Dims& shape, Device device) {
  const std::int64_t count = checked_product(shape, "from_values");
  if (count != static_cast<std::int64_t>(values.size())) {
    fail({.thing = "from_values",
          .wrong = fmt::format("shape {} holds {} elements", to_string(shape), count),
          .got = fmt::format("{} values", values.size())});
  }
  if (device != cpu && device != meta) {
    fail({.thing = "from_values",
          .wrong = "values are on the host",
          .expected = "the device cpu or meta",
          .got = to_string(device),
          .advice = "make the tensor there, and move it with to_device"});
  }
  std::vector<double> described;
  if (device == meta && modes_installed()) {
    described.assign(values.begin(), values.end());
  }
  return create("from_values", shape, DTypeOf<T>::value, std::move(described), [&] {
    Tensor t = allocate_result(shape, DTypeOf<T>::value, device, "empty");
    if (device == cpu) {
      std::copy(values.begin(), values.end(), t.data<T>());
    }
    return t;
  });
}
template Tensor from_values(std::span<const float>, const Dims&, Device);
template Tensor from_values(std::span<const double>, const Dims&, Device);
template Tensor from_values(std::span<const std::int64_t>, const Dims&, Device);
template Tensor from_values(std::span<const std::int32_t>, const Dims&, Device);
template Tensor from_values(std::span<const std::uint8_t>, const Dims&, Device);
template Tensor from_values(std::span<const std::int8_t>, const Dims&, Device);
template Tensor from_values(std::span<const bool>, const Dims&, Device);

}  // namespace tessera
