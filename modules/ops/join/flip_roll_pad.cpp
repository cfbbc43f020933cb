// Elements that change places along a dim, by a rule and not by a tensor of indices: flip, roll,
// pad.
module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "pointwise/kernels/pointwise.hpp"
#include "shared/kernels/separable.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :slide_call;
import :view_call;

namespace tessera::ops {
namespace {

struct FlipArgs {
  Dims dims;
};

struct RollArgs {
  Dims shifts;
  Dims dims;
};

struct PadArgs {
  Dims padding;
  PadMode mode;
  Dynamic<double> value;
};

struct PadBackwardArgs {
  Dims padding;
  PadMode mode;
};

Slides slides_of(const Call&, const FlipArgs& args, const Dims& x) {
  Slides slides = still(x);
  for (const std::int64_t dim :
       args.dims.empty() ? args.dims : operands::sorted_dims("flip", args.dims, x.size())) {
    slides[static_cast<std::size_t>(dim)].kind = Slide::Kind::flip;
  }
  return slides;
}

Slides slides_of(const Call& call, const RollArgs& args, const Dims& x) {
  const Dims& shifts = args.shifts;
  const Dims& dims = args.dims;
  if (shifts.size() != dims.size()) {
    refuse(call, {.wrong = "shifts and dims have different lengths",
                  .got = fmt::format("{} and {}", to_string(shifts), to_string(dims))});
  }
  Slides slides = still(x);
  for (int i = 0; i < dims.size(); ++i) {
    Slide& slide = slides[static_cast<std::size_t>(wrap_dim(dims[i], x.size(), "roll"))];
    slide.kind = Slide::Kind::roll;  // a dim may come twice
    slide.shift = slide.extent == 0 ? 0 : (slide.shift + shifts[i] % slide.extent) % slide.extent;
  }
  return slides;
}

void check_mode(const Call& call, PadMode mode) {
  if (reflect::name_of_enumerator(mode).empty()) {
    refuse(call, {.wrong = "mode does not exist",
                  .expected = std::string(reflect::Enumerators<PadMode>::joined),
                  .got = fmt::format("the number {}", static_cast<int>(mode))});
  }
}

/// Args: of pad or of its gradient; x is what is padded.
template <class Args>
Slides slides_of(const Call& call, const Args& args, const Dims& x) {
  const Dims& padding = args.padding;
  check_mode(call, args.mode);
  if (padding.size() % 2 != 0 || padding.size() / 2 > x.size()) {
    refuse(call, {.wrong = "the padding has the wrong length",
                  .expected = fmt::format("two numbers for each of at most {} dims", x.size()),
                  .got = to_string(padding)});
  }
  Slides slides = still(x);
  for (int i = 0; i < padding.size() / 2; ++i) {
    Slide& slide = slides[static_cast<std::size_t>(x.size() - 1 - i)];
    const std::int64_t before = padding[2 * i];
    const std::int64_t after = padding[2 * i + 1];
    if (before == 0 && after == 0) {
      continue;
    }
    slide.kind = Slide::Kind::pad;
    slide.mode = args.mode;
    slide.shift = before;
    if (before < -slide.extent || after < -slide.extent) {
      refuse(call, {.wrong = fmt::format("{} removes more than an extent of {}", to_string(padding),
                                         slide.extent),
                    .got = to_string(x)});
    }
    slide.result = checked_add(slide.result, checked_add(before, after, "pad"), "pad");
    const std::int64_t most = std::max(before, after);
    const bool fits = args.mode == PadMode::constant || most <= 0 ||
                      (args.mode == PadMode::reflect    ? most < slide.extent
                       : args.mode == PadMode::circular ? most <= slide.extent
                                                        : slide.extent > 0);
    if (slide.result < 0 || !fits) {
      refuse(call, {.wrong = fmt::format("{} is too large for an extent of {}", to_string(padding),
                                         slide.extent),
                    .got = to_string(x)});
    }
  }
  return slides;
}

template <class Args>
void infer(const Call& call, ResultShapes& out) {
  Dims shape = call.in[0].shape();
  const Slides slides = slides_of(call, call.args<Args>(), shape);
  for (int d = 0; d < shape.size(); ++d) {
    shape[d] = slides[static_cast<std::size_t>(d)].result;
  }
  out.push_back({shape, call.in[0].dtype()});
}

/// [outer, extent, inner] around dim d of `shape`.
struct SplitShape {
  SplitShape(const Dims& shape, int dim) {
    for (int d = 0; d < shape.size(); ++d) {
      (d < dim ? outer : d > dim ? inner : extent) *= shape[d];
    }
  }
  std::int64_t outer = 1;
  std::int64_t extent = 1;
  std::int64_t inner = 1;
};

/// Calls step(dim, slide, from, to) for each dim that moves, also with a workspace that only
/// counts; the last `to` is `out`.
template <class Step>
void dim_by_dim(Workspace& w, const Slides& slides, const Tensor& x, const Tensor& out, Step step) {
  Tensor at = contiguous_operand(w, x);
  int last = -1;
  for (int d = 0; d < x.dims(); ++d) {
    last = slides[static_cast<std::size_t>(d)].kind == Slide::Kind::none ? last : d;
  }
  if (last < 0) {
    if (!w.counts()) {
      copy_into(out, at);
    }
    return;
  }
  for (int d = 0; d <= last; ++d) {
    if (slides[static_cast<std::size_t>(d)].kind == Slide::Kind::none) {
      continue;
    }
    Dims shape = at.shape();
    shape[d] = out.shape()[d];
    const Tensor next = d == last ? out : temporary(w, shape, out.dtype());
    const Workspace::Scope of_step(w);
    if (next.numel() != 0) {
      step(d, slides[static_cast<std::size_t>(d)], at, next);
    }
    at = next;
  }
}

/// `fill` holds the element that stands where no element comes from.
void slide(Workspace& w, const Slides& slides, const Tensor& x, const void* fill,
           const Tensor& out) {
  dim_by_dim(w, slides, x, out, [&](int d, const Slide& s, const Tensor& from, const Tensor& to) {
    const std::span sources(w.take<std::int64_t>(s.result), static_cast<std::size_t>(s.result));
    if (w.counts()) {
      return;
    }
    s.write_sources(sources.data());
    const SplitShape a(from.shape(), d);
    kernels::choose_slices(static_cast<std::int64_t>(size_of(x.dtype())), a.outer, a.extent,
                           a.inner, sources, pointer<void>(from), fill, pointer<void>(to));
  });
}

constexpr std::uint64_t zero = 0;  // of any type

template <class Args>
void cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor& x = call.in[0];
  slide(w, slides_of(call, call.args<Args>(), x.shape()), x, &zero, out[0]);
}

/// Dims that do not move.
template <class Args>
void other_dims(const RuleContext& context, Strategies& strategies, const Dims& x) {
  const Slides slides = slides_of(context.call, context.call.args<Args>(), x);
  for (int d = 0; d < x.size(); ++d) {
    if (slides[static_cast<std::size_t>(d)].kind == Slide::Kind::none) {
      rules::same_dim(context, strategies, d);
    }
  }
}

template <class Args>
void moving_rule(const RuleContext& context, Strategies& strategies) {
  other_dims<Args>(context, strategies, context.call.in[0].shape());
  rules::moves_elements(context, strategies);
}

const Op& flip_op = register_op<FlipArgs>({
    .schema = "flip(x)",
    .infer = infer<FlipArgs>,
    .cpu = in_workspace<cpu<FlipArgs>>,
    .workspace = workspace_of<cpu<FlipArgs>>,
    .rule = moving_rule<FlipArgs>,
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          out[0] = flip(grads[0], context.args<FlipArgs>().dims);
        },
    .moves_elements = true,
    .about = "x in reverse order along dims.",
});

