module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pointwise/kernels/pointwise.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {

void copy_into(const Tensor& into, const Tensor& x) { operands::copy_elements(x, into); }

Tensor contiguous_operand(const Tensor& x) { return x ? operands::contiguous(x) : x; }

Tensor copied_operand(Workspace& w, const Tensor& x) {
  const Tensor copy = temporary(w, x.shape(), x.dtype());
  if (!w.counts()) {
    operands::copy_elements(x, copy);
  }
  return copy;
}

namespace {

std::byte* take_elements(Workspace& w, const Dims& shape, DType dtype) {
  const std::int64_t bytes = checked_multiply(
      checked_product(shape, "workspace"), static_cast<std::int64_t>(size_of(dtype)), "workspace");
  return w.take<std::byte>(bytes);
}

}  // namespace

Tensor temporary(Workspace& w, const Dims& shape, DType dtype) {
  return from_memory(take_elements(w, shape, dtype), shape, dtype);
}

operands::ReducedOperand reduced_view(const Tensor& x, const Dims& dims) {
  operands::ReducedOperand result;
  const Dims& shape = x.shape();
  const bool adjacent = dims.empty() || dims.back() - dims.front() + 1 == dims.size();
  if (adjacent) {
    result.x = x;
    for (int d = 0; d < shape.size(); ++d) {
      const bool before = dims.empty() || d < dims.front();
      (before ? result.outer : d <= dims.back() ? result.reduced : result.inner) *= shape[d];
    }
    return result;
  }
  Dims extents;
  Dims strides;
  for (const bool reduced : {false, true}) {
    for (int d = 0; d < shape.size(); ++d) {
      if (dims.contains(d) == reduced) {
        extents.push_back(shape[d]);
        strides.push_back(x.strides()[d]);
        (reduced ? result.reduced : result.outer) *= shape[d];
      }
    }
  }
  result.x = alias(x, extents, strides, x.offset());
  return result;
}

operands::ReducedOperand reduced_operand(Workspace& w, const Tensor& x, const Dims& dims) {
  const operands::ReducedOperand view = reduced_view(x, dims);
  return {contiguous_operand(w, view.x), view.outer, view.reduced, view.inner};
}

Tensor transposed_operand(const Tensor& x, int d0, int d1) {
  Dims shape = x.shape();
  Dims strides = x.strides();
  std::swap(shape[d0], shape[d1]);
  std::swap(strides[d0], strides[d1]);
  return alias(x, shape, strides, x.offset());
}

Tensor reshaped_operand(const Tensor& x, const Dims& shape) {
  return alias(x, shape, contiguous_strides(shape), x.offset());
}

Tensor narrowed_operand(const Tensor& x, int dim, std::int64_t start, std::int64_t length) {
  Dims shape = x.shape();
  shape[dim] = length;
  return alias(x, shape, x.strides(), x.offset() + start * x.strides()[dim]);
}

Tensor expanded_operand(const Tensor& x, const Dims& shape) {
  Dims strides = Dims::filled(shape.size(), 0);
  const int front = shape.size() - x.dims();
  for (int d = front; d < shape.size(); ++d) {
    if (x.shape()[d - front] == shape[d]) {
      strides[d] = x.strides()[d - front];
    }
  }
  return alias(x, shape, strides, x.offset());
}

Tensor converted_operand(Workspace& w, const Tensor& x, DType type) {
  if (!x || x.dtype() == type) {
    return contiguous_operand(w, x);
  }
  const Tensor copy = temporary(w, x.shape(), type);
  const Workspace::Scope of_source(w);
  const Tensor from = contiguous_operand(w, x);
  if (!w.counts()) {
    convert_into(copy, from);
  }
  return copy;
}

void convert_into(const Tensor& into, const Tensor& x) {
  if (!x.same_as(into)) {
    kernels::cast(x.dtype(), into.dtype(), x.numel(), pointer<void>(x), pointer<void>(into));
  }
}

Tensor sums_for(Workspace& w, const Tensor& into) {
  const DType type = summed_type(into.dtype());
  return type == into.dtype() ? into : temporary(w, into.shape(), type);
}

void clear(const Tensor& x) {
  if (x.numel() != 0) {
    std::memset(pointer<void>(x), 0, static_cast<std::size_t>(x.numel()) * size_of(x.dtype()));
  }
}

Dims for_both_dims(const Dims& setting) {
  return setting.size() == 1 ? Dims{setting[0], setting[0]} : setting;
}

Tensor column_of(const Tensor& x) {
  return alias(x, Dims{x.shape()[0], 1}, Dims{x.strides()[0], 1}, x.offset());
}

Tensor row_of(const Tensor& x) {
  return alias(x, Dims{1, x.shape()[0]}, Dims{x.shape()[0], x.strides()[0]}, x.offset());
}

Matrix matrix_operand(Workspace& w, const Tensor& x) {
  const int d = x.dims();
  const std::int64_t rows = x.shape()[d - 2];
  const std::int64_t columns = x.shape()[d - 1];
  const std::int64_t row_stride = x.strides()[d - 2];
  const std::int64_t column_stride = x.strides()[d - 1];
  if ((column_stride == 1 || columns == 1) && (row_stride >= columns || rows == 1)) {
    return {x, rows == 1 ? columns : row_stride, false};
  }
  if ((row_stride == 1 || rows == 1) && (column_stride >= rows || columns == 1)) {
    return {x, columns == 1 ? rows : column_stride, true};
  }
  return {contiguous_operand(w, x), columns, false};
}

namespace {

/// As contiguous_operand, of which only the address is used: while it is counted, any tensor does.
Tensor adjacent_rows(Workspace& w, const Tensor& x) {
  if (w.counts() && x && !x.is_contiguous()) {
    take_elements(w, x.shape(), x.dtype());
    return x;
  }
  return contiguous_operand(w, x);
}

}  // namespace

Matrix rows_operand(Workspace& w, const Tensor& x) {
  const int last = x.dims() - 1;
  const std::int64_t columns = last < 0 ? 1 : x.shape()[last];
  if (last < 1 || x.is_contiguous() || x.numel() == 0) {
    return {adjacent_rows(w, x), columns, false};
  }
  std::int64_t stride = 0;   // of the rows; 0 until a dim of more than one row was seen
  std::int64_t covered = 0;  // what the next dim in front must have as its stride
  bool one_distance = x.strides()[last] == 1 || columns == 1;
  for (int d = last - 1; d >= 0; --d) {
    if (x.shape()[d] == 1) {
      continue;
    }
    if (stride == 0) {
      stride = x.strides()[d];
      one_distance = one_distance && stride >= columns;
    } else {
      one_distance = one_distance && x.strides()[d] == covered;
    }
    covered = x.strides()[d] * x.shape()[d];
  }
  if (!one_distance) {
    return {adjacent_rows(w, x), columns, false};
  }
  return {x, stride == 0 ? columns : stride, false};
}

void refuse(const Call& call, const std::string& what) {
  fail({.thing = call.op.name, .wrong = what});
}

void refuse(const Call& call, ErrorFields fields) {
  fields.thing = call.op.name;
  fail(std::move(fields));
}

void refuse_type(std::string_view name, DType dtype) {
  fail({.thing = std::string(name),
        .wrong = fmt::format("the type {} is not supported", name_of(dtype)),
        .advice = "cast the operand first"});
}

void check_dims(const Call& call, std::size_t i, int dims) {
  if (call.in[i].dims() != dims) {
    refuse(call, {.wrong = fmt::format("{} has the wrong number of dims", call.op.operands[i].name),
                  .expected = fmt::format("{}", dims),
                  .got = to_string(call.in[i].shape())});
  }
}

void check_shape(const Call& call, std::size_t i, const Dims& shape) {
  if (call.in[i] && call.in[i].shape() != shape) {
    refuse(call, {.wrong = fmt::format("{} has the wrong shape", call.op.operands[i].name),
                  .expected = to_string(shape),
                  .got = to_string(call.in[i].shape())});
  }
}

void check_one_type(const Call& call) {
  for (std::size_t i = 1; i < call.in.size(); ++i) {
    if (call.in[i] && call.in[i].dtype() != call.in[0].dtype()) {
      refuse(call, {.wrong = fmt::format("{} and {} have different types ({} and {})",
                                         call.op.operands[0].name, call.op.operands[i].name,
                                         name_of(call.in[0].dtype()), name_of(call.in[i].dtype())),
                    .advice = "cast one"});
    }
  }
}

void check_type(const Call& call, std::size_t i, DType dtype) {
  if (call.in[i] && call.in[i].dtype() != dtype) {
    refuse(call, {.wrong = fmt::format("{} has the wrong type", call.op.operands[i].name),
                  .expected = std::string(name_of(dtype)),
                  .got = std::string(name_of(call.in[i].dtype())),
                  .advice = "cast it"});
  }
}

void call_lists(const Op& op, std::initializer_list<std::span<const Tensor>> lists,
                const Attributes& attributes) {
  const std::size_t count = lists.begin()->size();
  std::vector<Tensor> all;
  all.reserve(lists.size() * count);
  for (const std::span<const Tensor>& list : lists) {
    if (list.size() != count) {
      const auto which = static_cast<std::size_t>(&list - lists.begin());
      fail({.thing = op.name,
            .wrong = fmt::format("the lists differ in length ({} {}, {} {})", count,
                                 op.operands[0].name, list.size(), op.operands[which].name)});
    }
    all.insert(all.end(), list.begin(), list.end());
  }
  if (!all.empty()) {
    const NoGrad constant;
    call(op, all, attributes);
  }
}

void add_to(Tensor& sum, const Tensor& term) { sum = sum ? add(sum, term) : term; }

std::int64_t window_room(const Call& call, std::int64_t extent, std::int64_t kernel,
                         std::int64_t dilation, std::int64_t padding) {
  const std::string& op = call.op.name;
  if (dilation < 1) {
    refuse(call, {.wrong = "dilation must be positive", .got = fmt::format("{}", dilation)});
  }
  const std::int64_t padded = checked_add(extent, checked_multiply(2, padding, op), op);
  const std::int64_t covered =
      kernel == 0 ? 0
                  : checked_add(checked_multiply(dilation, checked_add(kernel, -1, op), op), 1, op);
  if (covered < 0) {
    refuse(call,
           {.wrong = "the window's extent must not be negative", .got = fmt::format("{}", kernel)});
  }
  return checked_add(padded, -covered, op);
}

std::int64_t windows_along(const Call& call, std::int64_t extent, std::int64_t kernel,
                           std::int64_t dilation, std::int64_t stride, std::int64_t padding,
                           bool ceil_mode) {
  const std::int64_t room = window_room(call, extent, kernel, dilation, padding);
  if (room < 0) {
    return 0;
  }
  const std::int64_t count = room / stride + (ceil_mode && room % stride != 0 ? 1 : 0) + 1;
  // Every window begins inside of x or the padding before it.
  return checked_multiply(count - 1, stride, call.op.name) >=
                 checked_add(extent, padding, call.op.name)
             ? count - 1
             : count;
}

Dims without_last(const Dims& shape) {
  Dims d = shape;
  d.pop_back();
  return d;
}

void pass_partial(const RuleContext& context, Strategies& strategies, unsigned operands,
                  unsigned results) {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
    Strategy s;
    for (std::size_t i = 0; i < context.call.in.size(); ++i) {
      s.in.push_back(((operands >> i) & 1U) != 0 ? Partial(op) : Replicate());
    }
    for (std::size_t i = 0; i < context.out.size(); ++i) {
      s.out.push_back(((results >> i) & 1U) != 0 ? Partial(op) : Replicate());
    }
    strategies.push_back(std::move(s));
  }
}

}  // namespace tessera::ops
