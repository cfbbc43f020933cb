module;
#include <fmt/format.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "shared/kernels/parallel.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops::updates {
namespace {

constexpr std::size_t first_state = 2;  // after parameters and gradients

/// Refuses parameters that the kernels cannot work on: a copy would lose what is written.
void check_written(const Call& call, std::size_t list, std::size_t place, const Tensor& parameter,
                   const Tensor& x) {
  const std::string& name = call.op.operands[list].name;
  if (!x.is_contiguous()) {
    refuse(call,
           {.wrong = fmt::format("{}[{}] is written in place and must be contiguous", name, place),
            .advice = "pass contiguous()"});
  }
  if (x.dtype() != parameter.dtype()) {
    refuse(call,
           {.wrong = fmt::format("{}[{}] has a different type than its parameter", name, place),
            .got = fmt::format("{} and {}", name_of(x.dtype()), name_of(parameter.dtype()))});
  }
}

}  // namespace

void infer(const Call& call, ResultShapes& out) {
  const std::size_t lists = call.op.operands.size();
  if (call.in.empty() || call.in.size() % lists != 0) {
    refuse(call, {.wrong = fmt::format("{} lists of the same length, not 0, are expected", lists),
                  .got = fmt::format("{} tensors in all", call.in.size())});
  }
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

std::size_t workspace(const Call& call, std::span<const Tensor>) {
  Workspace w;
  const std::size_t count = call.in.size() / call.op.operands.size();
  for (const Tensor& gradient : call.in.subspan(count, count)) {
    if (gradient && !gradient.is_contiguous()) {
      const Workspace::Scope of_gradient(w);
      contiguous_operand(w, gradient);
    }
  }
  return w.bytes();
}

void rule(const RuleContext& context, Strategies& strategies) {
  rules::rows_of_lists(context, strategies, context.call.op.operands.size(), false);
}

void refuse_types(const Call& call, const Tensor& parameter, const Tensor& gradient) {
  refuse(call,
         {.wrong = fmt::format("a parameter of type {} with a gradient of type {} is not supported",
                               name_of(parameter.dtype()), name_of(gradient.dtype())),
          .expected = "f32 with f32, bf16 or f16, or f64 with f64",
          .advice = "keep the parameters in f32"});
}

void for_each_row(const Call& call, std::span<const bool> needed, UpdateRow update) {
  Workspace w(call.workspace.data(), call.workspace.size());
  const std::size_t lists = call.op.operands.size();
  const std::size_t count = call.in.size() / lists;
  std::vector<Tensor> states(lists - first_state);
  for (std::size_t i = 0; i < count; ++i) {
    const Tensor& parameter = call.in[i];
    for (std::size_t list = 0; list < lists; ++list) {
      const Tensor& x = call.in[list * count + i];
      const bool is_needed = list < first_state || needed[list - first_state];
      if (list >= first_state) {
        states[list - first_state] = is_needed ? x : Tensor();
      }
      if (!x) {
        if (is_needed) {
          refuse(call, {.wrong = fmt::format("{}[{}] is undefined, and the settings need it",
                                             call.op.operands[list].name, i)});
        }
        continue;
      }
      if (!(x.shape() == parameter.shape())) {
        refuse(call, {.wrong = fmt::format("{}[{}] has a different shape than its parameter",
                                           call.op.operands[list].name, i),
                      .expected = to_string(parameter.shape()),
                      .got = to_string(x.shape())});
      }
      if (list != 1) {
        check_written(call, list, i, parameter, x);
      }
    }
    const Workspace::Scope of_gradient(w);
    const Tensor gradient = contiguous_operand(w, call.in[count + i]);
    if (!update({parameter, gradient, states})) {
      refuse_types(call, parameter, gradient);
    }
    if (i > 0) {  // the dispatcher moves operand 0's
      parameter.storage().bump_version();
    }
    for (const Tensor& state : states) {
      if (state) {
        state.storage().bump_version();
      }
    }
  }
}

}  // namespace tessera::ops::updates