const Op& roll_op = register_op<RollArgs>({
    .schema = "roll(x)",
    .infer = infer<RollArgs>,
    .cpu = in_workspace<cpu<RollArgs>>,
    .workspace = workspace_of<cpu<RollArgs>>,
    .rule = moving_rule<RollArgs>,
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          auto back = context.args<RollArgs>();
          for (int i = 0; i < back.shifts.size(); ++i) {
            const std::int64_t extent = std::max<std::int64_t>(grads[0].size(back.dims[i]), 1);
            back.shifts[i] = -(back.shifts[i] % extent);
          }
          out[0] = roll(grads[0], back.shifts, back.dims);
        },
    .moves_elements = true,
    .about = "x shifted along dims; elements beyond the end continue at the beginning.",
});

// pad

void pad_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const auto args = call.args<PadArgs>();
  std::uint64_t value = 0;  // has room for an element of any type
  kernels::fill(out[0].dtype(), 1, args.value, &value);
  slide(w, slides_of(call, args, call.in[0].shape()), call.in[0], &value, out[0]);
}

/// Terms of a sum would each get the value; what repeats elements of x takes them.
void pad_rule(const RuleContext& context, Strategies& strategies) {
  other_dims<PadArgs>(context, strategies, context.call.in[0].shape());
  if (context.call.args<PadArgs>().mode != PadMode::constant) {
    rules::moves_elements(context, strategies);
  }
}

extern const Op& pad_backward_op;

