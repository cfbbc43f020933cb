// One step of an optimizer for lists of parameters: a single pass over each one's elements, in
// place. Only gradients that are not contiguous are copied first.
module;
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tessera/printable.hpp>
#include <type_traits>

#include "optimizer/kernels/adamw.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

struct AdamWArgs {
  Dynamic<double> lr;
  Dynamic<double> beta1;
  Dynamic<double> beta2;
  Dynamic<double> eps;
  Dynamic<double> weight_decay;
  Dynamic<double> grad_scale;
  Dynamic<std::int64_t> step;
};
struct SgdArgs {
  Dynamic<double> lr;
  Dynamic<double> momentum;
  Dynamic<double> weight_decay;
  Dynamic<double> grad_scale;
  Dynamic<bool> nesterov;
  Dynamic<bool> first;
};

// Operands are lists of one length, one after the other: parameters, gradients, and what the
// optimizer keeps for each parameter.

constexpr std::size_t kGradient = 1;

/// The tensors at one position of all lists.
template <std::size_t lists>
using Row = std::array<Tensor, lists>;

template <std::size_t lists>
Row<lists> row(const Call& call, std::size_t i) {
  const std::size_t count = call.in.size() / lists;
  Row<lists> row;
  for (std::size_t k = 0; k < lists; ++k) {
    row[k] = call.in[k * count + i];
  }
  return row;
}

/// What the kernels cannot work on is an error: a copy would lose what is written.
template <std::size_t lists>
void check(const Call& call, std::size_t place, const Row<lists>& row) {
  for (std::size_t k = 0; k < lists; ++k) {
    if (!row[k]) {
      continue;
    }
    const std::string& list = call.op.operands[k].name;
    if (!(row[k].shape() == row[0].shape())) {
      refuse(call,
             {.wrong = fmt::format("{}[{}] has a different shape than its parameter", list, place),
              .expected = to_string(row[0].shape()),
              .got = to_string(row[k].shape())});
    }
    if (k == kGradient) {
      continue;
    }
    if (!row[k].is_contiguous()) {
      refuse(call, {.wrong = fmt::format("{}[{}] is written in place and must be contiguous", list,
                                         place),
                    .advice = "pass contiguous()"});
    }
    if (row[k].dtype() != row[0].dtype()) {
      refuse(call,
             {.wrong = fmt::format("{}[{}] has a different type than its parameter", list, place),
              .got = fmt::format("{} and {}", name_of(row[k].dtype()), name_of(row[0].dtype()))});
    }
  }
}

