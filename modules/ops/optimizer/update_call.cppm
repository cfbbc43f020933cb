// The skeleton of operators that update lists of parameters by one of the kernels' rules.
module;
#include <fmt/format.h>

#include "optimizer/functions/update.hpp"
#include "optimizer/kernels/update.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops:update_call;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :updates;
import :kernel_call;

namespace tessera::ops::updates {

// Operands are lists of one length, one after the other: parameters, gradients, and what the
// optimizer keeps for each parameter.

/// Errors: operands that are not such lists; tensors at one place that do not fit together, or
/// cannot be written.
void infer(const Call& call, ResultShapes& out);
/// Bytes for the copies of gradients that are not contiguous.
std::size_t workspace(const Call& call, std::span<const Tensor> out);
/// Each parameter keeps its placement; its gradient and its state must have the same one.
void rule(const RuleContext& context, Strategies& strategies);

/// The tensors at one position of all lists, with a contiguous gradient.
struct Row {
  const Tensor& parameter;
  const Tensor& gradient;
  std::span<const Tensor> states;
};
using UpdateRow = kernels::FunctionRef<bool(const Row&)>;
/// Calls `update` for each position. `needed`: the states that may not be undefined; others come as
/// undefined tensors. Errors: one is; `update` returns false, as it does not know the types.
void for_each_row(const Call& call, std::span<const bool> needed, UpdateRow update);

/// Error: types of a parameter and its gradient that no step knows.
[[noreturn]] void refuse_types(const Call& call, const Tensor& parameter, const Tensor& gradient);

/// The operator of a rule. `make`: the kernel's numbers of a call's settings.
template <class Settings, auto make>
inline const Op& register_update(const char* schema, const char* about) {
  using Rule = decltype(make(Settings{}));
  constexpr auto cpu = [](const Call& call, std::span<Tensor>) {
    const Rule rule = make(call.args<Settings>());
    bool needed[Rule::states];
    for (std::size_t k = 0; k < Rule::states; ++k) {
      needed[k] = functions::needs_state(rule, k);
    }
    for_each_row(call, needed, [&](const Row& row) {
      void* states[Rule::states];
      for (std::size_t k = 0; k < Rule::states; ++k) {
        states[k] = pointer<void>(row.states[k]);
      }
      return kernels::update(rule, row.parameter.dtype(), row.gradient.dtype(),
                             row.parameter.numel(), pointer<void>(row.parameter),
                             pointer<void>(row.gradient), states);
    });
  };
  return register_op<Settings>({.schema = schema,
                                .infer = infer,
                                .cpu = cpu,
                                .workspace = workspace,
                                .rule = updates::rule,
                                .in_place = true,
                                .about = about});
}

}  // namespace tessera::ops::updates
