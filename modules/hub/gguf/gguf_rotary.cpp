module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.hub;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.models;
import tessera.checkpoint;
import :gguf_names;
import :gguf_reading;

namespace tessera::hub {
namespace {

using Json = nlohmann::json;

// The bounds of llama3, which files do not say: those of all its models.
constexpr double llama3_low = 1;
constexpr double llama3_high = 4;
constexpr double llama3_positions = 8192;

/// The quotient of two numbers of f32, as it was meant.
double shortest(double value) {
  return parse_json(fmt::format("[{}]", static_cast<float>(value)))[0].get<double>();
}

/// Pairs with a factor that no position reaches are not rotated; they follow the others.
void read_pair_factors(GgufReading& reading) {
  const std::vector<double> stored = reading.file.contains(std::string(rope_factors))
                                         ? to_doubles(reading.file.read(std::string(rope_factors)))
                                         : std::vector<double>();
  const auto rotated = std::ranges::find_if(stored, [](double one) { return one != 1; });
  const bool fits = !stored.empty() && std::ranges::all_of(rotated, stored.end(), [](double one) {
    return one > pair_factor / 2;
  });
  if (!fits) {
    fail_input({.thing = reading.file.path(),
                .wrong = fmt::format("tensor '{}' does not tell the pairs that are rotated from "
                                     "those that are not (expected 1, and then {})",
                                     rope_factors, pair_factor)});
  }
  reading.config["rope_scaling"] = {
      {"rope_type", "proportional"},
      {"partial_rotary_factor",
       static_cast<double>(rotated - stored.begin()) / static_cast<double>(stored.size())}};
}

/// The parameters are found from the factors, or the file is refused.
void read_llama3(GgufReading& reading, double original) {
  const std::vector<double> stored = to_doubles(reading.file.read(std::string(rope_factors)));
  const double factor = stored.empty() ? 1 : *std::ranges::max_element(stored);
  const std::vector<float> expected =
      llama3_factors(reading.head_dim, reading.config[reading.form.rope_key].get<double>(), factor,
                     llama3_low, llama3_high, original);
  const bool same = std::ranges::equal(
      stored, expected, [](double x, double y) { return std::abs(x - y) <= 1e-3 * y; });
  if (!same || !reading.form.llama3_factors) {
    fail_input({.thing = reading.file.path(),
                .wrong = fmt::format(
                    "tensor '{}' has factors of the rotary embedding that are not those of Llama 3",
                    rope_factors)});
  }
  reading.config["rope_scaling"] = {
      {"rope_type", "llama3"},
      {"factor", factor},
      {"low_freq_factor", llama3_low},
      {"high_freq_factor", llama3_high},
      {"original_max_position_embeddings", static_cast<std::int64_t>(original)}};
}

void read_long_factors(GgufReading& reading, double amplitude, std::int64_t positions) {
  const auto numbers = [&](std::string_view name) {
    Json list = Json::array();
    for (const double one : to_doubles(reading.file.read(std::string(name)))) {
      list.push_back(shortest(one));
    }
    return list;
  };
  reading.config["rope_scaling"] = {{"rope_type", "longrope"},
                                    {"long_factor", numbers(long_rows)},
                                    {"short_factor", numbers(short_rows)},
                                    {"original_max_position_embeddings", positions},
                                    {"attention_factor", amplitude}};
}

void read_scaling(GgufReading& reading) {
  // A factor without a type divides positions, as in ggml's programs; older files name it so.
  const double factor =
      reading.fields.number(reading.own("rope.scaling.factor"))
          .value_or(reading.fields.number(reading.own("rope.scale_linear")).value_or(1));
  const std::string kind = reading.fields.text(reading.own("rope.scaling.type"),
                                               factor == 1 || factor == 0 ? "none" : "linear");
  const std::optional<double> original =
      reading.fields.number(reading.own("rope.scaling.original_context_length"));
  const double low =
      reading.fields.number(reading.own("rope.scaling.yarn_beta_slow")).value_or(yarn_slow);
  const double high =
      reading.fields.number(reading.own("rope.scaling.yarn_beta_fast")).value_or(yarn_fast);
  const double amplitude =
      reading.fields.number(reading.own("rope.scaling.attn_factor")).value_or(1);
  const std::optional<double> log_scale = reading.fields.number(reading.own(log_field));
  const auto positions = static_cast<std::int64_t>(
      original.value_or(static_cast<double>(reading.size_of("context_length"))));
  const bool has_long = reading.form.long_factors && reading.file.contains(std::string(long_rows));
  if (amplitude != 1 && !has_long) {
    reading.fields.wrong(reading.own("rope.scaling.attn_factor"),
                         "it is not supported (expected 1)");
  }
  if (reading.form.pair_factors) {
    read_pair_factors(reading);
  } else if (reading.file.contains(std::string(rope_factors))) {
    read_llama3(reading, original.value_or(llama3_positions));
  } else if (has_long) {
    read_long_factors(reading, amplitude, positions);
  } else if (kind == "linear") {
    reading.config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", factor}};
  } else if (kind == "yarn") {
    reading.config["rope_scaling"] = {{"rope_type", "yarn"},
                                      {"factor", factor},
                                      {"beta_slow", low},
                                      {"beta_fast", high},
                                      {"original_max_position_embeddings", positions}};
    if (log_scale) {
      reading.config["rope_scaling"]["mscale"] = shortest(*log_scale / reading.form.log_share);
      reading.config["rope_scaling"]["mscale_all_dim"] =
          shortest(*log_scale / reading.form.log_share);
    }
    for (const auto& [key, json] : reading.form.config) {
      if (key.starts_with(rope_part)) {
        reading.config["rope_scaling"][key.substr(rope_part.size())] = value_of(json);
      }
    }
  } else if (kind != "none") {
    reading.fields.wrong(reading.own("rope.scaling.type"),
                         fmt::format("'{}' is not supported", shown(kind, 40)));
  }
}

/// Parts of rope_scaling that have fields of their own.
void read_rope_parts(GgufReading& reading) {
  for (const auto& [field, key] : reading.form.keys) {
    if (!key.starts_with(rope_part)) {
      continue;
    }
    if (const std::optional<double> value = reading.fields.number(reading.own(field))) {
      reading.config.emplace("rope_scaling", Json{{"rope_type", "default"}});
      reading.config["rope_scaling"][key.substr(rope_part.size())] = *value;
    }
  }
}

/// rope_parameters have the part of a head that is rotated, and then all of it.
void name_share(GgufReading& reading) {
  Json rope = reading.config.value("rope_scaling", Json{{"rope_type", "default"}});
  reading.config.erase("rope_scaling");
  rope["rope_theta"] = reading.config[reading.form.rope_key];
  reading.config.erase(reading.form.rope_key);
  rope["partial_rotary_factor"] = reading.rotated_share;
  reading.config["rope_parameters"] = std::move(rope);
}

/// rope_parameters have the embedding of layers with a window, which is not scaled, and of
/// others.
void name_layers(GgufReading& reading) {
  const double theta = reading.config[reading.form.rope_key].get<double>();
  Json full = reading.config.value("rope_scaling", Json{{"rope_type", "default"}});
  full["rope_theta"] = theta;
  reading.config.erase("rope_scaling");
  reading.config.erase(reading.form.rope_key);
  const Json local = {
      {"rope_type", "default"},
      {"rope_theta", reading.fields.number(reading.own(local_theta_field)).value_or(theta)}};
  reading.config["rope_parameters"] = {{full_layer, std::move(full)}, {window_layer, local}};
}

}  // namespace

void read_rotary(GgufReading& reading) {
  read_scaling(reading);
  read_rope_parts(reading);
  if (reading.rotated_share != 1) {
    name_share(reading);
  }
  if (const auto local = reading.form.keys.find(local_theta_field);
      local != reading.form.keys.end() && local->second == local_theta) {
    name_layers(reading);
  }
}

}  // namespace tessera::hub
