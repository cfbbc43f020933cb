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

#include "shared/kernels/separable.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

/// From where each element of a dim comes.
struct Slide {
  enum class Kind { none, flip, roll, pad };
  Kind kind = Kind::none;
  std::int64_t extent = 0;
  std::int64_t result = 0;
  std::int64_t shift = 0;  // of element 0
  PadMode mode = PadMode::constant;

  std::int64_t source(std::int64_t i) const {
    if (kind == Kind::flip) {
      return extent - 1 - i;
    }
    const std::int64_t at = i - shift;
    if (at >= 0 && at < extent) {
      return at;
    }
    if (kind == Kind::roll || mode == PadMode::circular) {
      return (at % extent + extent) % extent;
    }
    if (mode == PadMode::replicate) {
      return at < 0 ? 0 : extent - 1;
    }
    if (mode == PadMode::reflect) {
      return at < 0 ? -at : 2 * (extent - 1) - at;
    }
    return -1;
  }

  std::vector<std::int64_t> sources() const {
    std::vector<std::int64_t> all(static_cast<std::size_t>(result));
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i] = source(static_cast<std::int64_t>(i));
    }
    return all;
  }
};

/// One for each dim of x.
using Slides = std::array<Slide, max_dims>;
using SlideFunction = Slides (*)(const Call& call, const Dims& x);

Slides still(const Dims& x) {
  Slides slides;
  for (int d = 0; d < x.size(); ++d) {
    slides[static_cast<std::size_t>(d)].extent = x[d];
    slides[static_cast<std::size_t>(d)].result = x[d];
  }
  return slides;
}

Slides flips(const Call& call, const Dims& x) {
  Slides slides = still(x);
  const Dims dims = call.read().dims();
  for (const std::int64_t dim :
       dims.empty() ? dims : operands::sorted_dims("flip", dims, x.size())) {
    slides[static_cast<std::size_t>(dim)].kind = Slide::Kind::flip;
  }
  return slides;
}

Slides rolls(const Call& call, const Dims& x) {
  AttributeReader read = call.read();
  const Dims shifts = read.dims();
  const Dims dims = read.dims();
  if (shifts.size() != dims.size()) {
    refuse(call, fmt::format("one shift for each dim is expected (got {} and {})",
                             to_string(shifts), to_string(dims)));
  }
  Slides slides = still(x);
  for (int i = 0; i < dims.size(); ++i) {
    Slide& slide = slides[static_cast<std::size_t>(wrap_dim(dims[i], x.size(), "roll"))];
    slide.kind = Slide::Kind::roll;  // a dim may come twice
    slide.shift = slide.extent == 0 ? 0 : (slide.shift + shifts[i] % slide.extent) % slide.extent;
  }
  return slides;
}

Slides pads(const Call& call, const Dims& x) {
  AttributeReader read = call.read();
  const Dims padding = read.dims();
  const auto mode = static_cast<PadMode>(read.integer());
  if (padding.size() % 2 != 0 || padding.size() / 2 > x.size()) {
    refuse(call, fmt::format("two numbers for each of at most {} dims are expected (got {})",
                             x.size(), to_string(padding)));
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
    slide.mode = mode;
    slide.shift = before;
    if (before < -slide.extent || after < -slide.extent) {
      refuse(call, fmt::format("{} takes more than an extent of {} (got {})", to_string(padding),
                               slide.extent, to_string(x)));
    }
    slide.result = checked_add(slide.result, checked_add(before, after, "pad"), "pad");
    const std::int64_t most = std::max(before, after);
    const bool fits = mode == PadMode::constant || most <= 0 ||
                      (mode == PadMode::reflect    ? most < slide.extent
                       : mode == PadMode::circular ? most <= slide.extent
                                                   : slide.extent > 0);
    if (slide.result < 0 || !fits) {
      refuse(call, fmt::format("{} does not fit an extent of {} (got {})", to_string(padding),
                               slide.extent, to_string(x)));
    }
  }
  return slides;
}

template <SlideFunction slides_of>
void infer(const Call& call, ResultShapes& out) {
  Dims shape = call.in[0].shape();
  const Slides slides = slides_of(call, shape);
  for (int d = 0; d < shape.size(); ++d) {
    shape[d] = slides[static_cast<std::size_t>(d)].result;
  }
  out.push_back({shape, call.in[0].dtype()});
}