/// Gradient of pad: what a constant has added is cut off, and what was cut off gets zeros.
void pad_gradient(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  const auto args = context.args<PadArgs>();
  const Dims& padding = args.padding;
  if (args.mode != PadMode::constant) {
    out[0] = call_one(pad_backward_op, {grads[0]},
                      PadBackwardArgs{.padding = padding, .mode = args.mode});
    return;
  }
  Tensor grad = grads[0];
  for (int i = 0; i < padding.size() / 2; ++i) {
    const std::int64_t before = padding[2 * i];
    const std::int64_t after = padding[2 * i + 1];
    const int d = grad.dims() - 1 - i;
    if (before > 0 || after > 0) {
      const std::int64_t start = std::max<std::int64_t>(before, 0);
      grad = narrow(grad, d, start, grad.shape()[d] - start - std::max<std::int64_t>(after, 0));
    }
    if (before < 0 || after < 0) {
      const std::int64_t start = std::max<std::int64_t>(-before, 0);
      grad = views::slice_backward(grad, d, context.in_shapes[0][d], start);
    }
  }
  out[0] = grad;
}

const Op& pad_op = register_op<PadArgs>({
    .schema = "pad(x)",
    .infer = infer<PadArgs>,
    .cpu = in_workspace<pad_cpu>,
    .workspace = workspace_of<pad_cpu>,
    .rule = pad_rule,
    .backward = pad_gradient,
    .about = "x with padding before and after: a constant, or x mirrored or repeated.",
});

/// x's shape, from its padded one.
Dims unpadded(const Call& call, const Dims& padding, Dims shape) {
  for (int i = 0; i < padding.size() / 2 && i < shape.size(); ++i) {
    std::int64_t& extent = shape[shape.size() - 1 - i];
    const std::int64_t added = checked_add(padding[2 * i], padding[2 * i + 1], call.op.name);
    extent = checked_add(extent, checked_multiply(added, -1, call.op.name), call.op.name);
    if (extent < 0) {
      refuse(call, {.wrong = fmt::format("dy {} is smaller than its padding {}",
                                         to_string(call.in[0].shape()), to_string(padding))});
    }
  }
  return shape;
}

void pad_grad_infer(const Call& call, ResultShapes& out) {
  const auto args = call.args<PadBackwardArgs>();
  if (args.mode == PadMode::constant) {
    refuse(call, {.wrong = "mode is constant, and a constant takes nothing from x",
                  .expected = "reflect, replicate or circular",
                  .advice = "narrow() dy"});
  }
  const Dims shape = unpadded(call, args.padding, call.in[0].shape());
  slides_of(call, args, shape);  // checks it
  operands::check_floating(call.op.name, call.in[0]);
  out.push_back({shape, call.in[0].dtype()});
}

void pad_grad_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Slides slides = slides_of(call, call.args<PadBackwardArgs>(), out[0].shape());
  const DType type = statistics_type(out[0].dtype());
  const Tensor sums = sums_for(w, out[0]);
  dim_by_dim(w, slides, converted_operand(w, call.in[0], type), sums,
             [&](int d, const Slide& s, const Tensor& from, const Tensor& to) {
               const SplitShape a(to.shape(), d);
               const kernels::SparseMap map(w, s.result, s.result);
               if (w.counts()) {
                 return;
               }
               s.write_sources(map.index);
               std::fill_n(map.weight, s.result, 1.0);
               std::iota(map.first, map.first + s.result + 1, std::int64_t{0});
               if (type == DType::f64) {
                 kernels::apply_transposed(map, a.outer, a.extent, a.inner, pointer<double>(from),
                                           pointer<double>(to));
               } else {
                 kernels::apply_transposed(map, a.outer, a.extent, a.inner, pointer<float>(from),
                                           pointer<float>(to));
               }
             });
  if (w.counts()) {
    return;
  }
  convert_into(out[0], sums);
}

const Op& pad_backward_op = register_op<PadBackwardArgs>({
    .schema = "pad_backward(dy)",
    .infer = pad_grad_infer,
    .cpu = in_workspace<pad_grad_cpu>,
    .workspace = workspace_of<pad_grad_cpu>,
    .rule =
        [](const RuleContext& context, Strategies& strategies) {
          other_dims<PadBackwardArgs>(context, strategies, context.out[0].shape);
          rules::linear(context, strategies);
        },
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          const auto args = context.args<PadBackwardArgs>();
          out[0] = pad(grads[0], args.padding, args.mode);
        },
    .about = "The gradient of pad for the modes that mirror or repeat x.",
});

}  // namespace

Tensor flip(const Tensor& x, const Dims& dims) {
  return call_one(flip_op, {x}, FlipArgs{.dims = dims});
}

Tensor roll(const Tensor& x, const Dims& shifts, const Dims& dims) {
  operands::given("roll", "x", x);
  if (dims.empty() && x.dims() != 1) {
    return reshape(roll(reshape(x, {-1}), shifts, {0}), x.shape());
  }
  return call_one(roll_op, {x}, RollArgs{.shifts = shifts, .dims = dims.empty() ? Dims{0} : dims});
}

Tensor pad(const Tensor& x, const Dims& padding, PadMode mode, double value) {
  if (mode != PadMode::constant) {
    operands::check_floating("pad", x);
  }
  return call_one(pad_op, {x}, PadArgs{.padding = padding, .mode = mode, .value = value});
}

}  // namespace tessera::ops
