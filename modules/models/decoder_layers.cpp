// Decoders whose layers differ: their kinds as a pattern, and the sizes of recurrent ones.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.models;

import tessera.base;
import tessera.nn;
import :decoder_values;

namespace tessera::models {
namespace {

double number(std::int64_t value) { return static_cast<double>(value); }

}  // namespace

std::string shortest_pattern(const std::string& pattern, std::int64_t layers) {
  std::string all;
  for (std::int64_t layer = 0; layer < layers && !pattern.empty(); ++layer) {
    all += pattern[static_cast<std::size_t>(layer) % pattern.size()];
  }
  for (std::size_t period = 1; period < all.size(); ++period) {
    if (std::equal(all.begin() + static_cast<std::ptrdiff_t>(period), all.end(), all.begin())) {
      return all.substr(0, period);
    }
  }
  return all;
}

std::int64_t first_of_kind(const nn::DecoderShape& shape, nn::LayerKind kind) {
  std::int64_t layer = 0;
  while (layer < shape.layers && shape.layer_kind(layer) != kind) {
    ++layer;
  }
  return layer < shape.layers ? layer : -1;
}

std::int64_t recurrent_rows(const nn::DecoderShape& shape, std::string_view module) {
  const nn::RecurrentOptions options = shape.recurrence();
  const bool plain = options.rule == nn::RecurrentRule::convolution;
  const std::int64_t keys = plain ? shape.dim : options.key_heads * options.key_dim;
  const std::int64_t values = plain ? shape.dim : options.value_heads * options.value_extent();
  const std::pair<std::string_view, std::int64_t> rows[] = {
      {"recurrent.q_proj", keys},
      {"recurrent.k_proj", keys},
      {"recurrent.v_proj", values},
      {"recurrent.gate_proj", values},
      {"recurrent.decay_proj", options.value_heads},
      {"recurrent.strength_proj", options.value_heads},
      {"recurrent.q_conv", keys},
      {"recurrent.k_conv", keys},
      {"recurrent.v_conv", values}};
  for (const auto& [name, count] : rows) {
    if (name == module) {
      return count;
    }
  }
  return 0;
}

double recurrent_parameters(const nn::DecoderShape& shape) {
  const nn::RecurrentOptions options = shape.recurrence();
  const double dim = number(shape.dim);
  const double taps = number(options.kernel) + (options.convolution_bias ? 1 : 0);
  const double bias = options.bias ? 1 : 0;
  if (options.rule == nn::RecurrentRule::convolution) {
    return 4 * dim * (dim + bias) + dim * taps;
  }
  const double keys = number(options.key_heads * options.key_dim);
  const double values = number(options.value_heads * options.value_extent());
  const double heads = number(options.value_heads);
  double all = (2 * keys + values) * (dim + bias + taps) + dim * (values + bias);
  if (options.gate_rank > 0) {
    const double rank = number(options.gate_rank);
    const double decays = heads * number(options.key_dim);
    all += 2 * rank * (dim + bias) + (values + decays) * (rank + bias) + heads + decays;
  } else {
    all += (values + heads) * (dim + bias) + 2 * heads;
  }
  return options.rule == nn::RecurrentRule::sum
             ? all + heads + values
             : all + heads * (dim + bias) + number(options.value_extent());
}

std::vector<ValueConflict> layer_misfits(const nn::DecoderShape& shape) {
  std::vector<ValueConflict> found;
  const auto add = [&](std::vector<std::string> keys, const std::string& text) {
    found.push_back({std::move(keys), text, text});
  };
  if (shape.layer_pattern.find_first_not_of(shape.one_part ? "arfe" : "ar") != std::string::npos) {
    add({"layer_pattern"},
        fmt::format("the kinds of layers are {} (got '{}')",
                    shape.one_part ? "a (attention), r (recurrent), f (feed-forward) and e "
                                     "(experts)"
                                   : "a (attention) and r (recurrent)",
                    shape.layer_pattern));
    return found;
  }
  if (!shape.has_kind(nn::LayerKind::recurrent)) {
    return found;
  }
  const nn::RecurrentOptions options = shape.recurrence();
  if (options.rule == nn::RecurrentRule::convolution) {
    return found;
  }
  if (options.key_heads < 1 || options.value_heads % options.key_heads != 0) {
    add({"recurrent_key_heads", "recurrent_value_heads"},
        fmt::format("the heads of queries and keys of recurrent layers must divide those of "
                    "values ({} and {})",
                    options.key_heads, options.value_heads));
  } else if (options.expand > 0 &&
             options.value_heads * options.value_extent() != options.expand * shape.dim) {
    add({"recurrent_expand", "recurrent_value_heads", "recurrent_value_dim"},
        fmt::format("{} heads of {} features are not {} times the {} of the hidden state",
                    options.value_heads, options.value_extent(), options.expand, shape.dim));
  }
  const std::int64_t values = options.value_heads * options.value_extent();
  const std::int64_t keys = options.key_heads * options.key_dim;
  if (values < 1 || values > widest || keys < 1 || keys > widest) {
    add({"recurrent_value_heads", "recurrent_value_dim", "recurrent_key_heads",
         "recurrent_key_dim"},
        fmt::format("recurrent layers have from 1 to {} features of keys, and of values (got {} "
                    "and {})",
                    widest, keys, values));
  }
  if (options.step_high > 0 && options.step_high < options.step_low) {
    add({"recurrent_step_low", "recurrent_step_high"},
        fmt::format("the bounds of a step are in the wrong order ({} and {})", options.step_low,
                    options.step_high));
  }
  return found;
}

}  // namespace tessera::models
