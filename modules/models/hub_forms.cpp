// The forms of values in config.json, read and written.
module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <variant>
#include <vector>
module tessera.models;

import tessera.base;
import tessera.nn;
import :decoder_family;
import :decoder_values;
import :hub_forms;

namespace tessera::models {
namespace {

using Layers = std::vector<std::int64_t>;

constexpr char attention_letter = static_cast<char>(nn::LayerKind::attention);
constexpr char recurrent_letter = static_cast<char>(nn::LayerKind::recurrent);

bool contains(const Layers& layers, std::int64_t layer) {
  return std::ranges::find(layers, layer) != layers.end();
}

/// A number, or null for 0.
HubKey number_or_null(const std::string& key, double value, bool whole) {
  const bool is_whole = whole && value == std::floor(value) && std::abs(value) < 0x1p53;
  return value == 0 ? HubKey::raw(key, "null")
         : is_whole ? HubKey(key, static_cast<std::int64_t>(value))
                    : HubKey(key, value);
}

/// A word as config.json has it.
HubKey word_key(const std::string& key, const std::string& word) {
  const bool is_flag = word == "true" || word == "false";
  return word.empty() ? HubKey::raw(key, "null")
         : is_flag    ? HubKey(key, word == "true")
                      : HubKey(key, word.c_str());
}

std::vector<std::string> known_words(const HubWords& words) {
  std::vector<std::string> all;
  for (const auto& [hub, own] : words) {
    all.push_back(hub.empty() ? "null" : hub);
  }
  return all;
}

void refuse_word(HubConfig& config, const std::string& key, const std::string& word,
                 const std::vector<std::string>& known) {
  config.problem(
      fmt::format("{} \"{}\" is not supported (only {})", key, shown(word, 60), join_words(known)));
}

/// Errors: a list that has not one entry for each layer.
void check_count(HubConfig& config, const std::string& key, std::string_view what,
                 std::int64_t layers, std::int64_t count) {
  if (count > 0 && count != layers) {
    config.problem(
        fmt::format("{}: expected a {} for each of {} layers, got {}", key, what, layers, count));
  }
}

/// The layers that a property has, and those of the property that it replaces.
struct OwnLayers {
  OwnLayers(const DecoderProperty& property, const HubOutput& out)
      : list(out.sizes.values.integers(property.key)),
        count(out.sizes.values.integer("layers")),
        every(property.form->replaces().empty()
                  ? 0
                  : out.sizes.values.integer(property.form->replaces())) {}

  bool in_period(std::int64_t layer) const { return every > 0 && (layer + 1) % every == 0; }

