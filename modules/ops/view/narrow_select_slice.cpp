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
import :view_call;

namespace tessera::ops {
namespace {

struct NarrowArgs {
  std::int64_t dim;
  std::int64_t start;
  std::int64_t length;
};

struct SelectArgs {
  std::int64_t dim;
  std::int64_t index;
};

struct SliceArgs {
  std::int64_t dim;
  std::int64_t start;
  std::int64_t end;
  std::int64_t step;
};

/// Elements start, start + step, ... (length of them) of `dim`; `drop`: the dim goes.
struct Range {
  int dim;
  std::int64_t start;
  std::int64_t length;
  std::int64_t step = 1;
  bool drop = false;
};

Range range_of(const NarrowArgs& args, const Dims& x) {
  Range r{
      .dim = wrap_dim(args.dim, x.size(), "narrow"), .start = args.start, .length = args.length};
  const std::int64_t extent = x[r.dim];
  r.start += r.start < 0 ? extent : 0;
  if (r.start < 0 || r.length < 0 || r.start > extent || r.length > extent - r.start) {
    fail({.thing = "narrow",
          .wrong = fmt::format("the range is outside of dim {}", r.dim),
          .got =
              fmt::format("start {} and length {}, the extent is {}", r.start, r.length, extent)});
  }
  return r;
}

Range range_of(const SelectArgs& args, const Dims& x) {
  Range r{.dim = wrap_dim(args.dim, x.size(), "select"),
          .start = args.index,
          .length = 1,
          .drop = true};
  const std::int64_t extent = x[r.dim];
  if (r.start < -extent || r.start >= extent) {
    fail({.thing = "select",
          .wrong = "the index is out of range",
          .got = fmt::format("{}, dim {} has extent {}", r.start, r.dim, extent)});
  }
  r.start += r.start < 0 ? extent : 0;
  return r;
}

Range range_of(const SliceArgs& args, const Dims& x) {
  Range r{.dim = wrap_dim(args.dim, x.size(), "slice"),
          .start = args.start,
          .length = 0,
          .step = args.step};
  if (r.step < 1) {
    fail({.thing = "slice",
          .wrong = "the step must be at least 1",
          .got = fmt::format("{}", r.step)});
  }
  const std::int64_t extent = x[r.dim];
  r.start = std::clamp(r.start < 0 ? r.start + extent : r.start, std::int64_t{0}, extent);
  const std::int64_t end = std::clamp(args.end < 0 ? args.end + extent : args.end, r.start, extent);
  r.length = (end - r.start) / r.step + ((end - r.start) % r.step != 0 ? 1 : 0);
  r.step = r.length > 1 ? r.step : 1;  // no stride that leads nowhere
  return r;
}

template <class Args>
void infer(const Call& call, ResultShapes& out) {
  Dims shape = call.in[0].shape();
  const Range r = range_of(call.args<Args>(), shape);
  if (r.drop) {
    shape.erase(r.dim);
  } else {
    shape[r.dim] = r.length;
  }
  out.push_back({shape, call.in[0].dtype()});
}

template <class Args>
void make_view(const Call& call, Tensors& out) {
  const Tensor& x = call.in[0];
  const Range r = range_of(call.args<Args>(), x.shape());
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

template <class Args>
void rule(const RuleContext& context, Strategies& strategies) {
  const Range r = range_of(context.call.args<Args>(), context.call.in[0].shape());
  other_dims(context, strategies, r.dim, r.drop);
}

struct SliceBackwardArgs {
  std::int64_t dim;
  std::int64_t extent;  // of the whole dim
  std::int64_t start;
  std::int64_t step;
};

/// Arguments with the dim counted from the front.
struct Scatter {
  int dim;
  std::int64_t extent;
  std::int64_t start;
  std::int64_t step;
};

Scatter scatter_of(const SliceBackwardArgs& args, int count) {
  return {.dim = wrap_dim(args.dim, count, "slice_backward"),
          .extent = args.extent,
          .start = args.start,
          .step = args.step};
}

void scatter_infer(const Call& call, ResultShapes& out) {
  Dims shape = call.in[0].shape();
  const Scatter s = scatter_of(call.args<SliceBackwardArgs>(), shape.size());
  const std::int64_t length = shape[s.dim];
  const bool inside =
      s.start >= 0 && s.step >= 1 && s.extent >= 0 &&
      (length == 0 || (s.start < s.extent && length - 1 <= (s.extent - 1 - s.start) / s.step));
  if (!inside) {
    fail({.thing = "slice_backward",
          .wrong = fmt::format("{} elements from {} by {} are not inside an extent of {}", length,
                               s.start, s.step, s.extent)});
  }
  shape[s.dim] = s.extent;
  out.push_back({shape, call.in[0].dtype()});
}

void scatter_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor& x = call.in[0];
  const Scatter s = scatter_of(call.args<SliceBackwardArgs>(), x.dims());
  const Tensor& whole = out[0];
  operands::copy_elements(zeros({}, whole.dtype()), whole);
  Dims strides = whole.strides();
  const std::int64_t offset = whole.offset() + (x.numel() > 0 ? s.start * strides[s.dim] : 0);
  strides[s.dim] *= s.step;
  operands::copy_elements(x, alias(whole, x.shape(), strides, offset));
}

void scatter_rule(const RuleContext& context, Strategies& strategies) {
  const Call& call = context.call;
  const int dim = scatter_of(call.args<SliceBackwardArgs>(), call.in[0].dims()).dim;
  other_dims(context, strategies, dim, false);
}

void scatter_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  const Dims& shape = context.in_shapes[0];
  const Scatter s = scatter_of(context.args<SliceBackwardArgs>(), shape.size());
  const std::int64_t length = shape[s.dim];
  const std::int64_t end = length == 0 ? s.start : s.start + (length - 1) * s.step + 1;
  out[0] = slice(grads[0], s.dim, s.start, end, s.step);
}

const Op& scatter_op = register_op<SliceBackwardArgs>(
    {.schema = "slice_backward(grad)",
     .infer = scatter_infer,
     .cpu = scatter_cpu,
     .rule = scatter_rule,
     .backward = scatter_backward,
     .about = "Zeros of `extent` along dim, with grad at start, start + step..."});

template <class Args>
void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  const Range r = range_of(context.args<Args>(), context.in_shapes[0]);
  const Tensor grad = r.drop ? unsqueeze(grads[0], r.dim) : grads[0];
  out[0] = views::slice_backward(grad, r.dim, context.in_shapes[0][r.dim], r.start, r.step);
}

