// A range of one dim: narrow, select, slice. Views; their gradient is written into zeros.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;

namespace tessera::ops {
namespace {

/// Elements start, start + step, ... (length of them) of `dim`; `drop`: the dim goes.
struct Range {
  int dim;
  std::int64_t start;
  std::int64_t length;
  std::int64_t step = 1;
  bool drop = false;
};

Range narrow_range(AttributeReader read, const Dims& x) {
  Range r{.dim = wrap_dim(read.integer(), x.size(), "narrow"),
          .start = read.integer(),
          .length = read.integer()};
  const std::int64_t extent = x[r.dim];
  r.start += r.start < 0 ? extent : 0;
  if (r.start < 0 || r.length < 0 || r.start > extent || r.length > extent - r.start) {
    fail(fmt::format(
        "narrow: the range is not inside dim {} (got start {} and length {}, its extent is {})",
        r.dim, r.start, r.length, extent));
  }
  return r;
}

Range select_range(AttributeReader read, const Dims& x) {
  Range r{.dim = wrap_dim(read.integer(), x.size(), "select"),
          .start = read.integer(),
          .length = 1,
          .drop = true};
  const std::int64_t extent = x[r.dim];
  if (r.start < -extent || r.start >= extent) {
    fail(fmt::format("select: the index is out of range (got {}, dim {} has extent {})", r.start,
                     r.dim, extent));
  }
  r.start += r.start < 0 ? extent : 0;
  return r;
}

Range slice_range(AttributeReader read, const Dims& x) {
  Range r{.dim = wrap_dim(read.integer(), x.size(), "slice"), .start = read.integer(), .length = 0};
  std::int64_t end = read.integer();
  r.step = read.integer();
  if (r.step < 1) {
    fail(fmt::format("slice: the step is at least 1 (got {})", r.step));
  }
  const std::int64_t extent = x[r.dim];
  r.start = std::clamp(r.start < 0 ? r.start + extent : r.start, std::int64_t{0}, extent);
  end = std::clamp(end < 0 ? end + extent : end, r.start, extent);
  r.length = (end - r.start) / r.step + ((end - r.start) % r.step != 0 ? 1 : 0);
  r.step = r.length > 1 ? r.step : 1;  // no stride that leads nowhere
  return r;
}

using RangeFunction = Range (*)(AttributeReader read, const Dims& x);

template <RangeFunction range_of>
void infer(const Call& call, ResultShapes& out) {
  Dims shape = call.in[0].shape();
  const Range r = range_of(call.read(), shape);
  if (r.drop) {
    shape.erase(r.dim);
  } else {
    shape[r.dim] = r.length;
  }
  out.push_back({shape, call.in[0].dtype()});
}

template <RangeFunction range_of>
void make_view(const Call& call, Tensors& out) {
  const Tensor& x = call.in[0];
  const Range r = range_of(call.read(), x.shape());
  Dims shape = x.shape();
  Dims strides = x.strides();
  const std::int64_t offset = x.offset() + (r.length > 0 ? r.start * strides[r.dim] : 0);
  if (r.drop) {
    shape.erase(r.dim);
    strides.erase(r.dim);
  } else {
    shape[r.dim] = r.length;
    strides[r.dim] *= r.step;
  }
  out.push_back(alias(x, shape, strides, offset));
}

/// The dim itself must be whole.
void other_dims(const RuleContext& context, Strategies& strategies, int dim, bool drop) {
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    if (d != dim) {
      strategies.push_back(rules::strategy({Shard(d)}, {Shard(drop && d > dim ? d - 1 : d)}));
    }
  }
  rules::moves_elements(context, strategies);
}

template <RangeFunction range_of>
void rule(const RuleContext& context, Strategies& strategies) {
  const Range r = range_of(context.call.read(), context.call.in[0].shape());
  other_dims(context, strategies, r.dim, r.drop);
}

/// slice_backward's attributes; `extent` is that of the whole dim.
struct Scatter {
  int dim;
  std::int64_t extent;
  std::int64_t start;
  std::int64_t step;
};

Scatter read_scatter(AttributeReader read, int count) {
  return {.dim = wrap_dim(read.integer(), count, "slice_backward"),
          .extent = read.integer(),
          .start = read.integer(),
          .step = read.integer()};
}

void scatter_infer(const Call& call, ResultShapes& out) {
  Dims shape = call.in[0].shape();
  const Scatter s = read_scatter(call.read(), shape.size());
  const std::int64_t length = shape[s.dim];
  if (s.start < 0 || s.step < 1 || (length > 0 && s.start + (length - 1) * s.step >= s.extent)) {
    fail(fmt::format("slice_backward: {} elements from {} by {} are not inside an extent of {}",
                     length, s.start, s.step, s.extent));
  }
  shape[s.dim] = s.extent;
  out.push_back({shape, call.in[0].dtype()});
}

void scatter_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor& x = call.in[0];
  const Scatter s = read_scatter(call.read(), x.dims());
  const Tensor& whole = out[0];
  operands::copy_elements(zeros({}, whole.dtype()), whole);
  Dims strides = whole.strides();
  const std::int64_t offset = whole.offset() + (x.numel() > 0 ? s.start * strides[s.dim] : 0);
  strides[s.dim] *= s.step;
  operands::copy_elements(x, alias(whole, x.shape(), strides, offset));
}

