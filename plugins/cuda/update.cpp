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
#include "optimizer/functions/adadelta.hpp"
#include "optimizer/functions/adagrad.hpp"
#include "optimizer/functions/adam.hpp"
#include "optimizer/functions/adamax.hpp"
#include "optimizer/functions/asgd.hpp"
#include "optimizer/functions/lion.hpp"
#include "optimizer/functions/nadam.hpp"
#include "optimizer/functions/radam.hpp"
#include "optimizer/functions/rmsprop.hpp"
#include "optimizer/functions/rounding.hpp"
#include "optimizer/functions/rprop.hpp"
#include "optimizer/functions/sgd.hpp"
#include "optimizer/kernels/quantization_map.hpp"
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

// Errors in the CPU's words: what is written cannot be converted.

void check_contiguous(const Lists& all, std::size_t list, std::size_t place) {
  if (!all.at(list, place).is_contiguous()) {
    refuse(all.call, {.wrong = fmt::format("{} is written in place and must be contiguous",
                                           all.name(list, place)),
                      .advice = "pass contiguous()"});
  }
}

void check_written(const Lists& all, std::size_t list, std::size_t place) {
  const Tensor& x = all.at(list, place);
  const Tensor& parameter = all.at(0, place);
  check_contiguous(all, list, place);
  if (x.dtype() != parameter.dtype()) {
    refuse(
        all.call,
        {.wrong = fmt::format("{} has a different type than its parameter", all.name(list, place)),
         .got = fmt::format("{} and {}", name_of(x.dtype()), name_of(parameter.dtype()))});
  }
}

/// Types that a step takes besides f32 and f64, and the words of its errors.
struct AcceptedTypes {
  bool rounds;  // parameters in bf16
  std::string_view expected;
  std::string_view advice;
};
constexpr AcceptedTypes exact = {.rounds = false,
                                 .expected = "f32 with f32, bf16 or f16, or f64 with f64",
                                 .advice = "keep the parameters in f32"};
constexpr AcceptedTypes rounding = {
    .rounds = true,
    .expected = "bf16 with bf16 or f32, f32 with f32, bf16 or f16, or f64 with f64",
    .advice = "keep the parameter in bf16 or f32"};