  const Layers& list;
  std::int64_t count;
  std::int64_t every;
};

/// true or false.
class FlagForm : public HubForm {
 public:
  void read(const DecoderProperty& property, HubInput& in) const override {
    const bool absent = !in.config.is_null(property.hub) && std::get<bool>(property.absent);
    in.sizes.values.set(property.key, in.config.flag(property.hub, absent));
  }
  void write(const DecoderProperty& property, const HubOutput& out) const override {
    out.keys.emplace_back(property.hub, out.sizes.values.flag(property.key));
  }
  bool fits(const ModelValue& value) const override { return std::holds_alternative<bool>(value); }
};

/// A list of integers.
class ListForm : public LayersForm {
 public:
  void read(const DecoderProperty& property, HubInput& in) const override {
    in.sizes.values.set(property.key, in.config.numbers(property.hub, most_positions));
  }
  void write(const DecoderProperty& property, const HubOutput& out) const override {
    const Layers& list = out.sizes.values.integers(property.key);
    out.keys.push_back(HubKey::raw(property.hub, fmt::format("[{}]", fmt::join(list, ", "))));
  }
};

/// A list of rates, one for each layer.
class RatesForm : public HubForm {
 public:
  void read(const DecoderProperty& property, HubInput& in) const override {
    std::vector<double> rates = in.config.rates(property.hub);
    if (!in.config.has(property.hub)) {
      in.config.problem(property.hub + " is missing");
    }
    check_count(in.config, property.hub, "number", in.sizes.values.integer("layers"),
                std::ssize(rates));
    if (std::ranges::all_of(rates, [](double rate) { return rate == 0; })) {
      rates.clear();
    }
    in.sizes.values.set(property.key, std::move(rates));
  }
  void write(const DecoderProperty& property, const HubOutput& out) const override {
    std::vector<double> rates = out.sizes.values.numbers(property.key);
    rates.resize(static_cast<std::size_t>(out.sizes.values.integer("layers")), 0.0);
    std::vector<std::string> texts;
    for (const double rate : rates) {
      texts.push_back(HubKey("", rate).json);
    }
    out.keys.push_back(HubKey::raw(property.hub, fmt::format("[{}]", fmt::join(texts, ", "))));
  }
  bool fits(const ModelValue& value) const override {
    return std::holds_alternative<std::vector<double>>(value);
  }
};

}  // namespace

HubForm::~HubForm() = default;

std::shared_ptr<const HubForm> usual_form(const ModelValue& value) {
  static const std::shared_ptr<const HubForm> all[] = {
      std::make_shared<FlagForm>(), std::make_shared<IntegerForm>(IntegerForm::Options{}),
      std::make_shared<NumberForm>(false), std::make_shared<ListForm>(),
      std::make_shared<RatesForm>()};
  const auto found = std::ranges::find_if(all, [&](const auto& form) { return form->fits(value); });
  if (found == std::end(all)) {
    fail({.thing = "a property of decoders", .wrong = "its type has no usual form in config.json"});
  }
  return *found;
}

void IntegerForm::read(const DecoderProperty& property, HubInput& in) const {
  HubConfig& config = in.config;
  const auto limit = static_cast<std::int64_t>(property.range.high.value_or(0x1p40));
  const std::int64_t absent =
      config.is_null(property.hub) ? 0 : std::get<std::int64_t>(property.absent);
  if (!options_.none.empty() && config.is_text(property.hub, options_.none)) {
    in.sizes.values.set(property.key, std::int64_t{0});
    return;
  }
  constexpr std::int64_t none = -1;
  const std::int64_t other = options_.also.empty() ? none : config.size(options_.also, limit, none);
  const std::int64_t otherwise = other == none ? absent : other;
  const std::int64_t value =
      options_.counts
          ? config.integer(property.hub, property.range.low.value_or(0), limit, otherwise)
          : config.size(property.hub, limit, otherwise);
  if (other != none && value != other) {
    config.problem(fmt::format("{} {} and {} {} are not one number", property.hub, value,
                               options_.also, other));
  }
  in.sizes.values.set(property.key, value);
}

void IntegerForm::write(const DecoderProperty& property, const HubOutput& out) const {
  const std::int64_t value = out.sizes.values.integer(property.key);
  const auto replaces = [&](const DecoderProperty& other) {
    return other.form && other.form->replaces() == property.key;
  };
  if (value == 0 && std::ranges::any_of(out.properties, replaces)) {
    return;  // transformers computes with it even where there is a list
  }
  if (value == 0 && !options_.none.empty()) {
    out.keys.emplace_back(property.hub, options_.none.c_str());
    return;
  }
  out.keys.push_back(value == 0 && !options_.counts ? HubKey::raw(property.hub, "null")
                                                    : HubKey(property.hub, value));
  if (!options_.also.empty()) {
    out.keys.emplace_back(options_.also, value);
  }
}

bool IntegerForm::fits(const ModelValue& value) const {
  return std::holds_alternative<std::int64_t>(value);
}

void NumberForm::read(const DecoderProperty& property, HubInput& in) const {
  const double absent = in.config.is_null(property.hub) ? 0 : std::get<double>(property.absent);
  in.sizes.values.set(property.key, in.config.positive(property.hub, absent));
}

void NumberForm::write(const DecoderProperty& property, const HubOutput& out) const {
  out.keys.push_back(number_or_null(property.hub, out.sizes.values.number(property.key), whole_));
}

bool NumberForm::fits(const ModelValue& value) const {
  return std::holds_alternative<double>(value);
}

void PairForm::read(const DecoderProperty& property, HubInput& in) const {
  in.sizes.values.set(
      property.key, in.config.one_of_two(property.hub, entry_, std::get<double>(property.absent)));
}

void PairForm::write(const DecoderProperty& property, const HubOutput& out) const {
  if (entry_ > 0) {
    return;  // with the first
  }
  std::string json;
  for (const DecoderProperty& other : out.properties) {
    if (other.hub == property.hub) {
      const double value = out.sizes.values.number(other.key);
      json += json.empty() ? "" : ", ";
      json += value == 0 && &other != &property ? R"({"__float__": "Infinity"})"
                                                : HubKey("", value).json;
    }
  }
  out.keys.push_back(HubKey::raw(property.hub, "[" + json + "]"));
}

bool PairForm::fits(const ModelValue& value) const { return std::holds_alternative<double>(value); }

void WordForm::read(const DecoderProperty& property, HubInput& in) const {
  HubConfig& config = in.config;
  const bool* const flag = std::get_if<bool>(&property.absent);
  const auto set = [&](const std::string& own) {
    in.sizes.values.set(property.key,
                        flag == nullptr ? ModelValue(own) : ModelValue(own == "true"));
  };
  std::string absent = flag == nullptr ? std::get<std::string>(property.absent)
                       : *flag         ? "true"
                                       : "false";
  const std::string text = config.text(property.hub, "");
  if (!text.empty() || config.is_null(property.hub)) {
    const auto word = std::ranges::find(words_, text, &HubWords::value_type::first);
    if (word != words_.end()) {
      absent = word->second;
    } else if (!text.empty()) {
      refuse_word(config, property.hub, text, known_words(words_));
    }
  }
  set(absent);
}

void WordForm::write(const DecoderProperty& property, const HubOutput& out) const {
  const ModelValue& value = out.sizes.values.all().at(property.key);
  const bool* const flag = std::get_if<bool>(&value);
  const std::string own = flag == nullptr ? std::get<std::string>(value) : *flag ? "true" : "false";
  const auto word = std::ranges::find(words_, own, &HubWords::value_type::second);
  if (word != words_.end()) {
    out.keys.push_back(word_key(property.hub, word->first));
  } else if (value != property.absent) {  // what a config.json without it means
    fail_input({.thing = fmt::format("model.{}", property.key),
                .wrong = fmt::format("config.json has no word of '{}' for '{}'", property.hub,
                                     shown(own))});
  }
}

bool WordForm::fits(const ModelValue& value) const {
  return std::holds_alternative<std::string>(value) || std::holds_alternative<bool>(value);
}

bool LayersForm::fits(const ModelValue& value) const {
  return std::holds_alternative<Layers>(value);
}

void ZerosForm::read(const DecoderProperty& property, HubInput& in) const {
  const Layers marks = in.config.numbers(property.hub, 1);
  check_count(in.config, property.hub, "number", in.sizes.values.integer("layers"),
              std::ssize(marks));
  Layers zeros;
  for (std::size_t i = 0; i < marks.size(); ++i) {
    if (marks[i] == 0) {
      zeros.push_back(static_cast<std::int64_t>(i));
    }
  }
  in.sizes.values.set(property.key, std::move(zeros));
  if (!marks.empty()) {
    in.replaced.insert(replaces_);
  }
}

void ZerosForm::write(const DecoderProperty& property, const HubOutput& out) const {
  const OwnLayers own(property, out);
  Layers marks;
  for (std::int64_t layer = 0; layer < own.count; ++layer) {
    marks.push_back(contains(own.list, layer) || own.in_period(layer) ? 0 : 1);
  }
  out.keys.push_back(HubKey::raw(property.hub, fmt::format("[{}]", fmt::join(marks, ", "))));
}

void OthersForm::read(const DecoderProperty& property, HubInput& in) const {
  const std::int64_t layers = in.sizes.values.integer("layers");
  const Layers listed = in.config.numbers(property.hub, layers - 1);
  if (!in.config.has(property.hub)) {
    in.sizes.values.set(property.key, property.absent);
    return;
  }
  Layers others;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    if (!contains(listed, layer)) {
      others.push_back(layer);
    }
  }
  in.sizes.values.set(property.key, std::move(others));
  in.replaced.insert(replaces_);
}