void infer(const Call& call, ResultShapes& out) {
  const std::size_t lists = call.op.operands.size();
  if (call.in.empty() || call.in.size() % lists != 0) {
    refuse(call, {.wrong = fmt::format("{} lists of the same length, not 0, are expected", lists),
                  .got = fmt::format("{} tensors in all", call.in.size())});
  }
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

/// Each parameter keeps its placement; its gradient and its state must have the same one.
template <std::size_t lists>
void rule(const RuleContext& context, Strategies& strategies) {
  rules::rows_of_lists(context, strategies, lists, false);
}

/// Calls f with values of the C++ types of the parameter and of the gradient.
template <class F>
void visit_types(const Call& call, DType parameter, DType gradient, F f) {
  using kernels::Types;
  const auto refuse_both = [&] {
    refuse(call, {.wrong = fmt::format(
                      "a parameter of type {} with a gradient of type {} is not supported",
                      name_of(parameter), name_of(gradient)),
                  .expected = "f32 with f32, bf16 or f16, or f64 with f64",
                  .advice = "keep the parameters in f32"});
  };
  const auto with_parameter = [&]<class C>(C c) {
    using Gradients = std::conditional_t<std::is_same_v<C, double>, Types<double>,
                                         Types<float, kernels::BFloat16, kernels::Half>>;
    kernels::visit<Gradients>(gradient, [&](auto g) { f(c, g); }, refuse_both);
  };
  kernels::visit<Types<float, double>>(parameter, with_parameter, refuse_both);
}

/// The copies of gradients that are not contiguous, one after the other in the same memory.
template <std::size_t lists>
std::size_t workspace(const Call& call, std::span<const Tensor>) {
  Workspace w;
  const std::size_t count = call.in.size() / lists;
  for (const Tensor& gradient : call.in.subspan(kGradient * count, count)) {
    if (gradient && !gradient.is_contiguous()) {
      const Workspace::Scope of_gradient(w);
      contiguous_operand(w, gradient);
    }
  }
  return w.bytes();
}

/// update(C, G, row, contiguous gradient) for each parameter, of type C with a gradient of type G.
template <std::size_t lists, class F>
void for_each_parameter(const Call& call, F update) {
  Workspace w(call.workspace.data(), call.workspace.size());
  const std::size_t count = call.in.size() / lists;
  for (std::size_t i = 0; i < count; ++i) {
    const Row<lists> operands = row<lists>(call, i);
    check(call, i, operands);
    const Workspace::Scope of_gradient(w);
    const Tensor gradient = contiguous_operand(w, operands[kGradient]);
    visit_types(call, operands[0].dtype(), gradient.dtype(),
                [&]<class C, class G>(C c, G g) { update(c, g, operands, gradient); });
    for (std::size_t k = 0; k < lists; ++k) {
      if (k != kGradient && operands[k] && k + i > 0) {  // the dispatcher moves operand 0's
        operands[k].storage().bump_version();
      }
    }
  }
}

void adamw_cpu(const Call& call, std::span<Tensor>) {
  const auto args = call.args<AdamWArgs>();
  kernels::AdamW options;
  options.learning_rate = args.lr;
  options.beta1 = args.beta1;
  options.beta2 = args.beta2;
  options.eps = args.eps;
  options.weight_decay = args.weight_decay;
  options.grad_scale = args.grad_scale;
  const auto step = static_cast<double>(args.step.value);
  options.correction1 = 1.0 - std::pow(options.beta1, step);
  options.correction2 = 1.0 - std::pow(options.beta2, step);
  for_each_parameter<4>(
      call, [&]<class C, class G>(C, G, const Row<4>& operands, const Tensor& gradient) {
        kernels::adamw(options, gradient.numel(), pointer<C>(operands[0]), pointer<G>(gradient),
                       pointer<C>(operands[2]), pointer<C>(operands[3]));
      });
}

const Op& adamw_op = register_op<AdamWArgs>({
    .schema = "adamw_(parameters!..., gradients..., exp_avgs!..., exp_avg_sqs!...)",
    .infer = infer,
    .cpu = adamw_cpu,
    .workspace = workspace<4>,
    .rule = rule<4>,
    .in_place = true,
    .about = "One step of AdamW for all parameters; writes them, exp_avgs and exp_avg_sqs.",
});

void sgd_cpu(const Call& call, std::span<Tensor>) {
  const auto args = call.args<SgdArgs>();
  kernels::Sgd options;
  options.learning_rate = args.lr;
  options.momentum = args.momentum;
  options.weight_decay = args.weight_decay;
  options.grad_scale = args.grad_scale;
  options.nesterov = args.nesterov;
  options.first_step = args.first;
  for_each_parameter<3>(
      call, [&]<class C, class G>(C, G, const Row<3>& operands, const Tensor& gradient) {
        if (!operands[2] && options.momentum != 0) {
          refuse(call, {.wrong = fmt::format("momentum {} needs momentum buffers",
                                             printable(options.momentum))});
        }
        kernels::sgd(options, gradient.numel(), pointer<C>(operands[0]), pointer<G>(gradient),
                     pointer<C>(operands[2]));
      });
}

const Op& sgd_op = register_op<SgdArgs>({
    .schema = "sgd_(parameters!..., gradients..., momentum_buffers!...?)",
    .infer = infer,
    .cpu = sgd_cpu,
    .workspace = workspace<3>,
    .rule = rule<3>,
    .in_place = true,
    .about = "One step of SGD for all parameters; writes them and momentum_buffers.",
});

}  // namespace

void adamw_(std::span<const Tensor> parameters, std::span<const Tensor> gradients,
            std::span<const Tensor> exp_avgs, std::span<const Tensor> exp_avg_sqs,
            const AdamWStep& settings) {
  call_lists(adamw_op, {parameters, gradients, exp_avgs, exp_avg_sqs},
             AdamWArgs{.lr = settings.lr,
                       .beta1 = settings.beta1,
                       .beta2 = settings.beta2,
                       .eps = settings.eps,
                       .weight_decay = settings.weight_decay,
                       .grad_scale = settings.grad_scale,
                       .step = settings.step});
}

void sgd_(std::span<const Tensor> parameters, std::span<const Tensor> gradients,
          std::span<const Tensor> momentum_buffers, const SgdStep& settings) {
  call_lists(sgd_op, {parameters, gradients, momentum_buffers},
             SgdArgs{.lr = settings.lr,
                     .momentum = settings.momentum,
                     .weight_decay = settings.weight_decay,
                     .grad_scale = settings.grad_scale,
                     .nesterov = settings.nesterov,
                     .first = settings.first});
}

}  // namespace tessera::ops
