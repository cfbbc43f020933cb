// One step of AdamW for a parameter and state in bf16, which are rounded with random bits.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "optimizer/functions/adam.hpp"
#include "optimizer/functions/rounding.hpp"
#include "optimizer/kernels/lanes.hpp"
#include "optimizer/kernels/rounded.hpp"
#include "optimizer/kernels/update.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :random_call;
import :updates;
import :update_call;

namespace tessera::ops {
namespace {

using functions::Adam;
using kernels::BFloat16;

/// Elements that follow each other in the parameter of this rank, and in the whole one.
struct Run {
  std::int64_t at = 0;
  std::int64_t first = 0;
  std::int64_t length = 0;
};

std::vector<Run> runs_of(const SpecArgument& whole, std::int64_t count) {
  std::vector<Run> runs;
  random_numbers::for_each_local_run(whole, count, {},
                                     [&](std::int64_t at, std::int64_t first, std::int64_t length) {
                                       runs.push_back({.at = at, .first = first, .length = length});
                                     });
  return runs;
}

/// Where the numbers of the step begin.
std::uint64_t first_number(const RoundedAdamStep& settings, std::int64_t elements) {
  const auto numbers = static_cast<std::uint64_t>(functions::rounding_words * elements);
  return static_cast<std::uint64_t>(settings.step.value - 1) * ((numbers + 3) / 4 * 4);
}

bool round_update(const RoundedAdamStep& settings, const Adam& rule, const updates::Row& row) {
  const std::int64_t count = row.parameter.numel();
  const std::int64_t elements = settings.whole ? settings.whole->shape.product() : count;
  const kernels::RandomRange numbers = {.seed = static_cast<std::uint64_t>(settings.seed),
                                        .stream = static_cast<std::uint64_t>(settings.stream),
                                        .offset = first_number(settings, elements)};
  const std::vector<Run> runs = runs_of(settings.whole, count);
  const std::int64_t length = runs.empty() ? 1 : runs.front().length;
  const DType gradient = row.gradient.dtype();
  if (gradient != DType::f32 && gradient != DType::bf16) {
    return false;
  }
  const auto update = [&](const Run& run) {
    kernels::RandomRange own = numbers;
    own.first_index = static_cast<std::uint64_t>(functions::rounding_words * run.first);
    BFloat16* states[Adam::states];
    for (std::size_t k = 0; k < Adam::states; ++k) {
      states[k] = row.states[k] ? pointer<BFloat16>(row.states[k]) + run.at : nullptr;
    }
    const auto* const from =
        pointer<const char>(row.gradient) + run.at * static_cast<std::int64_t>(size_of(gradient));
    kernels::rounded_adam(rule, gradient, own, run.length,
                          pointer<BFloat16>(row.parameter) + run.at, from, states);
  };
  // Where runs are many, each is computed by one thread.
  const auto grain = std::max<std::int64_t>(1, (std::int64_t{1} << 15) / length);
  kernels::parallel_for(0, static_cast<std::int64_t>(runs.size()), grain,
                        [&](std::int64_t begin, std::int64_t end) {
                          for (std::int64_t i = begin; i < end; ++i) {
                            update(runs[static_cast<std::size_t>(i)]);
                          }
                        });
  return true;
}

/// A parameter that holds what is computed is not rounded.
bool exact_update(const Adam& rule, const updates::Row& row) {
  void* states[Adam::states];
  for (std::size_t k = 0; k < Adam::states; ++k) {
    states[k] = pointer<void>(row.states[k]);
  }
  return kernels::update(rule, row.parameter.dtype(), row.gradient.dtype(), row.parameter.numel(),
                         pointer<void>(row.parameter), pointer<void>(row.gradient), states);
}

void cpu(const Call& call, std::span<Tensor>) {
  const auto s = call.args<RoundedAdamStep>();
  const Adam rule = functions::adam_of(s, true);
  const bool needed[Adam::states] = {rule.needs(0), rule.needs(1), rule.needs(2)};
  updates::for_each_row(call, needed, [&](const updates::Row& row) {
    const bool rounded = row.parameter.dtype() == DType::bf16;
    if (!(rounded ? round_update(s, rule, row) : exact_update(rule, row))) {
      refuse(call,
             {.wrong = fmt::format("a parameter of type {} with a gradient of type {} is "
                                   "not supported",
                                   name_of(row.parameter.dtype()), name_of(row.gradient.dtype())),
              .expected = "bf16 with bf16 or f32, f32 with f32, bf16 or f16, or f64 with f64",
              .advice = "keep the parameter in bf16 or f32"});
    }
    return true;
  });
}

const Op& adamw_rounded_op = register_op<RoundedAdamStep>({
    .schema = "adamw_rounded_(parameter, gradient, exp_avg!, exp_avg_sq!, max_exp_avg_sq!?)",
    .infer = updates::infer,
    .cpu = cpu,
    .workspace = updates::workspace,
    .rule = updates::rule,
    .localize =
        [](const LocalContext& context) {
          return with_whole<RoundedAdamStep>(context, context.in[0]);
        },
    .in_place = true,
    .about =
        "One step of AdamW for a parameter, which is rounded with random bits where it is bf16, "
        "as its state.",
});

}  // namespace

void adamw_rounded_(const Tensor& parameter, const Tensor& gradient, const Tensor& exp_avg,
                    const Tensor& exp_avg_sq, const Tensor& max_exp_avg_sq,
                    const RoundedAdamStep& settings) {
  call_one(adamw_rounded_op, {parameter, gradient, exp_avg, exp_avg_sq, max_exp_avg_sq}, settings);
}

}  // namespace tessera::ops