void check_types(const Lists& all, std::size_t place, const AcceptedTypes& types) {
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

template <class Rule>
void check_row(const Lists& all, std::size_t place, const Rule& rule, const AcceptedTypes& types) {
  for (std::size_t list = 0; list < all.lists; ++list) {
    const Tensor& x = all.at(list, place);
    if (!x) {
      if (list < first_state || functions::needs_state(rule, list - first_state)) {
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

/// One parameter and its gradient, from `first_block` on.
Update update_of(const Tensor& parameter, const Tensor& gradient, unsigned first_block) {
  const ElementArguments of_gradient = elements_of(gradient.shape(), {}, gradient);
  Update update = {};
  update.parameter = parameter.device_address();
  update.gradient = of_gradient.result;
  std::ranges::copy(of_gradient.extents, update.extents);
  update.dims = of_gradient.dims;
  update.count = parameter.numel();
  update.first_block = first_block;
  return update;
}

/// The same with the states that the rule needs.
template <class Rule>
Update update_of(const Lists& all, std::size_t place, const Rule& rule, unsigned first_block) {
  Update update = update_of(all.at(0, place), all.at(1, place), first_block);
  for (std::size_t k = 0; k < Rule::states; ++k) {
    update.states[k] =
        functions::needs_state(rule, k) ? all.at(first_state + k, place).device_address() : nullptr;
  }
  return update;
}

/// "update_Lion_f32"; see kernels/update.cu.
template <class Rule>
std::string kernel_of_rule(DType type) {
  const std::string_view name = reflect::type_name<Rule>();
  return with_type(fmt::format("update_{}", name.substr(name.rfind(':') + 1)), type);
}

/// `make`: the rule of a call's settings.
template <class Settings, auto make>
void update(const Call& call, std::span<Tensor>) {
  check_in_place(call);
  const Lists all{call};
  using Rule = decltype(make(Settings{}));
  UpdateArguments<Rule> a = {};
  a.rule = make(call.args<Settings>());
  unsigned blocks = 0;
  for (std::size_t i = 0; i < all.count; ++i) {
    check_row(all, i, a.rule, exact);
    const Tensor& parameter = all.at(0, i);
    if (parameter.numel() != 0) {
      a.updates[a.count++] = update_of(all, i, a.rule, blocks);
      blocks += blocks_for(parameter.numel(), updated_per_thread);
    }
    // A launch has parameters of one type.
    const bool last = i + 1 == all.count || a.count == most_updates ||
                      all.at(0, i + 1).dtype() != parameter.dtype();
    if (last && a.count > 0) {
      launch(parameter, kernel_of_rule<Rule>(parameter.dtype()), blocks, threads_per_block, a);
      a.count = 0;
      blocks = 0;
    }
  }
}

template <bool decoupled>
functions::Adam adam_of(const ops::AdamStep& settings) {
  return functions::adam_of(settings, decoupled);
}

// ---- AdamW in bf16 ----

/// A parameter that holds what is computed is not rounded.
void adamw_rounded(const Call& call, std::span<Tensor>) {
  check_in_place(call);
  const Lists all{call};
  const auto settings = call.args<ops::RoundedAdamStep>();
  const Tensor& parameter = all.at(0, 0);
  const functions::Adam rule = functions::adam_of(settings, true);
  check_row(all, 0, rule, rounding);
  if (parameter.numel() == 0) {
    return;
  }
  if (parameter.dtype() != DType::bf16) {
    UpdateArguments<functions::Adam> a = {};
    a.count = 1;
    a.rule = rule;
    a.updates[0] = update_of(all, 0, rule, 0);
    launch(parameter, kernel_of_rule<functions::Adam>(parameter.dtype()),
           blocks_for(parameter.numel(), updated_per_thread), threads_per_block, a);
    return;
  }
  RoundedAdamArguments a = {};
  a.rule = rule;
  a.update = update_of(all, 0, rule, 0);
  a.places = places_of(parameter.shape(), settings.whole);
  const std::int64_t elements =
      settings.whole ? settings.whole->shape.product() : parameter.numel();
  const auto numbers = static_cast<std::uint64_t>(functions::rounding_words * elements);
  a.first_number = static_cast<std::uint64_t>(settings.step.value - 1) * ((numbers + 3) / 4 * 4);
  a.key = functions::philox_key(static_cast<std::uint64_t>(settings.seed),
                                static_cast<std::uint64_t>(settings.stream));
  launch(parameter, "rounded_adam_bf16", blocks_for(parameter.numel(), updated_per_thread),
         threads_per_block, a);
}

// ---- Adam with 8-bit state: codes and scales of both moments ----

bool is_codes(std::size_t list) { return list == 2 || list == 4; }
bool is_scales(std::size_t list) { return list == 3 || list == 5; }

void check_quantized(const Lists& all, std::size_t place) {
  const Tensor& parameter = all.at(0, place);
  for (std::size_t list = 0; list < all.lists; ++list) {
    const Tensor& x = all.at(list, place);
    const Dims shape =
        is_scales(list) ? ops::quantized_blocks(parameter.shape()) : parameter.shape();
    if (!(x.shape() == shape)) {
      refuse(all.call, {.wrong = all.name(list, place) + " has a wrong shape",
                        .expected = to_string(shape),
                        .got = to_string(x.shape())});
    }
    const DType dtype = is_codes(list) ? DType::u8 : parameter.dtype();
    if (list != 1 && x.dtype() != dtype) {
      refuse(all.call, {.wrong = all.name(list, place) + " has a wrong type",
                        .expected = std::string(name_of(dtype)),
                        .got = std::string(name_of(x.dtype()))});
    }
    if (list != 1) {
      check_contiguous(all, list, place);
    }
  }
  check_types(all, place, exact);
}

template <bool decoupled>
void quantized_adam(const Call& call, std::span<Tensor>) {
  check_in_place(call);
  const auto settings = call.args<ops::AdamStep>();
  if (settings.amsgrad) {
    refuse(call, {.wrong = "amsgrad has no 8-bit state"});
  }
  static const kernels::QuantizationMap maps[] = {kernels::make_quantization_map(true),
                                                  kernels::make_quantization_map(false)};
  const Lists all{call};
  for (std::size_t i = 0; i < all.count; ++i) {
    check_quantized(all, i);
    const Tensor& parameter = all.at(0, i);
    if (parameter.numel() == 0) {
      continue;
    }
    QuantizedAdamArguments a = {};
    a.update = update_of(parameter, all.at(1, i), 0);
    a.rule = functions::adam_of(settings, decoupled);
    const std::int64_t rows = parameter.dims() < 2 ? 1 : parameter.shape()[0];
    a.row = parameter.numel() / rows;
    a.blocks = (a.row + functions::quantized_block - 1) / functions::quantized_block;
    a.all_blocks = rows * a.blocks;
    for (std::size_t moment = 0; moment < 2; ++moment) {
      const std::size_t codes = first_state + 2 * moment;
      a.codes[moment] = static_cast<std::uint8_t*>(all.at(codes, i).device_address());
      a.scales[moment] = all.at(codes + 1, i).device_address();
      std::ranges::copy(maps[moment], a.values[moment]);
    }
    launch(parameter, with_type("quantized_adam", parameter.dtype()),
           static_cast<unsigned>(std::min<std::int64_t>(a.all_blocks, 65535)),
           functions::quantized_block, a);
  }
}

}  // namespace

void add_updates(KernelTable& table) {
  table["adadelta_"] = {update<ops::AdadeltaStep, functions::adadelta_of<ops::AdadeltaStep>>};
  table["adagrad_"] = {update<ops::AdagradStep, functions::adagrad_of<ops::AdagradStep>>};
  table["adamax_"] = {update<ops::AdamaxStep, functions::adamax_of<ops::AdamaxStep>>};
  table["asgd_"] = {update<ops::AsgdStep, functions::asgd_of<ops::AsgdStep>>};
  table["lion_"] = {update<ops::LionStep, functions::lion_of<ops::LionStep>>};
  table["nadam_"] = {update<ops::NAdamStep, functions::nadam_of<ops::NAdamStep>>};
  table["radam_"] = {update<ops::RAdamStep, functions::radam_of<ops::RAdamStep>>};
  table["rmsprop_"] = {update<ops::RMSpropStep, functions::rmsprop_of<ops::RMSpropStep>>};
  table["rprop_"] = {update<ops::RpropStep, functions::rprop_of<ops::RpropStep>>};
  table["sgd_"] = {update<ops::SgdStep, functions::sgd_of<ops::SgdStep>>};
  table["adam_"] = {update<ops::AdamStep, adam_of<false>>};
  table["adamw_"] = {update<ops::AdamStep, adam_of<true>>};
  table["adamw_rounded_"] = {adamw_rounded};
  table["adam_8bit_"] = {quantized_adam<false>};
  table["adamw_8bit_"] = {quantized_adam<true>};
}

}  // namespace tessera::cuda
