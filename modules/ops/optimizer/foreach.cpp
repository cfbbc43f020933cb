// Operators over lists of tensors, as optimizers use them: one call for all tensors.
module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "pointwise/functions/arithmetic.hpp"
#include "pointwise/kernels/apply.hpp"
#include "reduce/kernels/reduce.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using operands::AlphaArgs;
using operands::ValueArgs;
using operands::WeightArgs;

// The operands are `lists` lists of one length, one after the other; the first one is written.

void check_lists(const Call& call, std::size_t lists) {
  const std::size_t count = call.in.size() / lists;
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    const Tensor& x = call.in[i % count];
    const Tensor& other = call.in[i];
    if (!(other.shape() == x.shape()) || other.dtype() != x.dtype() || !is_floating(x.dtype())) {
      refuse(call, {.wrong = fmt::format("tensor {} of list {} does not match the first list",
                                         i % count, i / count),
                    .expected = fmt::format("{} {}, of a floating type", name_of(x.dtype()),
                                            to_string(x.shape())),
                    .got = fmt::format("{} {}", name_of(other.dtype()), to_string(other.shape()))});
    }
  }
}

template <std::size_t lists>
void infer(const Call& call, ResultShapes& out) {
  check_lists(call, lists);
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

template <std::size_t lists, bool linear>
void rule(const RuleContext& context, Strategies& strategies) {
  rules::rows_of_lists(context, strategies, lists, linear);
}

/// The copies of one position's operands that are not contiguous; all positions use the same
/// memory.
template <std::size_t lists>
std::size_t workspace(const Call& call, std::span<const Tensor>) {
  Workspace w;
  const std::size_t count = call.in.size() / lists;
  for (std::size_t i = 0; i < count; ++i) {
    const Workspace::Scope of_position(w);
    for (std::size_t k = 0; k < lists; ++k) {
      if (!call.in[k * count + i].is_contiguous()) {
        contiguous_operand(w, call.in[k * count + i]);
      }
    }
  }
  return w.bytes();
}

/// write(x, operands that lie contiguously, numbers): for each tensor of the first list.
template <std::size_t lists, class F>
void for_each(const Call& call, F write) {
  check_lists(call, lists);
  Workspace w(call.workspace.data(), call.workspace.size());
  const std::size_t count = call.in.size() / lists;
  for (std::size_t i = 0; i < count; ++i) {
    const Workspace::Scope of_position(w);
    const Tensor& x = call.in[i];
    Tensor operands[lists];
    for (std::size_t k = 0; k < lists; ++k) {
      operands[k] = contiguous_operand(w, call.in[k * count + i]);
    }
    if (x.numel() != 0) {
      write(operands);
    }
    if (!operands[0].same_as(x)) {
      copy_into(x, operands[0]);
    }
    if (i > 0) {
      x.storage().bump_version();  // the dispatcher moves operand 0's
    }
  }
}

void zero_cpu(const Call& call, std::span<Tensor>) {
  for_each<1>(call,
              [](const Tensor* x) { kernels::fill(x->dtype(), x->numel(), 0, pointer<void>(*x)); });
}

/// A function of elements at one position of all lists, and of the only argument.
template <class F, std::size_t lists>
void function_cpu(const Call& call, std::span<Tensor>) {
  const double number = ArgumentType<double>::from_word(call.attributes.dynamic()[0]);
  for_each<lists>(call, [&](const Tensor* x) {
    const void* operands[lists];
    for (std::size_t k = 0; k < lists; ++k) {
      operands[k] = pointer<void>(x[k]);
    }
    kernels::apply(kernels::kernels_of<F, lists, 1>(), x->dtype(), x->numel(), operands,
                   {&number, 1}, pointer<void>(*x));
  });
}

template <class Args, std::size_t lists, bool linear>
const Op& over_lists(const char* schema, void (*cpu)(const Call&, std::span<Tensor>),
                     const char* about) {
  return register_op<Args>({.schema = schema,
                            .infer = infer<lists>,
                            .cpu = cpu,
                            .workspace = workspace<lists>,
                            .rule = rule<lists, linear>,
                            .in_place = true,
                            .about = about});
}

const Op& zero_op = over_lists<void, 1, true>("foreach_zero_(tensors!...)", zero_cpu,
                                              "Fills all tensors with zeros.");
const Op& mul_op =
    over_lists<ValueArgs, 1, true>("foreach_mul_(tensors!...)", function_cpu<functions::Mul, 1>,
                                   "Multiplies all tensors by a number.");
const Op& add_op = over_lists<AlphaArgs, 2, true>(
    "foreach_add_(tensors!..., others...)", function_cpu<functions::AddScaled, 2>,
    "Adds alpha times the tensors of a second list to the tensors of the first.");
const Op& lerp_op = over_lists<WeightArgs, 2, true>(
    "foreach_lerp_(tensors!..., ends...)", function_cpu<functions::Lerp, 2>,
    "Interpolates from the tensors of the first list towards the tensors of a second list.");
const Op& addcmul_op = over_lists<ValueArgs, 3, false>(
    "foreach_addcmul_(tensors!..., tensors1..., tensors2...)", function_cpu<functions::Addcmul, 3>,
    "Adds value times the products of the tensors of two lists to the tensors of the first.");
const Op& addcdiv_op = over_lists<ValueArgs, 3, false>(
    "foreach_addcdiv_(tensors!..., tensors1..., tensors2...)", function_cpu<functions::Addcdiv, 3>,
    "Adds value times the quotients of the tensors of two lists to the tensors of the first.");

// foreach_squared_norm

void norm_infer(const Call& call, ResultShapes& out) {
  for (const Tensor& x : call.in) {
    operands::check_floating(call.op.name, x);
  }
  out.push_back({Dims{static_cast<std::int64_t>(call.in.size())}, DType::f64});
}

void norm_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    const Workspace::Scope of_tensor(w);
    const Tensor x = contiguous_operand(w, call.in[i]);
    const double sum = kernels::sum_of_squares(w, x.dtype(), x.numel(), pointer<void>(w, x));
    if (!w.counts()) {
      out[0].data<double>()[i] = sum;
    }
  }
}