const Op& narrow_op = register_op<NarrowArgs>({.schema = "narrow(x)",
                                               .infer = infer<NarrowArgs>,
                                               .view = make_view<NarrowArgs>,
                                               .rule = rule<NarrowArgs>,
                                               .backward = backward<NarrowArgs>,
                                               .about = "`length` elements of dim, from `start`."});

const Op& select_op =
    register_op<SelectArgs>({.schema = "select(x)",
                             .infer = infer<SelectArgs>,
                             .view = make_view<SelectArgs>,
                             .rule = rule<SelectArgs>,
                             .backward = backward<SelectArgs>,
                             .about = "The slice at one index of dim, without that dim."});

const Op& slice_op =
    register_op<SliceArgs>({.schema = "slice(x)",
                            .infer = infer<SliceArgs>,
                            .view = make_view<SliceArgs>,
                            .rule = rule<SliceArgs>,
                            .backward = backward<SliceArgs>,
                            .about = "Every step-th element of dim in [start, end)."});

}  // namespace

Tensor views::slice_backward(const Tensor& grad, std::int64_t dim, std::int64_t extent,
                             std::int64_t start, std::int64_t step) {
  return call_one(scatter_op, {grad},
                  SliceBackwardArgs{.dim = dim, .extent = extent, .start = start, .step = step});
}

Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t length) {
  operands::given("narrow", "x", x);
  return call_one(
      narrow_op, {x},
      NarrowArgs{.dim = wrap_dim(dim, x.dims(), "narrow"), .start = start, .length = length});
}

Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index) {
  operands::given("select", "x", x);
  return call_one(select_op, {x},
                  SelectArgs{.dim = wrap_dim(dim, x.dims(), "select"), .index = index});
}

Tensor slice(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t end,
             std::int64_t step) {
  operands::given("slice", "x", x);
  return call_one(
      slice_op, {x},
      SliceArgs{.dim = wrap_dim(dim, x.dims(), "slice"), .start = start, .end = end, .step = step});
}

}  // namespace tessera::ops