/// [outer, extent, inner] around dim d of `shape`.
struct Around {
  Around(const Dims& shape, int dim) {
    for (int d = 0; d < shape.size(); ++d) {
      (d < dim ? outer : d > dim ? inner : extent) *= shape[d];
    }
  }
  std::int64_t outer = 1;
  std::int64_t extent = 1;
  std::int64_t inner = 1;
};

/// Calls step(dim, slide, from, to) for each dim that moves; the last `to` is `out`.
template <class Step>
void dim_by_dim(const Slides& slides, const Tensor& x, const Tensor& out, Step step) {
  Tensor at = contiguous_operand(x);
  int last = -1;
  for (int d = 0; d < x.dims(); ++d) {
    last = slides[static_cast<std::size_t>(d)].kind == Slide::Kind::none ? last : d;
  }
  if (last < 0) {
    copy_into(out, at);
    return;
  }
  for (int d = 0; d <= last; ++d) {
    if (slides[static_cast<std::size_t>(d)].kind == Slide::Kind::none) {
      continue;
    }
    Dims shape = at.shape();
    shape[d] = out.shape()[d];
    const Tensor next = d == last ? out : empty(shape, out.dtype());
    if (next.numel() != 0) {
      step(d, slides[static_cast<std::size_t>(d)], at, next);
    }
    at = next;
  }
}

/// `fill` holds the element that stands where no element comes from.
void slide(const Slides& slides, const Tensor& x, const Tensor& fill, const Tensor& out) {
  dim_by_dim(slides, x, out, [&](int d, const Slide& s, const Tensor& from, const Tensor& to) {
    const Around a(from.shape(), d);
    kernels::choose_slices(static_cast<std::int64_t>(size_of(x.dtype())), a.outer, a.extent,
                           a.inner, s.sources(), from.raw_data(), fill.raw_data(), to.raw_data());
  });
}

template <SlideFunction slides_of>
void cpu(const Call& call, std::span<Tensor> out) {
  slide(slides_of(call, call.in[0].shape()), call.in[0], zeros({1}, out[0].dtype()), out[0]);
}

/// Dims that do not move.
template <SlideFunction slides_of>
void other_dims(const RuleContext& context, Strategies& strategies, const Dims& x) {
  const Slides slides = slides_of(context.call, x);
  for (int d = 0; d < x.size(); ++d) {
    if (slides[static_cast<std::size_t>(d)].kind == Slide::Kind::none) {
      rules::same_dim(context, strategies, d);
    }
  }
}

template <SlideFunction slides_of>
void moving_rule(const RuleContext& context, Strategies& strategies) {
  other_dims<slides_of>(context, strategies, context.call.in[0].shape());
  rules::moves_elements(context, strategies);
}

const Op& flip_op = register_op({
    .schema = "flip(x; dims: dims)",
    .infer = infer<flips>,
    .cpu = cpu<flips>,
    .rule = moving_rule<flips>,
    .backward = [](const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) { out[0] = flip(grads[0], context.read().dims()); },
    .about = "x in reverse order along dims.",
});

const Op& roll_op = register_op({
    .schema = "roll(x; shifts: dims, dims: dims)",
    .infer = infer<rolls>,
    .cpu = cpu<rolls>,
    .rule = moving_rule<rolls>,
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          AttributeReader read = context.read();
          Dims back = read.dims();
          for (std::int64_t& shift : back) {
            shift = -shift;
          }
          out[0] = roll(grads[0], back, read.dims());
        },
    .about = "x moved along dims, around the end.",
});

// pad

void pad_cpu(const Call& call, std::span<Tensor> out) {
  slide(pads(call, call.in[0].shape()), call.in[0], full({1}, call.read().scalar(), out[0].dtype()),
        out[0]);
}

/// Terms of a sum would each get the value; what repeats elements of x takes them.
void pad_rule(const RuleContext& context, Strategies& strategies) {
  other_dims<pads>(context, strategies, context.call.in[0].shape());
  AttributeReader read = context.call.read();
  read.dims();
  if (static_cast<PadMode>(read.integer()) != PadMode::constant) {
    rules::moves_elements(context, strategies);
  }
}

extern const Op& pad_backward_op;

