// The forms of elementwise operators that write a tensor which keeps its memory: "name_" and
// "name_out", made from the operator's own functions.
module;
#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::operands {
namespace {

/// The call of the operator that the form is of, `first` operands further on.
Call inner_call(const Call& call, std::size_t first) {
  // Errors name the variant itself where its operands are those of the operator.
  return {first == 0 ? call.op : *call.op.form_of, call.in.subspan(first), call.attributes,
          call.workspace};
}

/// The operator's only result. Errors: it does not fit the tensor that is written.
template <std::size_t first>
void infer(const Call& call, ResultShapes& out) {
  call.op.form_of->infer(inner_call(call, first), out);
  const Tensor& written = call.in[0];
  if (!(out[0].shape == written.shape()) || out[0].dtype != written.dtype()) {
    fail({.thing = call.op.name,
          .wrong = "the written tensor does not match the result",
          .expected = fmt::format("{} {}", name_of(out[0].dtype), to_string(out[0].shape)),
          .got = fmt::format("{} {}", name_of(written.dtype()), to_string(written.shape()))});
  }
}

template <std::size_t first>
void write(const Call& call, std::span<Tensor> out) {
  ResultShapes checked;
  infer<first>(call, checked);
  if (out[0].numel() == 0) {
    return;
  }
  Call inner = inner_call(call, first);
  if (out[0].is_contiguous()) {
    call.op.form_of->cpu(inner, out);
    return;
  }
  kernels::Workspace w(call.workspace.data(), call.workspace.size());
  Tensor whole = ops::temporary(w, out[0].shape(), out[0].dtype());
  inner.workspace = call.workspace.subspan(w.bytes());
  call.op.form_of->cpu(inner, {&whole, 1});
  copy_elements(whole, out[0]);
}

/// Operands as the operator's kernel needs them, after its result where this is copied.
template <std::size_t first>
std::size_t workspace(const Call& call, std::span<const Tensor> out) {
  const Op& op = *call.op.form_of;
  std::size_t bytes = 0;
  if (!out[0].is_contiguous() && out[0].numel() != 0) {
    kernels::Workspace w;
    ops::temporary(w, out[0].shape(), out[0].dtype());
    bytes = w.bytes();
  }
  return bytes + (op.workspace == nullptr ? 0 : op.workspace(inner_call(call, first), out));
}

/// The strategies that keep the placement of the written tensor.
template <std::size_t first>
void rule(const RuleContext& context, Strategies& strategies) {
  const Call inner = inner_call(context.call, first);
  const RuleContext of_inner{
      inner, context.out, context.axis, context.axis_size,
      [&](std::size_t i, int dim) { return context.shards_of(i + first, dim); }};
  Strategies all;
  context.call.op.form_of->rule(of_inner, all);
  for (Strategy& s : all) {
    if (first == 0 && !(s.in[0] == s.out[0])) {
      continue;
    }
    Strategy of_form;
    if constexpr (first == 1) {
      of_form.in.push_back(s.out[0]);
    }
    for (const Placement& p : s.in) {
      of_form.in.push_back(p);
    }
    of_form.out = std::move(s.out);
    strategies.push_back(std::move(of_form));
  }
}

/// "mul(a, b)" -> "mul_(a, b)", "mul_out(out, a, b)".
std::string form_schema(const Op& op, std::string_view suffix, std::string_view operand) {
  return op.name + std::string(suffix) + "(" + std::string(operand) +
         op.schema.substr(op.name.size() + 1);
}

template <std::size_t first>
const Op& register_form(const Op& op) {
  return register_op(
      {.schema = first == 0 ? form_schema(op, "_", "") : form_schema(op, "_out", "out, "),
       .infer = infer<first>,
       .cpu = write<first>,
       .workspace = workspace<first>,
       .element = first == 0 ? op.element : nullptr,
       .rule = rule<first>,
       .in_place = true,
       .form_of = &op,
       .about = op.about + (first == 0 ? " Writes the first operand." : " Writes `out`."),
       .arguments = op.arguments});
}

}  // namespace

void infer_broadcast(const Call& call, ResultShapes& out) {
  const Tensor& a = call.in[0];
  check_same_type(call.op.name, a, call.in[1]);
  out.push_back({broadcast_shape(call.op.name, a.shape(), call.in[1].shape()), a.dtype()});
}

PointwiseForms register_pointwise(const Op& op) {
  const Op& kept = register_op(op);
  return {kept, register_form<0>(kept), register_form<1>(kept)};
}

}  // namespace tessera::operands

namespace tessera::ops {

Tensor call_into(const Tensor& out, const Op& op, std::initializer_list<Tensor> in,
                 const Attributes& attributes) {
  const Op& form = find_op(op.name + "_out");
  std::vector<Tensor> operands{out};
  operands.insert(operands.end(), in.begin(), in.end());
  return call(form, operands, attributes)[0];
}

}  // namespace tessera::ops
