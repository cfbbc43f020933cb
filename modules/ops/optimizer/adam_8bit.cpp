// One step of Adam and of AdamW with 8-bit state.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "optimizer/functions/adam.hpp"
#include "optimizer/kernels/quantized_adam.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

static_assert(quantized_block == kernels::kQuantizedBlock);

// Operands are six lists of one length: parameters, gradients, and of both moments codes and
// scales.
constexpr std::size_t lists = 6;
constexpr const char* operands_text =
    "(parameters!..., gradients..., exp_avgs!..., exp_avg_scales!..., exp_avg_sqs!..., "
    "exp_avg_sq_scales!...)";

bool is_scales(std::size_t list) { return list == 3 || list == 5; }
bool is_codes(std::size_t list) { return list == 2 || list == 4; }

/// The dim whose shards need whole blocks: the last one of at most two dims; -1: there is none.
int dim_of_blocks(const Dims& parameter) {
  return parameter.size() == 1 ? 0 : parameter.size() == 2 ? 1 : -1;
}

/// Whether shards of this dim consist of whole blocks.
bool divides(const Dims& parameter, int dim, std::int64_t shards) {
  return (dim == 0 && parameter.size() >= 2) ||
         (dim == dim_of_blocks(parameter) && parameter[dim] % (quantized_block * shards) == 0);
}

/// Where one parameter is sharded, its codes and scales are.
void rule(const RuleContext& context, Strategies& strategies) {
  const std::span<const Tensor> in = context.call.in;
  const std::size_t count = in.size() / lists;
  Strategy s;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const std::size_t place = i % count;
    const Placement p = rules::placement_of(context, in[place]);
    const bool sharded =
        p.is_shard() && divides(in[place].shape(), p.dim(), context.shards_of(place, p.dim()));
    s.in.push_back(sharded ? p : Replicate());
  }
  s.out.push_back(s.in[0]);
  strategies.push_back(std::move(s));
}

void check(const Call& call, std::size_t list, std::size_t place, const Tensor& parameter,
           const Tensor& x) {
  const auto named = [&](const char* what) {
    return fmt::format("{}[{}] {}", call.op.operands[list].name, place, what);
  };
  const Dims expected = is_scales(list) ? quantized_blocks(parameter.shape()) : parameter.shape();
  if (!(x.shape() == expected)) {
    refuse(call, {.wrong = named("has a wrong shape"),
                  .expected = to_string(expected),
                  .got = to_string(x.shape())});
  }
  const DType dtype = is_codes(list) ? DType::u8 : parameter.dtype();
  if (list != 1 && x.dtype() != dtype) {
    refuse(call, {.wrong = named("has a wrong type"),
                  .expected = std::string(name_of(dtype)),
                  .got = std::string(name_of(x.dtype()))});
  }
  if (list != 1 && !x.is_contiguous()) {
    refuse(call, {.wrong = named("is written in place and must be contiguous"),
                  .advice = "pass contiguous()"});
  }
}

template <bool decoupled>
void cpu(const Call& call, std::span<Tensor>) {
  const auto settings = call.args<AdamStep>();
  if (settings.amsgrad) {
    refuse(call, {.wrong = "amsgrad has no 8-bit state"});
  }
  const functions::Adam numbers = functions::adam_of(settings, decoupled);
  Workspace w(call.workspace.data(), call.workspace.size());
  const std::size_t count = call.in.size() / lists;
  for (std::size_t i = 0; i < count; ++i) {
    const Tensor& parameter = call.in[i];
    for (std::size_t list = 0; list < lists; ++list) {
      check(call, list, i, parameter, call.in[list * count + i]);
    }
    const Workspace::Scope of_gradient(w);
    const Tensor gradient = contiguous_operand(w, call.in[count + i]);
    const std::int64_t rows = parameter.dims() < 2 ? 1 : parameter.shape()[0];
    const auto state = [&](std::size_t list) {
      return kernels::QuantizedState{pointer<std::uint8_t>(call.in[list * count + i]),
                                     pointer<void>(call.in[(list + 1) * count + i])};
    };
    if (parameter.numel() != 0 &&
        !kernels::adam_8bit(numbers, parameter.dtype(), gradient.dtype(), rows,
                            parameter.numel() / rows, pointer<void>(parameter),
                            pointer<void>(gradient), state(2), state(4))) {
      updates::refuse_types(call, parameter, gradient);
    }
    for (std::size_t list = 0; list < lists; ++list) {
      if (list != 1 && list + i > 0) {  // the dispatcher moves operand 0's
        call.in[list * count + i].storage().bump_version();
      }
    }
  }
}

const Op& register_8bit(const char* name, Kernel kernel, const char* about) {
  return register_op<AdamStep>({.schema = std::string(name) + operands_text,
                                .infer = updates::infer,
                                .cpu = kernel,
                                .workspace = updates::workspace,
                                .rule = rule,
                                .in_place = true,
                                .about = about});
}

const Op& adam_op = register_8bit("adam_8bit_", cpu<false>,
                                  "One step of Adam with 8-bit state for all parameters.");
const Op& adamw_op = register_8bit("adamw_8bit_", cpu<true>,
                                   "One step of AdamW with 8-bit state for all parameters.");

}  // namespace

Dims quantized_blocks(const Dims& parameter) {
  const auto blocks = [](std::int64_t elements) {
    return (elements + quantized_block - 1) / quantized_block;
  };
  if (parameter.size() < 2) {
    return {blocks(parameter.empty() ? 1 : parameter[0])};
  }
  std::int64_t row = 1;
  for (int d = 1; d < static_cast<int>(parameter.size()); ++d) {
    row *= parameter[d];
  }
  return {parameter[0], blocks(row)};
}

bool has_whole_blocks(const Tensor& parameter) {
  if (!parameter.is_distributed()) {
    return true;
  }
  const Layout& layout = parameter.layout();
  for (int axis = 0; axis < layout.ndim(); ++axis) {
    const Placement p = layout.placement(axis);
    if (p.is_replicate()) {
      continue;
    }
    std::int64_t shards = 1;
    for (int other = 0; other < layout.ndim(); ++other) {
      shards *= layout.placement(other) == p ? layout.mesh().axis_size(other) : 1;
    }
    if (!p.is_shard() || !divides(parameter.shape(), p.dim(), shards)) {
      return false;
    }
  }
  return true;
}

void adam_8bit_(TensorList parameters, TensorList gradients, TensorList exp_avgs,
                TensorList exp_avg_scales, TensorList exp_avg_sqs, TensorList exp_avg_sq_scales,
                const AdamStep& settings) {
  call_lists(adam_op,
             {parameters, gradients, exp_avgs, exp_avg_scales, exp_avg_sqs, exp_avg_sq_scales},
             settings);
}

void adamw_8bit_(TensorList parameters, TensorList gradients, TensorList exp_avgs,
                 TensorList exp_avg_scales, TensorList exp_avg_sqs, TensorList exp_avg_sq_scales,
                 const AdamStep& settings) {
  call_lists(adamw_op,
             {parameters, gradients, exp_avgs, exp_avg_scales, exp_avg_sqs, exp_avg_sq_scales},
             settings);
}

}  // namespace tessera::ops