/// What a constant has added is cut off, and what was cut off gets zeros.
void pad_gradient(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  AttributeReader read = context.read();
  Dims padding = read.dims();
  const auto mode = static_cast<PadMode>(read.integer());
  if (mode != PadMode::constant) {
    out[0] = call_one(pad_backward_op, {grads[0]},
                      Attributes().add(padding).add(static_cast<int>(mode)));
    return;
  }
  static const Op& zeros_around = find_op("slice_backward");
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
      grad = call_one(zeros_around, {grad},
                      Attributes().add(d).add(context.in_shapes[0][d]).add(start).add(1));
    }
  }
  out[0] = grad;
}

const Op& pad_op = register_op({
    .schema = "pad(x; padding: dims, mode: int, value: float)",
    .infer = infer<pads>,
    .cpu = pad_cpu,
    .rule = pad_rule,
    .backward = pad_gradient,
    .about = "x with more elements before and after: a value, or x mirrored or repeated.",
});

/// x's shape, from its padded one.
Dims unpadded(const Call& call, Dims shape) {
  const Dims padding = call.read().dims();
  for (int i = 0; i < padding.size() / 2 && i < shape.size(); ++i) {
    shape[shape.size() - 1 - i] -= padding[2 * i] + padding[2 * i + 1];
  }
  return shape;
}

Slides pads_of_gradient(const Call& call, const Dims& dy) { return pads(call, unpadded(call, dy)); }

void pad_grad_infer(const Call& call, ResultShapes& out) {
  const Dims shape = unpadded(call, call.in[0].shape());
  pads(call, shape);  // checks it
  operands::check_floating(call.op.name, call.in[0]);
  out.push_back({shape, call.in[0].dtype()});
}

void pad_grad_cpu(const Call& call, std::span<Tensor> out) {
  const Slides slides = pads_of_gradient(call, call.in[0].shape());
  const DType type = statistics_type(out[0].dtype());
  const Tensor sums = type == out[0].dtype() ? out[0] : empty(out[0].shape(), type);
  dim_by_dim(slides, converted_operand(call.in[0], type), sums,
             [&](int d, const Slide& s, const Tensor& from, const Tensor& to) {
               const Around a(to.shape(), d);
               kernels::SparseMap map;
               map.index = s.sources();
               map.weight.assign(map.index.size(), 1);
               map.first.resize(map.index.size() + 1);
               std::iota(map.first.begin(), map.first.end(), std::int64_t{0});
               if (type == DType::f64) {
                 kernels::apply_transposed(map, a.outer, a.extent, a.inner, pointer<double>(from),
                                           pointer<double>(to));
               } else {
                 kernels::apply_transposed(map, a.outer, a.extent, a.inner, pointer<float>(from),
                                           pointer<float>(to));
               }
             });
  convert_into(out[0], sums);
}

const Op& pad_backward_op = register_op({
    .schema = "pad_backward(dy; padding: dims, mode: int)",
    .infer = pad_grad_infer,
    .cpu = pad_grad_cpu,
    .rule =
        [](const RuleContext& context, Strategies& strategies) {
          other_dims<pads>(context, strategies, context.out[0].shape);
          rules::linear(context, strategies);
        },
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          AttributeReader read = context.read();
          const Dims padding = read.dims();
          out[0] = pad(grads[0], padding, static_cast<PadMode>(read.integer()));
        },
    .about = "The gradient of pad where x's elements are mirrored or repeated.",
});

}  // namespace

Tensor flip(const Tensor& x, const Dims& dims) {
  return call_one(flip_op, {x}, Attributes().add(dims));
}

Tensor roll(const Tensor& x, const Dims& shifts, const Dims& dims) {
  operands::given("roll", "x", x);
  if (dims.empty() && x.dims() != 1) {
    return reshape(roll(reshape(x, {-1}), shifts, {0}), x.shape());
  }
  return call_one(roll_op, {x}, Attributes().add(shifts).add(dims.empty() ? Dims{0} : dims));
}

Tensor pad(const Tensor& x, const Dims& padding, PadMode mode, double value) {
  if (mode != PadMode::constant) {
    operands::check_floating("pad", x);
  }
  return call_one(pad_op, {x}, Attributes().add(padding).add(static_cast<int>(mode)).scalar(value));
}

}  // namespace tessera::ops