void OthersForm::write(const DecoderProperty& property, const HubOutput& out) const {
  const OwnLayers own(property, out);
  Layers listed;
  for (std::int64_t layer = 0; layer < own.count; ++layer) {
    if ((own.every == 0 || own.in_period(layer)) && !contains(own.list, layer)) {
      listed.push_back(layer);
    }
  }
  out.keys.push_back(HubKey::raw(property.hub, fmt::format("[{}]", fmt::join(listed, ", "))));
}

void MarksForm::read(const DecoderProperty& property, HubInput& in) const {
  const std::vector<std::string> marks = in.config.texts(property.hub);
  if (!in.config.has(property.hub)) {
    in.sizes.values.set(property.key, property.absent);
    return;
  }
  check_count(in.config, property.hub, "text", in.sizes.values.integer("layers"),
              std::ssize(marks));
  Layers marked;
  for (std::size_t i = 0; i < marks.size(); ++i) {
    if (marks[i] == own_) {
      marked.push_back(static_cast<std::int64_t>(i));
    } else if (marks[i] != other_) {
      refuse_word(in.config, property.hub, marks[i], {own_, other_});
    }
  }
  in.sizes.values.set(property.key, std::move(marked));
  in.replaced.insert(replaces_);
}

void MarksForm::write(const DecoderProperty& property, const HubOutput& out) const {
  const OwnLayers own(property, out);
  std::vector<std::string> marks;
  for (std::int64_t layer = 0; layer < own.count; ++layer) {
    marks.push_back(contains(own.list, layer) ? own_ : other_);
  }
  out.keys.push_back(HubKey::list(property.hub, marks));
}

