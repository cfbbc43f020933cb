// A number where a mask holds: masked_fill.
module;
#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "pointwise/functions/comparisons.hpp"
#include "pointwise/kernels/pointwise.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :pointwise_call;

namespace tessera::ops {
namespace {

using operands::ValueArgs;

void check_mask(std::string_view op, const Tensor& mask) {
  if (mask.dtype() != DType::boolean) {
    fail({.thing = std::string(op),
          .wrong = "the mask has the wrong type",
          .expected = "bool",
          .got = std::string(name_of(mask.dtype())),
          .advice = "compare it with a number"});
  }
}

extern const Op& masked_backward_op;

void fill_infer(const Call& call, ResultShapes& out) {
  check_mask(call.op.name, call.in[1]);
  operands::check_broadcasts_to(call.op.name, call.in[1].shape(), call.in[0].shape());
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void fill(Workspace& w, const Call& call, std::span<const Tensor> out, double value) {
  const Tensor x = contiguous_operand(w, call.in[0]);
  Tensor mask = call.in[1];
  if (!(mask.shape() == x.shape()) || !mask.is_contiguous()) {
    mask = temporary(w, x.shape(), DType::boolean);
    if (!w.counts()) {
      operands::copy_elements(call.in[1], mask);
    }
  }
  if (w.counts()) {
    return;
  }
  kernels::masked_fill(x.dtype(), x.numel(), pointer<void>(x), pointer<const std::uint8_t>(mask),
                       value, pointer<void>(out[0]));
}

void fill_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  fill(w, call, out, call.args<ValueArgs>().value);
}
void masked_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  fill(w, call, out, 0);
}

void fill_backward(const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) {
  if (context.needs(0)) {
    out[0] = call_one(masked_backward_op, {grads[0], context.in[1]});
  }
}

// Not masked_fill() with 0: this is linear, so it takes terms of a sum.
const Op& masked_backward_op = register_op({.schema = "masked_fill_backward(dy, mask)",
                                            .infer = fill_infer,
                                            .cpu = in_workspace<masked_cpu>,
                                            .workspace = workspace_of<masked_cpu>,
                                            .element = elementwise::element<functions::MaskedZero>,
                                            .rule = rules::pointwise_linear_in_first,
                                            .backward = fill_backward,
                                            .saves_inputs = 0b10,
                                            .about = "dy where the mask is false, else 0."});

const operands::PointwiseForms fill_forms =
    operands::register_pointwise<ValueArgs>({.schema = "masked_fill(x, mask)",
                                             .infer = fill_infer,
                                             .cpu = in_workspace<fill_cpu>,
                                             .workspace = workspace_of<fill_cpu>,
                                             .element = elementwise::element<functions::MaskedFill>,
                                             .rule = rules::pointwise,
                                             .backward = fill_backward,
                                             .saves_inputs = 0b10,
                                             .about = "value where the mask is true, else x."});

}  // namespace

Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  return call_one(fill_forms.op, {x, mask}, ValueArgs{value});
}

Tensor masked_fill_(const Tensor& x, const Tensor& mask, double value) {
  return call_one(fill_forms.in_place, {x, mask}, ValueArgs{value});
}

}  // namespace tessera::ops
