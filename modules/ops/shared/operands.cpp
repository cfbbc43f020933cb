module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "pointwise/kernels/pointwise.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;

namespace tessera::operands {

Dims broadcast_shape(std::string_view op, const Dims& a, const Dims& b) {
  if (a == b) {
    return a;
  }
  const bool a_longer = a.size() >= b.size();
  Dims result = a_longer ? a : b;
  const Dims& other = a_longer ? b : a;
  const int shift = result.size() - other.size();
  for (int i = 0; i < other.size(); ++i) {
    std::int64_t& extent = result[i + shift];
    if (extent == 1) {
      extent = other[i];
    } else if (other[i] != 1 && other[i] != extent) {
      fail({.thing = std::string(op),
            .wrong = "the operands' shapes do not broadcast",
            .got = fmt::format("{} and {}", to_string(a), to_string(b)),
            .advice = "from the last dim on, extents must be equal or 1"});
    }
  }
  return result;
}

void check_broadcasts_to(std::string_view op, const Dims& shape, const Dims& wanted) {
  const int shift = wanted.size() - shape.size();
  bool fits = shift >= 0;
  for (int i = 0; fits && i < shape.size(); ++i) {
    fits = shape[i] == 1 || shape[i] == wanted[i + shift];
  }
  if (!fits) {
    fail({.thing = std::string(op),
          .wrong = "the operand does not broadcast",
          .expected = fmt::format("a shape that broadcasts to {}", to_string(wanted)),
          .got = to_string(shape)});
  }
}

Dims broadcast_strides(const Tensor& x, const Dims& shape) {
  const Dims& own = x.strides();
  Dims strides = Dims::filled(shape.size(), 0);
  const int shift = shape.size() - own.size();
  for (int i = 0; i < own.size(); ++i) {
    strides[i + shift] = x.shape()[i] == 1 && shape[i + shift] != 1 ? 0 : own[i];
  }
  return strides;
}

void not_given(std::string_view function, std::string_view operand) {
  fail({.thing = std::string(function),
        .wrong = fmt::format("operand '{}' is an undefined tensor", operand),
        .expected = "a tensor"});
}

void check_same_type(std::string_view op, const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype()) [[unlikely]] {
    fail({.thing = std::string(op),
          .wrong = "the operands' types differ",
          .got = fmt::format("{} and {}", name_of(a.dtype()), name_of(b.dtype())),
          .advice = "cast one of them"});
  }
}

void check_floating(std::string_view op, const Tensor& x) {
  given(op, "x", x);
  if (!is_floating(x.dtype())) [[unlikely]] {
    fail({.thing = std::string(op),
          .wrong = "the operand has the wrong type",
          .expected = "a floating type",
          .got = std::string(name_of(x.dtype())),
          .advice = "cast it"});
  }
}

DType common_type(const Tensor& a, const Tensor& b) {
  const bool same_kind = is_floating(a.dtype()) == is_floating(b.dtype());
  if (same_kind && (a.dims() == 0) != (b.dims() == 0) && a.dtype() != DType::boolean &&
      b.dtype() != DType::boolean) {
    return a.dims() == 0 ? b.dtype() : a.dtype();
  }
  return promote(a.dtype(), b.dtype());
}

Tensor in_place_operand(std::string_view op, const Tensor& written, const Tensor& x) {
  given(op, "a", written);
  given(op, "b", x);
  const DType result = promote(written.dtype(), x.dtype());
  const auto kind = [](DType type) {
    return is_floating(type) ? 2 : (type == DType::boolean ? 0 : 1);
  };
  if (kind(result) > kind(written.dtype())) {
    fail({.thing = std::string(op),
          .wrong = fmt::format("the result is {}, which the first operand ({}) cannot hold",
                               name_of(result), name_of(written.dtype())),
          .advice = "use the variant that returns a new tensor, or cast the other operand"});
  }
  return ops::cast(x, written.dtype());
}

Tensor call_promoted(const Op& op, const Tensor& a, const Tensor& b) {
  given(op.name, "a", a);
  given(op.name, "b", b);
  if (a.dtype() == b.dtype()) [[likely]] {
    return call_one(op, {a, b});
  }
  const DType type = common_type(a, b);
  return call_one(op, {ops::cast(a, type), ops::cast(b, type)});
}