/// Where one tensor is sharded all must be: a whole one is cut, which moves nothing.
void norm_rule(const RuleContext& context, Strategies& strategies) {
  Strategy s;
  bool sharded = false;
  for (const Tensor& x : context.call.in) {
    const Placement p = rules::placement_of(context, x);
    sharded = sharded || p.is_shard();
    if (!p.is_shard() && x.dims() == 0) {
      return;
    }
    s.in.push_back(p.is_shard() ? p : Shard(0));
  }
  if (sharded) {
    s.out.push_back(Partial());
    strategies.push_back(std::move(s));
  }
}

const Op& norm_op = register_op({.schema = "foreach_squared_norm(tensors...)",
                                 .infer = norm_infer,
                                 .cpu = in_workspace<norm_cpu>,
                                 .workspace = workspace_of<norm_cpu>,
                                 .rule = norm_rule,
                                 .about = "The sum of squares of each tensor, in f64."});

}  // namespace

void foreach_zero_(std::span<const Tensor> x) { call_lists(zero_op, {x}, {}); }

void foreach_mul_(std::span<const Tensor> x, const Number& value) {
  call_lists(mul_op, {x}, ValueArgs{value});
}

void foreach_add_(std::span<const Tensor> x, std::span<const Tensor> y, const Number& alpha) {
  call_lists(add_op, {x, y}, AlphaArgs{alpha});
}

void foreach_lerp_(std::span<const Tensor> x, std::span<const Tensor> end, const Number& weight) {
  call_lists(lerp_op, {x, end}, WeightArgs{weight});
}

void foreach_addcmul_(std::span<const Tensor> x, std::span<const Tensor> a,
                      std::span<const Tensor> b, const Number& value) {
  call_lists(addcmul_op, {x, a, b}, ValueArgs{value});
}

void foreach_addcdiv_(std::span<const Tensor> x, std::span<const Tensor> a,
                      std::span<const Tensor> b, const Number& value) {
  call_lists(addcdiv_op, {x, a, b}, ValueArgs{value});
}

Tensor foreach_squared_norm(std::span<const Tensor> x) {
  if (x.empty()) {
    fail({.thing = "foreach_squared_norm",
          .wrong = "the list is empty",
          .expected = "at least one tensor"});
  }
  return call(norm_op, x)[0];
}

}  // namespace tessera::ops
