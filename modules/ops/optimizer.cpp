// One step of an optimizer for one parameter: a single pass over its elements, in place, without
// memory of its own.
module;
#include <fmt/format.h>

#include <cstdint>
#include <span>

#include "kernels/adamw.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

void rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    rules::same_dim(context, strategies, d);
  }
}

/// What the kernels cannot work on is an error: a copy would lose what is written.
void check(const Call& call) {
  const Tensor& parameter = call.in[0];
  for (std::size_t i = 1; i < call.in.size(); ++i) {
    check_shape(call, i, parameter.shape());
  }
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    const bool written = i != 1;
    if (!call.in[i] || !written) {
      continue;
    }
    if (!call.in[i].is_contiguous()) {
      refuse(call,
             fmt::format("{} is not contiguous; it is written in place", call.op.operands[i].name));
    }
    if (call.in[i].dtype() != parameter.dtype()) {
      refuse(call, fmt::format("{} has another type than the parameter ({} and {})",
                               call.op.operands[i].name, name_of(call.in[i].dtype()),
                               name_of(parameter.dtype())));
    }
  }
}

void infer(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

/// Calls f with values of the C++ types of the parameter and of the gradient.
template <class F>
void visit_types(const Call& call, F f) {
  const DType parameter = call.in[0].dtype();
  const DType gradient = call.in[1].dtype();
  if (parameter == DType::f64 && gradient == DType::f64) {
    f(double{}, double{});
  } else if (parameter == DType::f32 && gradient == DType::f32) {
    f(float{}, float{});
  } else if (parameter == DType::f32 && gradient == DType::bf16) {
    f(float{}, kernels::BFloat16{});
  } else if (parameter == DType::f32 && gradient == DType::f16) {
    f(float{}, kernels::Half{});
  } else {
    refuse(call, fmt::format("a parameter of type {} with a gradient of type {} is not supported "
                             "(expected f32 with f32, bf16 or f16, or f64 with f64); keep the "
                             "parameters in f32",
                             name_of(parameter), name_of(gradient)));
  }
}

void adamw_cpu(const Call& call, std::span<Tensor>) {
  check(call);
  AttributeReader attributes = call.read();
  kernels::AdamW options;
  options.learning_rate = attributes.scalar();
  options.beta1 = attributes.scalar();
  options.beta2 = attributes.scalar();
  options.eps = attributes.scalar();
  options.weight_decay = attributes.scalar();
  options.grad_scale = attributes.scalar();
  options.step = attributes.free_integer();
  const Tensor gradient = contiguous_operand(call.in[1]);
  visit_types(call, [&]<class C, class G>(C, G) {
    kernels::adamw(options, gradient.numel(), pointer<C>(call.in[0]), pointer<G>(gradient),
                   pointer<C>(call.in[2]), pointer<C>(call.in[3]));
  });
  call.in[2].storage().bump_version();
  call.in[3].storage().bump_version();
}

const Op& adamw_op = register_op({
    .schema = "adamw_(parameter, gradient, exp_avg!, exp_avg_sq!; lr: float, beta1: float, "
              "beta2: float, eps: float, weight_decay: float, grad_scale: float, step: free)",
    .infer = infer,
    .cpu = adamw_cpu,
    .rule = rule,
    .in_place = true,
    .about = "One step of AdamW; writes parameter, exp_avg and exp_avg_sq.",
});

void sgd_cpu(const Call& call, std::span<Tensor>) {
  check(call);
  const Tensor& buffer = call.in[2];
  AttributeReader attributes = call.read();
  kernels::Sgd options;
  options.learning_rate = attributes.scalar();
  options.momentum = attributes.scalar();
  options.weight_decay = attributes.scalar();
  options.grad_scale = attributes.scalar();
  options.nesterov = attributes.free_integer() != 0;
  options.first_step = attributes.free_integer() != 0;
  if (!buffer && options.momentum != 0) {
    refuse(call, fmt::format("momentum {} needs a momentum buffer", options.momentum));
  }
  const Tensor gradient = contiguous_operand(call.in[1]);
  visit_types(call, [&]<class C, class G>(C, G) {
    kernels::sgd(options, gradient.numel(), pointer<C>(call.in[0]), pointer<G>(gradient),
                 pointer<C>(buffer));
  });
  if (buffer) {
    buffer.storage().bump_version();
  }
}

const Op& sgd_op = register_op({
    .schema = "sgd_(parameter, gradient, momentum_buffer!?; lr: float, momentum: float, "
              "weight_decay: float, grad_scale: float, nesterov: free, first: free)",
    .infer = infer,
    .cpu = sgd_cpu,
    .rule = rule,
    .in_place = true,
    .about = "One step of SGD; writes parameter and momentum_buffer.",
});

}  // namespace

void adamw_(const Tensor& parameter, const Tensor& gradient, const Tensor& exp_avg,
            const Tensor& exp_avg_sq, const AdamWStep& settings) {
  const NoGrad constant;
  call(adamw_op, {parameter, gradient, exp_avg, exp_avg_sq},
       Attributes()
           .scalar(settings.lr)
           .scalar(settings.beta1)
           .scalar(settings.beta2)
           .scalar(settings.eps)
           .scalar(settings.weight_decay)
           .scalar(settings.grad_scale)
           .free_integer(settings.step));
}

void sgd_(const Tensor& parameter, const Tensor& gradient, const Tensor& momentum_buffer,
          const SgdStep& settings) {
  const NoGrad constant;
  call(sgd_op, {parameter, gradient, momentum_buffer},
       Attributes()
           .scalar(settings.lr)
           .scalar(settings.momentum)
           .scalar(settings.weight_decay)
           .scalar(settings.grad_scale)
           .free_integer(settings.nesterov ? 1 : 0)
           .free_integer(settings.first ? 1 : 0));
}

}  // namespace tessera::ops
