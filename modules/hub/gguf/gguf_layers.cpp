module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.hub;

import tessera.base;
import tessera.models;
import tessera.checkpoint;
import :gguf_names;
import :gguf_reading;

namespace tessera::hub {
namespace {

using Json = nlohmann::json;

bool is_none(const Json& value) { return value.is_null() || value == 0 || value == false; }

/// Which kind a layer is of, by lists of the file.
std::size_t kind_of(GgufReading& reading, std::int64_t layer) {
  const std::vector<models::GgufLayerKind>& kinds = reading.form.layers.kinds;
  for (std::size_t i = 0; i + 1 < kinds.size(); ++i) {
    const std::string& architecture = kinds[i].architecture;
    const Json value = reading.value_of_layer(kinds[i].field, layer);
    if (!value.is_null() && !value.is_number() && !value.is_boolean()) {
      reading.fields.wrong(reading.own(kinds[i].field), "it is neither a number nor true or false");
    }
    if (is_none(value) || (!architecture.empty() && architecture != reading.family.architecture)) {
      continue;
    }
    if (!kinds[i].key.empty()) {
      const Json& same = reading.config.emplace(kinds[i].key, value).first.value();
      if (same != value) {
        reading.fields.wrong(
            reading.own(kinds[i].field),
            fmt::format("layers differ in it (got {} and {}), which is not supported",
                        shown(same.dump(), 40), shown(value.dump(), 40)));
      }
    }
    return i;
  }
  return kinds.size() - 1;
}

}  // namespace

void read_layers(GgufReading& reading) {
  const models::GgufLayers& layers = reading.form.layers;
  if (layers.key.empty()) {
    return;
  }
  bool has_lists = layers.interval.empty();
  for (const models::GgufLayerKind& kind : layers.kinds) {
    const bool is_there =
        kind.field.empty() || reading.fields.any(reading.own(kind.field)) != nullptr;
    if (!is_there && layers.interval.empty()) {
      reading.fields.wrong(reading.own(kind.field), "is missing");
    }
    has_lists = has_lists || (is_there && !kind.field.empty());
  }
  const auto interval = static_cast<std::int64_t>(
      layers.interval.empty()
          ? 0
          : std::clamp<double>(reading.fields.number(reading.own(layers.interval))
                                   .value_or(static_cast<double>(layers.usual_interval)),
                               0, static_cast<double>(most_layers)));
  Json list = Json::array();
  for (std::int64_t layer = 0; layer < reading.shown_layers(); ++layer) {
    std::size_t kind = layers.kinds.size() - 1;
    if (has_lists) {
      kind = kind_of(reading, layer);
    } else if (interval < 1 || (layer + 1) % interval != 0) {
      kind = 0;
    }
    if (!layers.numbers) {
      list.push_back(layers.kinds[kind].word);
    } else if (kind == 0) {
      list.push_back(layer);
    }
  }
  reading.config[layers.key] = std::move(list);
}

void read_windows(GgufReading& reading) {
  const std::int64_t layers = reading.size_of("block_count");
  if (reading.form.windows_with > 0 && layers != reading.form.windows_with) {
    reading.fields.any(reading.own(pattern_field));
    reading.config[reading.form.keys.at(window_field)] = Json();
    reading.config["layer_types"] = reading.for_each_layer(Json::array({full_layer}));
    return;
  }
  if (!reading.form.layer_types) {
    return;
  }
  const Json* const field = reading.fields.any(reading.own(pattern_field));
  if (field == nullptr) {
    return;  // the family knows which
  }
  Json types = Json::array();
  if (field->contains("values")) {
    for (const Json& one : (*field)["values"]) {
      types.push_back(one.is_boolean() && one.get<bool>() ? window_layer : full_layer);
    }
  } else {
    const auto period =
        static_cast<std::int64_t>(reading.fields.number(reading.own(pattern_field)).value_or(0));
    for (std::int64_t layer = 0; layer < reading.shown_layers(); ++layer) {
      // 0: all layers have a window.
      const bool has_window = period <= 0 || layer % period < period - 1;
      types.push_back(has_window ? window_layer : full_layer);
    }
  }
  reading.config["layer_types"] = std::move(types);
}

void read_windowed(GgufReading& reading) {
  for (const auto& [field, keys] : reading.form.windowed) {
    const Json* const found = reading.fields.any(reading.own(field));
    if (found == nullptr) {
      reading.fields.wrong(reading.own(field), "is missing");
    }
    if (found->contains("value")) {
      reading.config[keys.first] = (*found)["value"];
      continue;
    }
    const Json types = reading.config.value("layer_types", Json::array());
    for (std::int64_t layer = 0; layer < reading.shown_layers(); ++layer) {
      const bool has_window =
          layer < std::ssize(types) && types[static_cast<std::size_t>(layer)] == window_layer;
      const Json value = reading.value_of_layer(field, layer);
      const Json& same =
          reading.config.emplace(has_window ? keys.first : keys.second, value).first.value();
      if (same != value) {
        reading.fields.wrong(reading.own(field),
                             fmt::format("layers of one kind differ in it (got {} and {})",
                                         shown(same.dump(), 40), shown(value.dump(), 40)));
      }
    }
    reading.config.emplace(keys.first, reading.config.value(keys.second, Json()));
  }
}

void read_widths(GgufReading& reading) {
  if (reading.form.wide_shared.empty()) {
    return;
  }
  const std::string field = "feed_forward_length";
  const std::int64_t layers = reading.shown_layers();
  const auto shared = static_cast<std::int64_t>(
      std::clamp<double>(reading.fields.number(reading.own(shared_field)).value_or(0), 0,
                         static_cast<double>(layers)));
  const std::int64_t own_keys = layers - shared;
  const Json first = layers > 0 ? reading.value_of_layer(field, 0) : Json();
  if (!first.is_number() || first.get<double>() < 1 || first.get<double>() > 0x1p40) {
    reading.fields.wrong(reading.own(field), "it is not a size");
  }
  const auto width = first.get<double>();
  bool wide = false;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const Json value = reading.value_of_layer(field, layer);
    const bool is_wide = layer >= own_keys && value == 2 * width;
    if (value != width && !is_wide) {
      reading.fields.wrong(reading.own(field), fmt::format("layers differ in it (got {} and {})",
                                                           width, shown(value.dump(), 40)));
    }
    wide = wide || is_wide;
  }
  if (wide && reading.value_of_layer(field, own_keys) == width) {
    reading.fields.wrong(reading.own(field),
                         "only some of the layers that share keys are twice as wide");
  }
  reading.config[reading.form.sizes.at(field)] = static_cast<std::int64_t>(width);
  reading.config[reading.form.wide_shared] = wide;
}

}  // namespace tessera::hub