void scatter_rule(const RuleContext& context, Strategies& strategies) {
  other_dims(context, strategies, read_scatter(context.call.read(), context.call.in[0].dims()).dim,
             false);
}

void scatter_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  const Dims& shape = context.in_shapes[0];
  const Scatter s = read_scatter(context.read(), shape.size());
  const std::int64_t length = shape[s.dim];
  const std::int64_t end = length == 0 ? s.start : s.start + (length - 1) * s.step + 1;
  out[0] = slice(grads[0], s.dim, s.start, end, s.step);
}

const Op& scatter_op =
    register_op({.schema = "slice_backward(grad; dim: int, extent: int, start: int, step: int)",
                 .infer = scatter_infer,
                 .cpu = scatter_cpu,
                 .rule = scatter_rule,
                 .backward = scatter_backward,
                 .about = "Zeros of `extent` along dim, with grad at start, start + step..."});

template <RangeFunction range_of>
void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  const Range r = range_of(context.read(), context.in_shapes[0]);
  const Tensor grad = r.drop ? unsqueeze(grads[0], r.dim) : grads[0];
  out[0] =
      call_one(scatter_op, {grad},
               Attributes().add(r.dim).add(context.in_shapes[0][r.dim]).add(r.start).add(r.step));
}

const Op& narrow_op = register_op({.schema = "narrow(x; dim: int, start: int, length: int)",
                                   .infer = infer<narrow_range>,
                                   .view = make_view<narrow_range>,
                                   .rule = rule<narrow_range>,
                                   .backward = backward<narrow_range>,
                                   .about = "`length` elements of dim from `start` on."});

const Op& select_op = register_op({.schema = "select(x; dim: int, index: int)",
                                   .infer = infer<select_range>,
                                   .view = make_view<select_range>,
                                   .rule = rule<select_range>,
                                   .backward = backward<select_range>,
                                   .about = "One element of dim, which goes."});

const Op& slice_op = register_op({.schema = "slice(x; dim: int, start: int, end: int, step: int)",
                                  .infer = infer<slice_range>,
                                  .view = make_view<slice_range>,
                                  .rule = rule<slice_range>,
                                  .backward = backward<slice_range>,
                                  .about = "Every step-th element of dim in [start, end)."});

}  // namespace

Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t length) {
  operands::given("narrow", "x", x);
  return call_one(narrow_op, {x},
                  Attributes().add(wrap_dim(dim, x.dims(), "narrow")).add(start).add(length));
}

Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index) {
  operands::given("select", "x", x);
  return call_one(select_op, {x}, Attributes().add(wrap_dim(dim, x.dims(), "select")).add(index));
}

Tensor slice(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t end,
             std::int64_t step) {
  operands::given("slice", "x", x);
  return call_one(slice_op, {x},
                  Attributes().add(wrap_dim(dim, x.dims(), "slice")).add(start).add(end).add(step));
}

}  // namespace tessera::ops