void LayerTypesForm::read(const DecoderProperty& property, HubInput& in) const {
  MarksForm::read(property, in);
  Layers layers = in.sizes.values.integers(property.key);
  const std::int64_t last = in.sizes.values.integer("layers") - 1;
  // Where there is no list, the family says below which layers these are.
  if (has_last_ && in.config.has(property.hub) && !contains(layers, last)) {
    layers.push_back(last);
    in.sizes.values.set(property.key, std::move(layers));
  }
}

void LayerTypesForm::write(const DecoderProperty& property, const HubOutput& out) const {
  out.keys.push_back(HubKey::list(property.hub, layer_types(out.shape)));
}

void DenseLayersForm::write(const DecoderProperty& property, const HubOutput& out) const {
  std::vector<std::string> marks;
  for (std::int64_t layer = 0; layer < out.shape.layers; ++layer) {
    marks.push_back(out.shape.has_experts(layer) ? other_ : own_);
  }
  out.keys.push_back(HubKey::list(property.hub, marks));
}

std::string PatternForm::by_indices(const DecoderProperty& property, HubConfig& config,
                                    std::int64_t layers) const {
  const Layers indices = config.numbers(options_.indices, most);
  if (!config.has(options_.indices)) {
    return "";
  }
  std::string pattern(static_cast<std::size_t>(layers), recurrent_letter);
  for (const std::int64_t index : indices) {
    const std::int64_t layer = index - options_.begin;
    if (layer < 0 || layer >= layers) {
      config.problem(fmt::format("{}: there is no layer {} ({} layers, from {})", options_.indices,
                                 index, layers, options_.begin));
      return std::get<std::string>(property.absent);
    }
    pattern[static_cast<std::size_t>(layer)] = attention_letter;
  }
  return pattern;
}

std::string PatternForm::by_words(const std::string& key, HubConfig& config,
                                  std::int64_t layers) const {
  std::string letters;
  for (const std::string& word : config.words(key)) {
    const auto known = std::ranges::find(options_.words, word, &HubWords::value_type::first);
    if (known == options_.words.end()) {
      refuse_word(config, key, word, known_words(options_.words));
      return "";
    }
    letters += known->second;
  }
  if (layers > 0) {
    check_count(config, key, "type", layers, std::ssize(letters));
  }
  return letters;
}

void PatternForm::read(const DecoderProperty& property, HubInput& in) const {
  HubConfig& config = in.config;
  std::int64_t layers = in.sizes.values.integer("layers");
  std::string pattern = options_.indices.empty() ? "" : by_indices(property, config, layers);
  for (const std::string& key : {options_.also, property.hub}) {
    if (!key.empty() && key != options_.indices) {
      const std::string letters = by_words(key, config, layers);
      pattern = letters.empty() ? pattern : letters;
    }
  }
  const std::int64_t interval =
      options_.interval.empty() ? 0 : config.size(options_.interval, most, std::int64_t{0});
  if (pattern.empty() && interval > 0) {
    pattern =
        std::string(static_cast<std::size_t>(interval - 1), recurrent_letter) + attention_letter;
  }
  if (pattern.empty()) {
    pattern = std::get<std::string>(property.absent);
  }
  if (layers < 1) {  // as many as the list has
    layers = std::ssize(pattern);
    if (layers > most) {
      config.problem(fmt::format("{}: there are at most {} layers", property.hub, most));
    }
    in.sizes.values.set("layers", layers);
  }
  in.sizes.values.set(property.key, shortest_pattern(pattern, std::min(layers, most)));
}

void PatternForm::write(const DecoderProperty& property, const HubOutput& out) const {
  const std::string& pattern = out.sizes.values.text(property.key);
  std::vector<std::string> words;
  Layers indices;
  for (std::int64_t layer = 0; layer < out.sizes.values.integer("layers"); ++layer) {
    const std::string letter(1, pattern[static_cast<std::size_t>(layer) % pattern.size()]);
    const auto word = std::ranges::find(options_.words, letter, &HubWords::value_type::second);
    words.push_back(word == options_.words.end() ? letter : word->first);
    if (letter[0] == attention_letter) {
      indices.push_back(layer + options_.begin);
    }
  }
  if (property.hub == options_.indices) {
    out.keys.push_back(HubKey::raw(property.hub, fmt::format("[{}]", fmt::join(indices, ", "))));
    return;
  }
  out.keys.push_back(HubKey::list(property.hub, words));
  if (!options_.indices.empty()) {
    out.keys.push_back(HubKey::raw(options_.indices, "null"));
  }
}

bool PatternForm::fits(const ModelValue& value) const {
  return std::holds_alternative<std::string>(value);
}

}  // namespace tessera::models
