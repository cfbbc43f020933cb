// A view with the strides that the caller names: as_strided.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "shared/kernels/types.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

struct StridedArgs {
  Dims shape;
  Dims strides;
  std::int64_t offset;
};

/// Where elements lie in memory.
struct Geometry {
  Dims shape;
  Dims strides;
  std::int64_t offset = 0;

  /// One past the last element. Errors: not an int64; `op` begins the text.
  std::int64_t end(std::string_view op) const {
    if (checked_product(shape, op) == 0) {
      return 0;
    }
    std::int64_t end = checked_add(offset, 1, op);
    for (int d = 0; d < shape.size(); ++d) {
      end = checked_add(end, checked_multiply(shape[d] - 1, strides[d], op), op);
    }
    return end;
  }
};

Geometry asked_geometry(const Call& call) {
  const auto args = call.args<StridedArgs>();
  Geometry g{.shape = args.shape, .strides = args.strides, .offset = args.offset};
  const bool negative =
      std::any_of(g.shape.begin(), g.shape.end(), [](auto e) { return e < 0; }) ||
      std::any_of(g.strides.begin(), g.strides.end(), [](auto s) { return s < 0; });
  if (g.shape.size() != g.strides.size() || negative || g.offset < 0) {
    refuse(call, {.wrong = "shape and strides are invalid",
                  .expected = "one stride per extent, none negative",
                  .got = fmt::format("shape {}, strides {}, offset {}", to_string(g.shape),
                                     to_string(g.strides), g.offset)});
  }
  g.end(call.op.name);
  return g;
}

void strided_infer(const Call& call, ResultShapes& out) {
  out.push_back({asked_geometry(call).shape, call.in[0].dtype()});
}

void strided_view(const Call& call, Tensors& out) {
  const Tensor& x = call.in[0];
  const Geometry g = asked_geometry(call);
  const auto elements =
      static_cast<std::int64_t>(x.storage().bytes() / static_cast<std::size_t>(size_of(x.dtype())));
  if (!x.is_meta() && g.end("as_strided") > elements) {
    refuse(call, {.wrong = fmt::format(
                      "shape {} with strides {} from {} leaves the memory of {} elements",
                      to_string(g.shape), to_string(g.strides), g.offset, elements)});
  }
  out.push_back(alias(x, g.shape, g.strides, g.offset));
}

void strided_grad_infer(const Call& call, ResultShapes& out) {
  const Geometry view = asked_geometry(call);
  const Tensor& x = call.in[1];
  check_shape(call, 0, view.shape);
  const auto elements =
      static_cast<std::int64_t>(x.storage().bytes() / static_cast<std::size_t>(size_of(x.dtype())));
  if (!x.is_meta() && view.end(call.op.name) > elements) {
    refuse(call, {.wrong = fmt::format(
                      "shape {} with strides {} from {} leaves the memory of {} elements",
                      to_string(view.shape), to_string(view.strides), view.offset, elements)});
  }
  out.push_back({x.shape(), call.in[0].dtype()});
}

/// dy is added at the memory positions of the view's elements; x's gradient is read at those of x's
/// elements.
void strided_grad_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor& x = call.in[1];
  const Geometry view = asked_geometry(call);
  const Geometry own{x.shape(), x.strides(), x.offset()};
  const std::int64_t extent = std::max(view.end("as_strided"), own.end("as_strided"));
  const auto element = static_cast<std::int64_t>(size_of(summed_type(out[0].dtype())));
  checked_multiply(extent, element, call.op.name);
  checked_product(Dims{extent}, call.op.name);
  const Tensor memory = temporary(w, {extent}, summed_type(out[0].dtype()));
  const Tensor sums = sums_for(w, out[0]);
  const Tensor dy = contiguous_operand(w, call.in[0]);
  if (w.counts()) {
    return;
  }
  clear(memory);
  visit_floating(dy.dtype(), call.op.name, [&]<class T>(T) {
    using Sum = kernels::Summed<T>;
    Dims at = Dims::filled(view.shape.size(), 0);
    for (std::int64_t i = 0; i < dy.numel(); ++i) {
      std::int64_t place = view.offset;
      for (int d = 0; d < at.size(); ++d) {
        place += at[d] * view.strides[d];
      }
      pointer<Sum>(memory)[place] += static_cast<Sum>(pointer<T>(dy)[i]);
      for (int d = at.size() - 1; d >= 0 && ++at[d] == view.shape[d]; --d) {
        at[d] = 0;
      }
    }
  });
  copy_into(sums, alias(memory, own.shape, own.strides, own.offset));
  convert_into(out[0], sums);
}

/// The way back: what x's gradient was given is added up where x's elements lie, and read where the
/// view's do. The same operator with the two changed about.
void strided_second(const BackwardContext& context, std::span<const Tensor> grads,
                    std::span<Tensor> out) {
  const Tensor& x = context.in[1];
  const auto args = context.args<StridedArgs>();
  const Tensor viewed = as_strided(detach(x), args.shape, args.strides, args.offset);
  out[0] = call_one(context.op, {grads[0], viewed},
                    StridedArgs{.shape = x.shape(), .strides = x.strides(), .offset = x.offset()});
}

const Op& strided_backward_op = register_op<StridedArgs>({
    .schema = "as_strided_backward(dy, x)",
    .infer = strided_grad_infer,
    .cpu = in_workspace<strided_grad_cpu>,
    .workspace = workspace_of<strided_grad_cpu>,
    .backward = strided_second,
    .saves_inputs = 0b10,
    .never_replicated = true,
    .about = "The gradient of as_strided: sums dy at the memory positions of x's elements.",
});

const Op& strided_op = register_op<StridedArgs>({
    .schema = "as_strided(x)",
    .infer = strided_infer,
    .view = strided_view,
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          const Tensor& x = context.in[0];
          for (int d = 0; d < x.dims(); ++d) {
            if (x.strides()[d] == 0 && x.shape()[d] > 1) {
              fail({.thing = "as_strided",
                    .wrong = "an x that repeats elements cannot have a gradient",
                    .advice = "call contiguous() on it first"});
            }
          }
          out[0] = call_one(strided_backward_op, {grads[0], x}, context.attributes);
        },
    .saves_inputs = 1,
    .never_replicated = true,
    .about = "x's memory with another shape and strides; plain tensors only.",
});

}  // namespace

Tensor as_strided(const Tensor& x, const Dims& shape, const Dims& strides, std::int64_t offset) {
  operands::given("as_strided", "x", x);
  if (x.is_distributed()) {
    fail({.thing = "as_strided",
          .wrong = "strides have no meaning for a distributed tensor",
          .got = to_string(*x.spec()),
          .advice = "use view(), transpose() or narrow(), or take to_local() first"});
  }
  return call_one(strided_op, {x},
                  StridedArgs{.shape = shape, .strides = strides, .offset = offset});
}

}  // namespace tessera::ops
