// Steps of optimizers.
#include "kernels/update.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

import tessera.base;
import tessera.device;
import tessera.placement;
import tessera.tensor;
import tessera.ops;

#include "kernels.hpp"
#include "optimizer/functions/rounding.hpp"
#include "rows.hpp"

namespace tessera::cuda {
namespace {

constexpr std::size_t first_state = 2;  // after parameters and gradients

/// The lists of a call, one after the other.
struct Lists {
  const Call& call;
  std::size_t lists = call.op.operands.size();
  std::size_t count = call.in.size() / lists;

  const Tensor& at(std::size_t list, std::size_t place) const {
    return call.in[list * count + place];
  }
  std::string name(std::size_t list, std::size_t place) const {
    return fmt::format("{}[{}]", call.op.operands[list].name, place);
  }
};

[[noreturn]] void refuse(const Call& call, ErrorFields fields) {
  fields.thing = call.op.name;
  fail(std::move(fields));
}

/// Errors in the CPU's words: what is written cannot be converted.
void check_written(const Lists& all, std::size_t list, std::size_t place) {
  const Tensor& x = all.at(list, place);
  const Tensor& parameter = all.at(0, place);
  if (!x.is_contiguous()) {
    refuse(all.call, {.wrong = fmt::format("{} is written in place and must be contiguous",
                                           all.name(list, place)),
                      .advice = "pass contiguous()"});
  }
  if (x.dtype() != parameter.dtype()) {
    refuse(
        all.call,
        {.wrong = fmt::format("{} has a different type than its parameter", all.name(list, place)),
         .got = fmt::format("{} and {}", name_of(x.dtype()), name_of(parameter.dtype()))});
  }
}

/// Types that a step takes besides f32 and f64, and the words of its errors.
struct Accepted {
  bool rounds;  // parameters in bf16
  std::string_view expected;
  std::string_view advice;
};
constexpr Accepted exact = {.rounds = false,
                            .expected = "f32 with f32, bf16 or f16, or f64 with f64",
                            .advice = "keep the parameters in f32"};
constexpr Accepted rounding = {
    .rounds = true,
    .expected = "bf16 with bf16 or f32, f32 with f32, bf16 or f16, or f64 with f64",
    .advice = "keep the parameter in bf16 or f32"};

void check_types(const Lists& all, std::size_t place, const Accepted& types) {
  const DType parameter = all.at(0, place).dtype();
  const DType gradient = all.at(1, place).dtype();
  const bool narrow = gradient == DType::bf16 || gradient == DType::f16;
  const bool rounded = types.rounds && parameter == DType::bf16 &&
                       (gradient == DType::f32 || gradient == DType::bf16);
  if (!rounded && !(parameter == DType::f32 && (gradient == DType::f32 || narrow)) &&
      !(parameter == DType::f64 && gradient == DType::f64)) {
    refuse(all.call, {.wrong = fmt::format(
                          "a parameter of type {} with a gradient of type {} is not supported",
                          name_of(parameter), name_of(gradient)),
                      .expected = std::string(types.expected),
                      .advice = std::string(types.advice)});
  }
}

void check_row(const Lists& all, std::size_t place, const functions::Adam& rule,
               const Accepted& types) {
  for (std::size_t list = 0; list < all.lists; ++list) {
    const Tensor& x = all.at(list, place);
    if (!x) {
      if (list < first_state || rule.needs(list - first_state)) {
        refuse(all.call, {.wrong = fmt::format("{} is undefined, and the settings need it",
                                               all.name(list, place))});
      }
      continue;
    }
    if (!(x.shape() == all.at(0, place).shape())) {
      refuse(all.call, {.wrong = fmt::format("{} has a different shape than its parameter",
                                             all.name(list, place)),
                        .expected = to_string(all.at(0, place).shape()),
                        .got = to_string(x.shape())});
    }
    if (list != 1) {
      check_written(all, list, place);
    }
  }
  check_types(all, place, types);
}

/// One parameter's arrays, from `first_block` on. Returns its number of blocks.
unsigned set_update(Update& update, const Lists& all, std::size_t place,
                    const functions::Adam& rule, unsigned first_block) {
  const Tensor& parameter = all.at(0, place);
  const Tensor& gradient = all.at(1, place);
  const ElementArguments of_gradient = elements_of(gradient.shape(), {}, gradient);
  update = {};
  update.parameter = parameter.device_address();
  update.gradient = of_gradient.result;
  std::ranges::copy(of_gradient.extents, update.extents);
  update.dims = of_gradient.dims;
  for (std::size_t k = 0; k < functions::Adam::states; ++k) {
    update.states[k] = rule.needs(k) ? all.at(first_state + k, place).device_address() : nullptr;
  }
  update.count = parameter.numel();
  update.first_block = first_block;
  return blocks_for(update.count);
}

/// The numbers of a step.
template <bool decoupled, class Settings>
functions::Adam rule_of(const Settings& settings) {
  const double scale = settings.grad_scale;
  const double decay = settings.weight_decay;
  functions::Adam rule = {
      .gradient = {.scale = settings.maximize ? -scale : scale, .decay = decoupled ? 0 : decay},
      .shrink = decoupled ? 1.0 - settings.lr * decay : 1.0,
      .beta1 = settings.beta1,
      .beta2 = settings.beta2,
      .eps = settings.eps,
      .amsgrad = settings.amsgrad};
  const auto step = static_cast<double>(settings.step.value);
  rule.set_step(settings.lr, 1.0 - std::pow(rule.beta1, step),
                std::sqrt(1.0 - std::pow(rule.beta2, step)));
  return rule;
}

template <bool decoupled>
void adam(const Call& call, std::span<Tensor>) {
  check_in_place(call);
  const Lists all{call};
  AdamArguments a = {};
  a.rule = rule_of<decoupled>(call.args<ops::AdamStep>());
  unsigned blocks = 0;
  for (std::size_t i = 0; i < all.count; ++i) {
    check_row(all, i, a.rule, exact);
    const Tensor& parameter = all.at(0, i);
    if (parameter.numel() != 0) {
      blocks += set_update(a.updates[a.count++], all, i, a.rule, blocks);
    }
    // A launch has parameters of one type.
    const bool last = i + 1 == all.count || a.count == most_updates ||
                      all.at(0, i + 1).dtype() != parameter.dtype();
    if (last && a.count > 0) {
      launch(parameter, with_type("adam", parameter.dtype()), blocks, threads_per_block, a);
      a.count = 0;
      blocks = 0;
    }
  }
}

/// The part of the whole parameter that a rank has, by its places in it.
void set_places(RoundedAdamArguments& a, const Tensor& parameter, const SpecArgument& whole) {
  const Dims shape = whole ? whole->shape : parameter.shape();
  const Dims offset = whole ? local_offset(*whole) : Dims::filled(shape.size(), 0);
  const Dims strides = contiguous_strides(shape);
  a.dims = std::max(shape.size(), 1);
  a.part[0] = 1;
  for (int d = 0; d < shape.size(); ++d) {
    a.part[d] = parameter.shape()[d];
    a.places[d] = strides[d];
    a.first_place += offset[d] * strides[d];
  }
}

/// A parameter that holds what is computed is not rounded.
void adamw_rounded(const Call& call, std::span<Tensor>) {
  check_in_place(call);
  const Lists all{call};
  const auto settings = call.args<ops::RoundedAdamStep>();
  const Tensor& parameter = all.at(0, 0);
  const functions::Adam rule = rule_of<true>(settings);
  check_row(all, 0, rule, rounding);
  if (parameter.numel() == 0) {
    return;
  }
  if (parameter.dtype() != DType::bf16) {
    AdamArguments a = {};
    a.count = 1;
    a.rule = rule;
    const unsigned blocks = set_update(a.updates[0], all, 0, rule, 0);
    launch(parameter, with_type("adam", parameter.dtype()), blocks, threads_per_block, a);
    return;
  }
  RoundedAdamArguments a = {};
  a.rule = rule;
  const unsigned blocks = set_update(a.update, all, 0, rule, 0);
  set_places(a, parameter, settings.whole);
  const std::int64_t elements =
      settings.whole ? settings.whole->shape.product() : parameter.numel();
  const auto numbers = static_cast<std::uint64_t>(functions::rounding_words * elements);
  a.first_number = static_cast<std::uint64_t>(settings.step.value - 1) * ((numbers + 3) / 4 * 4);
  a.key = functions::philox_key(static_cast<std::uint64_t>(settings.seed),
                                static_cast<std::uint64_t>(settings.stream));
  launch(parameter, "rounded_adam_bf16", blocks, threads_per_block, a);
}

}  // namespace

void add_updates(KernelTable& table) {
  table["adam_"] = {adam<false>};
  table["adamw_"] = {adam<true>};
  table["adamw_rounded_"] = {adamw_rounded};
}

}  // namespace tessera::cuda