int front_dim(const char* op, std::int64_t dim, int count) {
  return wrap_dim(dim, std::max(count, 1), op);
}

Dims sorted_dims(const char* op, const Dims& dims, int count) {
  Dims sorted;
  if (dims.empty()) {
    for (int d = 0; d < count; ++d) {
      sorted.push_back(d);
    }
    return sorted;
  }
  for (const std::int64_t dim : dims) {
    const int d = front_dim(op, dim, count);
    if (count > 0) {
      sorted.push_back(d);
    }
  }
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    fail({.thing = op, .wrong = "a dim is named twice", .got = to_string(dims)});
  }
  return sorted;
}

namespace {

ReducedDims read_reduced_dims(const Op& op, const Attributes& attributes, int count) {
  ArgumentWords words{attributes.fixed().data(), nullptr};
  const Dims dims = sorted_dims(op.name.c_str(), words.read<Dims>(), count);
  return {dims, words.read<bool>()};
}

}  // namespace

ReducedDims reduced_dims(const Call& call) {
  return read_reduced_dims(call.op, call.attributes, call.in[0].dims());
}

ReducedDims reduced_dims(const BackwardContext& context) {
  return read_reduced_dims(context.op, context.attributes, context.in_shapes[0].size());
}

Tensor call_reduction(const Op& op, const Tensor& x, const Dims& dims, bool keepdim) {
  given(op.name, "x", x);
  const Dims sorted = sorted_dims(op.name.c_str(), dims, x.dims());
  return call_one(op, {x}, ReducedDims{sorted, keepdim});
}

Dims reduced_shape(const Dims& shape, const Dims& dims, bool keepdim) {
  Dims result;
  for (int d = 0; d < shape.size(); ++d) {
    if (!dims.contains(d)) {
      result.push_back(shape[d]);
    } else if (keepdim) {
      result.push_back(1);
    }
  }
  return result;
}

ReducedOperand reduced_operand(const Tensor& x, const Dims& dims) {
  ReducedOperand result = ops::reduced_view(x, dims);
  result.x = contiguous(result.x);
  return result;
}

Tensor contiguous(const Tensor& x) {
  if (x.is_contiguous()) {
    return x;
  }
  if (!is_on_host(x)) [[unlikely]] {
    return call_kernel(find_op("clone"), {&x, 1}, {})[0];  // by its device's kernel
  }
  Tensor copy = empty(x.shape(), x.dtype(), x.device());
  copy_elements(x, copy);
  return copy;
}

void copy_elements(const Tensor& x, const Tensor& into) {
  if (into.numel() == 0 || into.is_meta()) {
    return;
  }
  if (!is_on_host(into)) [[unlikely]] {  // by its device's kernel
    const Tensor operands[] = {into, x.device() == into.device() ? x : copied_to(x, into.device())};
    call_kernel(find_op("copy_"), operands, {});
    return;
  }
  kernels::copy_strided(x.dtype(), into.shape().span(), ops::pointer<void>(x),
                        broadcast_strides(x, into.shape()).span(), ops::pointer<void>(into),
                        into.strides().span());
}

Tensor sum_to(const Tensor& x, const Dims& shape) {
  if (x.shape() == shape) {
    return x;
  }
  const int front = x.dims() - shape.size();
  Dims new_dims;  // dims that the operand lacks
  Dims repeated;  // of what is left, those in which it has extent 1
  for (int d = 0; d < front; ++d) {
    new_dims.push_back(d);
  }
  for (int d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1 && x.shape()[d + front] != 1) {
      repeated.push_back(d);
    }
  }
  Tensor result = new_dims.empty() ? x : ops::sum(x, new_dims);
  return repeated.empty() ? result : ops::sum(result, repeated, true);
}

Tensor spread(const Tensor& x, const Dims& dims, bool keepdim, const Dims& shape) {
  Tensor result = x;
  if (!keepdim) {
    for (const std::int64_t d : dims) {
      result = ops::unsqueeze(result, d);
    }
  }
  return result.shape() == shape ? result : ops::expand(result, shape);
}

}  // namespace tessera::operands
